"""How many steps a script takes again that goes on where another one was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ps_wire.errors import UsageError
from ps_worker.data.position import POSITIONS, Position, Positions

NOTED = Positions(epoch=2, loaders=(), steps={0: 24}, clocks={0: 26})


@pytest.mark.parametrize(
    ("enters", "counted", "again"),
    [
        pytest.param(47, {}, 23, id="of one that trains"),
        pytest.param(26, {0: 26}, 2, id="nobody has trained since"),
        pytest.param(27, {0: 26}, 2, id="a step closed with a part of a push"),
        pytest.param(47, {0: 26}, 23, id="others have trained since"),
        pytest.param(24, {}, 0, id="at that step"),
        pytest.param(20, {0: 20}, 0, id="before it"),
    ],
)
def test_in_lockstep_steps_between_a_position_and_where_it_enters_are_taken_again(enters, counted, again):
    assert NOTED.steps_behind({0: enters}, counted, lockstep=True) == {0: again}


def test_in_the_first_step_of_a_job_one_may_be_taken_again():
    start = Positions(epoch=0, loaders=(), steps={0: 0}, clocks={0: 0})
    assert start.steps_behind({0: 1}, {}, lockstep=True) == {0: 1}


def test_where_steps_are_each_workers_own_those_of_the_other_are_taken_again():
    """All that it had taken; where it is gone, those that count."""
    assert NOTED.steps_behind({0: 47}, {}, lockstep=False) == {0: 2}
    assert NOTED.steps_behind({0: 47}, {0: 30}, lockstep=False) == {0: 6}


@pytest.mark.parametrize("text", [b"{}", b"[]", b"[" * 999, b'{"loaders": [{"epoch": 1}]}'], ids=range(4))
def test_what_is_no_position_is_a_named_error(text: bytes):
    """Another process has written it."""
    packed = NOTED.pack()
    assert Positions.unpack(packed) == NOTED
    packed[POSITIONS] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with pytest.raises(UsageError, match="this is no position of"):
        Positions.unpack(packed)


SHARE = {"epoch": 0, "place": 1, "ranks": 2, "count": 3, "first": 0, "own": True, "left_over": False}


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("epoch", "offset", "batches") for value in (None, "x", math.inf)),
        *({"share": SHARE | bad} for bad in ({"place": "y"}, {"count": 2}, {"ranks": 0}, {"first": -1})),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_a_named_error(change: dict[str, Any]):
    numbers = {"epoch": 0, "offset": 4, "batches": 1, "share": SHARE}
    assert Position.from_numbers(numbers).as_numbers() == numbers
    with pytest.raises(UsageError, match="this is no position of a loader"):
        Position.from_numbers(numbers | change)
