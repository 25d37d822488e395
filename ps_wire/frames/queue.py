"""Frames that wait for their connection, those of a model's first layers first.

A push or a reply of a partition may overtake those of later layers, for the next forward needs the first ones
first, and backward makes their gradients last. What has been taken is on its way and is not overtaken: the
window of what is under way is what a carrier takes at a time, a batch, and what its socket holds.

Layers that come first have the highest partitions, since buckets are filled in the order of backward. Not
thread-safe.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from ps_wire.frames import frame as wire

Queued = TypeVar("Queued")


class FrameQueue(Generic[Queued]):
    """Frames that wait to be sent, in the order in which they may leave."""

    def __init__(
        self, frame_of: Callable[[Queued], wire.Frame], *, bulk: wire.Kind, others_wait: bool
    ) -> None:
        """Empty.

        Args:
            frame_of: of what is queued.
            bulk: the kind whose frames may overtake each other.
            others_wait: frames of other kinds keep their place between these, as a PULL that speaks of the
                pushes before it; else they go first, as what answers at once.
        """
        self._frame_of = frame_of
        self._bulk = bulk
        self._others_wait = others_wait
        self._heap: list[tuple[int, int, int, Queued]] = []
        self._line = 0  # where others wait: how many stand there
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, queued: Queued) -> None:
        """Puts something in its place."""
        frame = self._frame_of(queued)
        self._count += 1
        if frame.kind is self._bulk:
            key = (self._line + 1, -frame.partition, self._count)
        else:
            self._line += 2 * self._others_wait
            key = (self._line, 0, self._count)
        heapq.heappush(self._heap, (*key, queued))

    def pop_last(self) -> list[Queued]:
        """Takes the frames of the kind that may overtake that stand behind all others, in their order."""
        last = [entry for entry in self._heap if entry[0] > self._line]
        if last:
            self._heap = [entry for entry in self._heap if entry[0] <= self._line]
            heapq.heapify(self._heap)
        return [entry[-1] for entry in sorted(last)]

    def popleft(self) -> Queued:
        """Takes what is next; raises `IndexError` where there is nothing."""
        return heapq.heappop(self._heap)[-1]
