"""The order in which frames leave: first layers, which have the highest partitions, before others."""

from __future__ import annotations

import pytest

from ps_wire.frames import frame as wire
from ps_wire.frames.queue import FrameQueue
from ps_wire.sockets.frame_socket import BATCH_FRAMES, LARGE_BYTES, pop_batch

PUSH, PULL, PULLED, ACK, HYPER = (
    wire.Kind.PUSH,
    wire.Kind.PULL,
    wire.Kind.PULLED,
    wire.Kind.ACK,
    wire.Kind.HYPER,
)


def filled(queue: FrameQueue[wire.Frame], *frames: tuple[wire.Kind, int]) -> FrameQueue[wire.Frame]:
    for kind, partition in frames:
        queue.append(wire.Frame(kind=kind, partition=partition))
    return queue


def pushes() -> FrameQueue[wire.Frame]:
    return FrameQueue(lambda frame: frame, bulk=PUSH, others_wait=True)


def replies() -> FrameQueue[wire.Frame]:
    return FrameQueue(lambda frame: frame, bulk=PULLED, others_wait=False)


def emptied(queue: FrameQueue[wire.Frame]) -> list[tuple[wire.Kind, int]]:
    return [(frame.kind, frame.partition) for frame in (queue.popleft() for _ in range(len(queue)))]


def test_a_push_of_the_first_layers_overtakes_those_that_still_wait():
    queue = filled(pushes(), (PUSH, 0), (PUSH, 1), (PUSH, 2))
    assert emptied(filled(queue, (PUSH, 9))) == [(PUSH, 9), (PUSH, 2), (PUSH, 1), (PUSH, 0)]


def test_what_is_no_push_keeps_its_place_between_pushes():
    """A PULL speaks of the pushes before it, and pushes of the hyper-parameters before them."""
    queue = filled(pushes(), (HYPER, 0), (PUSH, 1), (PUSH, 2), (PULL, 0), (HYPER, 0), (PUSH, 3), (PUSH, 4))
    assert emptied(queue) == [(HYPER, 0), (PUSH, 2), (PUSH, 1), (PULL, 0), (HYPER, 0), (PUSH, 4), (PUSH, 3)]


def test_answers_without_weights_wait_for_no_weights():
    queue = filled(replies(), (PULLED, 1), (ACK, 5), (PULLED, 3), (ACK, 4))
    assert emptied(queue) == [(ACK, 5), (ACK, 4), (PULLED, 3), (PULLED, 1)]


def test_of_one_partition_what_came_first_leaves_first():
    first, second = (wire.Frame(kind=PUSH, partition=1, step=step) for step in (3, 4))
    queue = pushes()
    queue.append(first)
    queue.append(second)
    assert [queue.popleft(), queue.popleft()] == [first, second]
    with pytest.raises(IndexError):
        queue.popleft()


def test_a_batch_ends_with_the_first_large_payload():
    """The window of what cannot be overtaken any more."""
    queue = pushes()
    for partition in range(3):
        payload = bytes(LARGE_BYTES) if partition == 1 else b""
        queue.append(wire.Frame(kind=PUSH, partition=partition, payload=payload))
    assert [frame.partition for frame in pop_batch(queue, lambda frame: len(frame.payload))] == [2, 1]
    filled(queue, *[(PUSH, 1)] * (2 * BATCH_FRAMES))
    assert len(pop_batch(queue, lambda frame: len(frame.payload))) == BATCH_FRAMES


def test_what_stands_behind_all_others_can_be_taken_back_in_its_order():
    queue = filled(pushes(), (PUSH, 7), (PULL, 0), (PUSH, 1), (PUSH, 2))
    assert [frame.partition for frame in queue.pop_last()] == [2, 1]
    assert queue.pop_last() == []
    assert emptied(queue) == [(PUSH, 7), (PULL, 0)]
