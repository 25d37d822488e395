"""Ranks that were started with other settings are refused, all of them, and the setting is named."""

from __future__ import annotations

import pytest

from ps_wire.errors import JobMismatch
from ps_worker import settings
from ps_worker.group import alike
from tests.unit.ps_worker.group.wires import town

SERVED = {"PS_SERVERS": "127.0.0.1:50051", "PS_GROUP_SIZE": "3", "PS_WORKER": "0"}


@pytest.mark.parametrize(
    ("variable", "value", "option"),
    [
        ("PS_GROUP_REDUCE", "gloo", "--group-reduce gloo"),
        ("PS_CONSISTENCY", "ssp:2", "--consistency ssp:2"),
        ("PS_NUM_WORKERS", "1:2", "--num-workers 1:2"),
        ("PS_NONFINITE", "skip", "--nonfinite skip"),
        ("PS_WIRE_DTYPE", "bf16", "--wire-dtype bf16"),
        ("PS_LEASE", "3", "--lease 3"),
    ],
)
def test_a_rank_with_another_setting_is_named_on_all_ranks(variable: str, value: str, option: str) -> None:
    plain = {**SERVED, "PS_NUM_WORKERS": "2"}
    made = [
        settings.read({**plain, "PS_GROUP_RANK": str(rank), **({variable: value} if rank == 2 else {})}).alike
        for rank in range(3)
    ]
    hosts = ("a", "b", "c")
    with town(3) as group:
        found = group.run(lambda rank: alike.check(group.channels[rank], hosts, made[rank]))

    name, _, other = option.partition(" ")
    assert [type(error) for error in found] == [JobMismatch] * 3
    assert found[0].message == found[1].message == found[2].message
    assert found[0].message.startswith(
        f"rank 0 on a has {name} {made[0][name]}, and rank 2 on c {other}: all"
    )


def test_ranks_with_the_same_settings_go_on() -> None:
    with town(2) as group:
        assert (
            group.run(lambda rank: alike.check(group.channels[rank], ("a", "b"), {"--x": "1"})) == [None] * 2
        )
