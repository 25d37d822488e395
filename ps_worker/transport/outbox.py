"""Frames on their way to a shard over one connection, in order; pushes of first layers overtake others.

What is asked for is asked as early as it may be: behind the push of the same partition, before pushes of
others that still wait here. So weights come while gradients leave, and not after them. A PULL is divided
where pushes of `PULL_BYTES` lie between, and not oftener, since each frame has its cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.queue import FrameQueue
from ps_wire.sockets.frame_socket import pop_batch

PULL_BYTES = 16 << 20


class FrameOutbox:
    """The queue of frames to a shard.

    Who sends iterates over it; it ends with `close`. Thread-safe for one who takes and any who put.
    """

    def __init__(self, hello: wire.Frame) -> None:
        """Takes the frame that comes first."""
        self._frames: FrameQueue[wire.Frame] = FrameQueue(
            lambda frame: frame, bulk=wire.Kind.PUSH, others_wait=True
        )
        self._frames.append(hello)
        self._changed = threading.Condition()
        self._closed = False

    def put(self, frames: Iterable[wire.Frame]) -> None:
        """Queues frames; a payload must stay as it is until the shard has acknowledged it."""
        with self._changed:
            for frame in frames:
                asks = frame.kind is wire.Kind.PULL and not frame.flags
                for part in _mixed(frame, self._frames.pop_last()) if asks else [frame]:
                    self._frames.append(part)
            self._changed.notify()

    def close(self) -> None:
        """Queues nothing more; what is queued still leaves."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> wire.Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed)
            if not self._frames:
                raise StopIteration
            return self._frames.popleft()

    def batch(self, bytes_of: Callable[[wire.Frame], int] | None = None) -> list[wire.Frame]:
        """See `FramesOut.batch`."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed)
            return pop_batch(self._frames, bytes_of or (lambda frame: frame.nbytes))


def _mixed(pull: wire.Frame, pushes: Sequence[wire.Frame]) -> Iterator[wire.Frame]:
    """The pushes in order, and parts of the PULL as early as each may be.

    A push may be there twice, where it was sent again: what is asked for is asked once, behind the last one.
    """
    wanted = meta.read_listed(pull)
    last = {push.partition: index for index, push in enumerate(pushes) if push.table == pull.table}
    mine = last.keys() & set(wanted)
    if not mine:
        yield pull
        yield from pushes
        return
    if ready := [index for index in wanted if index not in mine]:
        yield meta.part(pull, ready)
    ready, between = [], 0
    for index, push in enumerate(pushes):
        if ready and between >= PULL_BYTES:
            yield meta.part(pull, ready)
            ready, between = [], 0
        yield push
        between += push.nbytes
        if push.partition in mine and last[push.partition] == index:
            ready.append(push.partition)
    if ready:
        yield meta.part(pull, ready)
