"""Frames on their way to a shard over one connection, in order."""

from __future__ import annotations

import queue
from typing import Self

from ps_wire import frame as wire

BATCH_FRAMES = 64  # that leave together; a large one is the last
LARGE_BYTES = 64 << 10


class Outbox:
    """Who sends iterates over it; it ends with `close`. Thread-safe for one who takes and any who put."""

    def __init__(self, hello: wire.Frame) -> None:
        """Takes the frame that comes first."""
        self._frames: queue.SimpleQueue[wire.Frame | None] = queue.SimpleQueue()
        self._frames.put(hello)

    def put(self, frame: wire.Frame) -> None:
        """Queues a frame; its payload must stay as it is until the shard has acknowledged it."""
        self._frames.put(frame)

    def close(self) -> None:
        """What is queued still leaves, and nothing after it."""
        self._frames.put(None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> wire.Frame:
        frame = self._frames.get()
        if frame is None:
            self._frames.put(None)
            raise StopIteration
        return frame

    def batch(self) -> list[wire.Frame]:
        """Waits for frames and takes those that leave together; none at the end."""
        frames: list[wire.Frame] = []
        for frame in self:
            frames.append(frame)
            if len(frames) == BATCH_FRAMES or len(frame.payload) >= LARGE_BYTES or self._frames.empty():
                break
        return frames
