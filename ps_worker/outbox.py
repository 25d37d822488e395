"""Frames on their way to a shard over one connection, in order; pushes of first layers overtake others."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Self

from ps_wire import frame as wire
from ps_wire.frame_queue import FrameQueue
from ps_wire.frame_socket import take_batch


class Outbox:
    """Who sends iterates over it; it ends with `close`. Thread-safe for one who takes and any who put."""

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
                self._frames.append(frame)
            self._changed.notify()

    def close(self) -> None:
        """What is queued still leaves, and nothing after it."""
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

    def batch(self) -> list[wire.Frame]:
        """Waits for frames and takes those that leave together; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed)
            return take_batch(self._frames, lambda frame: frame)
