"""In which order frames leave: each behind what it needs, weights asked for as early as they may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_worker.transport.outbox import PULL_BYTES, FrameOutbox

MIB = bytes(1 << 20)
HELLO = wire.Frame(kind=wire.Kind.HELLO)


PAYLOADS = [MIB * count for count in range(5)]


def push(partition: int, payload: bytes = b"", table: int = 0) -> wire.Frame:
    return wire.Frame(kind=wire.Kind.PUSH, table=table, partition=partition, payload=payload)


def pull(*partitions: int, flags: int = 0) -> wire.Frame:
    place = {"partition": partitions[0], "meta": meta.listed(partitions), "flags": flags}
    return wire.Frame(kind=wire.Kind.PULL, step=7, **place)  # type: ignore[arg-type]


def left(*frames: wire.Frame) -> list[tuple[wire.Kind, tuple[int, ...]]]:
    """Kinds and partitions in the order in which they leave when nothing has left before."""
    outbox = FrameOutbox(HELLO)
    outbox.put(frames)
    outbox.close()
    return [
        (frame.kind, meta.read_listed(frame) if frame.kind is wire.Kind.PULL else (frame.partition,))
        for frame in list(outbox)[1:]
    ]


def test_a_pull_goes_round_pushes_of_other_partitions():
    before, behind = left(push(4), push(5), pull(9, 5))[0], left(push(4), push(5), pull(9, 5))[-1]
    assert before == (wire.Kind.PULL, (9,))
    assert behind == (wire.Kind.PULL, (5,))


def test_what_is_pushed_in_small_pieces_is_asked_for_together():
    assert left(push(0), push(1), push(2), pull(2, 1, 0))[-1] == (wire.Kind.PULL, (2, 1, 0))


def test_what_is_pushed_twice_is_asked_for_once_behind_the_second():
    """A push is sent again where it is not certain that it was queued."""
    assert left(push(5), push(4), push(5), pull(5, 4))[-1] == (wire.Kind.PULL, (5, 4))
    assert left(push(5, MIB), push(4, MIB), push(5, MIB), pull(9, 5))[0] == (wire.Kind.PULL, (9,))


def test_a_pull_passes_nothing_but_pushes():
    share = wire.Frame(kind=wire.Kind.SHARE)
    kinds = [kind for kind, _ in left(push(0), share, push(1), pull(9))]
    assert kinds == [wire.Kind.PUSH, wire.Kind.SHARE, wire.Kind.PULL, wire.Kind.PUSH]


def test_what_is_asked_for_past_the_gate_keeps_its_place():
    assert left(push(4), pull(9, flags=wire.READ))[-1] == (wire.Kind.PULL, (9,))


@given(st.permutations(range(40)), st.sets(st.integers(0, 45), min_size=1), st.lists(st.integers(0, 4)))
def test_each_partition_is_asked_for_once_and_behind_its_push(pushed, wanted, sizes):
    """Whatever is queued, and however large it is; of pushes those of first layers are first."""
    frames = [push(index, PAYLOADS[sizes[index] if index < len(sizes) else 3]) for index in pushed]
    got = left(*frames, pull(*sorted(wanted, reverse=True)))
    assert [place for kind, (place, *_) in got if kind is wire.Kind.PUSH] == sorted(pushed, reverse=True)
    asked = [index for kind, listed in got if kind is wire.Kind.PULL for index in listed]
    assert sorted(asked) == sorted(wanted)
    seen: set[int] = set()
    for kind, listed in got:
        if kind is wire.Kind.PUSH:
            seen.update(listed)
        else:
            assert all(index in seen for index in listed if index in pushed)


def test_weights_come_back_while_gradients_leave():
    """A part of the PULL leaves after each `PULL_BYTES` of pushes."""
    count = 3 * PULL_BYTES // len(MIB)
    got = left(*[push(index, MIB) for index in range(count)], pull(*range(count)))
    places = [place for place, (kind, _) in enumerate(got) if kind is wire.Kind.PULL]
    assert len(places) == 3
    assert places[0] <= PULL_BYTES // len(MIB)


def test_another_tables_pushes_hold_nothing_back():
    assert left(push(3, table=1), pull(3))[0] == (wire.Kind.PULL, (3,))


def test_pushes_whose_payload_does_not_travel_leave_together():
    """A payload that does is the last of its batch, for it is held until all have left."""
    batches = []
    for travels in (True, False):
        outbox = FrameOutbox(HELLO)
        outbox.put([push(1, MIB), push(0, MIB)])
        outbox.close()
        sizes = []
        while frames := outbox.batch(None if travels else lambda _: 0):
            sizes.append(len(frames))
        batches.append(sizes)
    assert batches == [[2, 1], [3]]
