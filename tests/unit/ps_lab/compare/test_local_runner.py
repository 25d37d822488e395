"""What a runner on this machine refuses before anything runs, with the key that asks for it."""

import pytest

from ps_lab.compare.local_runner import check
from ps_lab.experiments.experiment import parse
from ps_wire.errors import UsageError

TEXT = 'name = "tiny"\nscript = "train.py"\nmodels = ["bsp"]\n'


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[[profiles]]\nname = "link"\nstraggler = "slow_link:f=8"\n', "profiles: link: slow_link cannot"),
        ('baselines = ["ddp"]\nrecord = false\n', "record: baselines have no servers"),
        ('baselines = ["none"]\nrecord = false\n', "record: baselines have no servers"),
        ("group_size = 2\n", "group_size: there are no worker groups yet"),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_key(more: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(parse(TEXT + more))
