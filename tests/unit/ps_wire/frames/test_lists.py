"""Frames that leave together as lists: which do, and that nothing but their number changes."""

from __future__ import annotations

import struct

import pytest
import torch

from ps_wire.errors import FrameMalformed
from ps_wire.frames import meta
from ps_wire.frames.buffer import as_tensor
from ps_wire.frames.frame import CUT, LISTED, READ, SHARED, TIMED, Frame, Kind, decode, encode
from ps_wire.frames.lists import clocks, joined, partitions
from ps_wire.frames.shared_place import SharedPlace

PUSH = Frame(kind=Kind.PUSH, flags=SHARED, table=1, step=4, version=4, worker=2, incarnation=3, hyper=5)
ACK = Frame(kind=Kind.ACK, table=1, step=4, version=4, hyper=1, flags=3)
PULLED = Frame(kind=Kind.PULLED, flags=SHARED, table=1, step=5, version=5, meta=meta.clocks([(0, 5), (1, 5)]))
FREE = Frame(kind=Kind.FREE, table=1)


def of(frame: Frame, *numbers: int) -> list[Frame]:
    return [frame.but(partition=number) for number in numbers]


def pull(*numbers: int, flags: int = 0) -> Frame:
    return Frame(kind=Kind.PULL, partition=numbers[0], step=5, flags=flags, meta=meta.listed(numbers))


@pytest.mark.parametrize("frame", [PUSH, ACK, PULLED], ids=lambda it: it.kind.name)
def test_frames_that_differ_in_their_partition_alone_leave_as_one(frame: Frame) -> None:
    """What comes of it has all that each had."""
    (made,) = joined(of(frame, 7, 3, 9))
    came = decode(encode(made))
    assert partitions(came) == (7, 3, 9)
    if frame is PULLED:
        assert bytes(clocks(came)) == frame.meta
    plain = {"flags": frame.flags, "meta": frame.meta, "hyper": frame.hyper, "partition": 0}
    assert made.flags == frame.flags | LISTED
    assert made.but(**plain) == frame


@pytest.mark.parametrize("frame", [PUSH, ACK, PULLED], ids=lambda it: it.kind.name)
def test_one_alone_stays_as_it_is(frame: Frame) -> None:
    assert joined([frame]) == [frame]
    assert joined([frame, FREE]) == [frame, FREE]
    assert partitions(of(frame, 7)[0]) == (7,)
    assert clocks(PULLED) == PULLED.meta


def test_what_asks_for_weights_stays_before_the_next_push_of_its_partition() -> None:
    """Who pushes again before an answer is here asks at the clock of the push before."""
    first, last = (pull(0).but(table=1, step=step) for step in (5, 6))
    pushes = of(PUSH.but(step=5), 0, 1)
    assert joined([PUSH, first, *pushes, last]) == [PUSH, first, *joined(pushes), last]


def test_lists_keep_the_order_of_what_is_about_one_partition() -> None:
    older, newer = of(PULLED, 1), of(PULLED.but(version=6), 0, 1)
    assert joined([newer[0], *older, newer[1]]) == [newer[0], *older, newer[1]]


@pytest.mark.parametrize(
    "other",
    [
        {"step": 9},
        {"table": 9},
        {"version": 9},
        {"rank": 9},
        {"worker": 9},
        {"incarnation": 9},
        {"hyper": 9},
        {"weight": 9.0},
        {"codec": 1},
        {"flags": SHARED | 2},
    ],
    ids=lambda it: next(iter(it)),
)
def test_what_differs_in_more_is_in_no_list(other: dict[str, float]) -> None:
    frames = [PUSH, PUSH.but(partition=1, **other)]
    assert joined(frames) == frames


@pytest.mark.parametrize(
    "frame",
    [
        PUSH.but(flags=0),
        PUSH.but(payload=b"1234"),
        PUSH.but(meta=b"\1"),
        PULLED.but(flags=0, payload=b"1234"),
        PULLED.but(flags=SHARED | TIMED, hyper=8),
        FREE,
        Frame(kind=Kind.ABSTAIN, meta=meta.listed([3])),
        Frame(kind=Kind.LOAD, flags=SHARED),
    ],
    ids=str,
)
def test_what_has_something_of_its_own_is_in_no_list(frame: Frame) -> None:
    frames = of(frame, 1, 2)
    assert joined(frames) == frames


def test_weights_with_other_clocks_are_in_another_list() -> None:
    later = PULLED.but(meta=meta.clocks([(0, 5), (1, 6)]))
    made = joined([*of(PULLED, 3, 2), *of(later, 1, 0)])
    assert [(partitions(it), bytes(clocks(it))) for it in made] == [
        ((3, 2), PULLED.meta),
        ((1, 0), later.meta),
    ]


def test_weights_are_asked_for_behind_all_pushes_that_leave_with_it() -> None:
    """And each partition once, also where a push or a question was sent again."""
    made = joined([*of(PUSH, 9, 8), pull(9, 8), *of(PUSH, 7, 8), pull(7, 8)])
    assert [(it.kind, partitions(it) if it.kind is Kind.PUSH else meta.read_listed(it)) for it in made] == [
        (Kind.PUSH, (9, 8, 7)),
        (Kind.PULL, (9, 8, 7)),
    ]


@pytest.mark.parametrize("flag", [READ, CUT])
def test_what_is_asked_otherwise_keeps_its_place(flag: int) -> None:
    frames = [pull(2, flags=flag), pull(1, flags=flag)]
    assert joined(frames) == frames


def test_other_frames_keep_their_place() -> None:
    made = joined([*of(ACK, 1, 2), FREE, *of(ACK, 3, 4)])
    assert [(it.kind, partitions(it)) for it in made] == [
        (Kind.ACK, (1, 2)),
        (Kind.FREE, (0,)),
        (Kind.ACK, (3, 4)),
    ]


@pytest.mark.parametrize(
    "frame",
    [
        PUSH.but(flags=SHARED | LISTED),
        PUSH.but(flags=SHARED | LISTED, meta=b"123"),
        ACK.but(flags=LISTED, meta=meta.listed([4, 4])),
        PULLED.but(flags=SHARED | LISTED, hyper=0),
        PULLED.but(flags=SHARED | LISTED, hyper=7),
        PULLED.but(flags=SHARED | LISTED, hyper=1 << 30),
    ],
    ids=str,
)
def test_a_list_that_is_none_is_refused(frame: Frame) -> None:
    with pytest.raises(FrameMalformed, match="list"):
        partitions(frame)


def test_a_place_has_one_tensor_of_each_dtype() -> None:
    """And what is written there is seen in all of them."""
    memory = bytearray(8)
    place = SharedPlace(memoryview(memory))
    floats, halves = as_tensor(place, torch.float32), as_tensor(place, torch.bfloat16)
    assert as_tensor(place, torch.float32) is floats
    assert (len(place), len(floats), len(halves)) == (8, 2, 4)
    memory[:] = struct.pack("<2f", 1.0, 2.0)
    assert floats.tolist() == [1.0, 2.0]
