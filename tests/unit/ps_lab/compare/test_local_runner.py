"""What a runner on this machine refuses before anything runs, with the key that asks for it."""

from pathlib import Path

import pytest

from ps_lab.compare.host_links import links_of
from ps_lab.compare.local_runner import _Running, check
from ps_lab.compare.progress import Seen
from ps_lab.experiments.experiment import parse
from ps_lab.experiments.plan import runs
from ps_wire.errors import UsageError

from .growing import STEP_S, Records

LINKED = "[[hosts]]\nworkers = [2, 3]\nmegabits_per_s = 80\ndelay_ms = 5\n"
SLOW = '[[profiles]]\nname = "link"\nstraggler = "slow_link:f=8,worker={}"\n'
KILLS = '[[profiles]]\nname = "k"\nstraggler = "crash:step=3"\n'
TEXT = 'name = "tiny"\nscript = "train.py"\nmodels = ["bsp"]\n'


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (SLOW.format("0"), "profiles: link: slow_link: worker 0 has no link that could be slow"),
        (LINKED + SLOW.format("2"), "profiles: link: slow_link: workers 2, 3 share the link of their host"),
        (LINKED + SLOW.format("all"), "profiles: link: slow_link: worker 0 has no link"),
        ('baselines = ["none"]\n' + LINKED, "hosts: links are between workers and servers"),
        ('carrier = "shm"\n' + LINKED, "hosts: data over shm passes by links"),
        ('baselines = ["ddp"]\nrecord = false\n', "record: baselines have no servers"),
        ('baselines = ["none"]\nrecord = false\n', "record: baselines have no servers"),
        ('group_size = 2\nbaselines = ["ddp"]\n', "group_size: in the baselines each process is a worker"),
        ("group_size = 2\n" + KILLS, "group_size: a profile kills processes"),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_key(more: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(parse(TEXT + more))


def test_groups_have_no_backup() -> None:
    with pytest.raises(UsageError, match="group_size: groups have no backup"):
        check(parse(TEXT.replace('["bsp"]', '["bsp:backup=1"]') + "group_size = 2\n"))


def test_a_slow_link_is_that_of_its_host_made_slower_and_others_are_as_ever() -> None:
    more = "[[hosts]]\nworkers = [1]\nmegabits_per_s = 8\n"
    experiment = parse(TEXT + LINKED + more + SLOW.format("2+3"))
    check(experiment)
    slow, ever = links_of(runs(experiment)[0])
    assert (slow.workers, slow.bytes_per_s, slow.delay_s) == ((2, 3), 80e6 / 8 / 8, 0.040)
    assert (ever.workers, ever.bytes_per_s, ever.delay_s) == ((1,), 1e6, 0.0)
    assert slow.address != ever.address


def test_a_run_with_records_ends_by_the_running_mean_and_one_without_by_what_was_logged_last(
    tmp_path: Path,
) -> None:
    records = Records(tmp_path, 4)
    text = TEXT + '[stop]\nmetric = "loss"\nat_most = 1.0\n'
    ends = [
        _Running(None, runs(parse(it))[0], tmp_path, tmp_path, print)._is_over
        for it in (text, text.replace("[stop]", "record = false\n[stop]"))
    ]
    dip = Seen(step=3, samples=1, metrics={"loss": 0.5})
    records.step(0, STEP_S, loss=0.5)
    assert [it(dip, 1.0) for it in ends] == [False, True]
    for index in range(2, 12):
        for worker in range(4):
            records.step(worker, index * STEP_S, loss=0.5)
    assert ends[0](dip, 1.0)
