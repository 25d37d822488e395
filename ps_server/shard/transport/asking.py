"""A frame that has come right behind a push, and what of it asks for the weights which that push makes.

Where a push is applied when it comes, weights can then go to who asks as they are made. It must not know
tables.
"""

from __future__ import annotations

from ps_wire.errors import FrameMalformed
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.spec.codec import AS_THEY_ARE


class Asking:
    """The frame behind a push, whatever it is; partitions of it are taken away one by one."""

    __slots__ = ("_frame", "_left", "_taken")

    def __init__(self, frame: wire.Frame) -> None:
        """Nothing of it is taken."""
        self._frame = frame
        self._left: dict[int, None] = {}
        self._taken = False

    def follows(self, push: wire.Frame) -> bool:
        """Whether it asks for weights as they are behind this push; then `of` gives what for."""
        frame = self._frame
        if frame.kind is not wire.Kind.PULL or frame.flags or frame.codec != AS_THEY_ARE:
            return False
        if (frame.table, frame.step) != (push.table, push.step + 1) or _sender(frame) != _sender(push):
            return False
        try:
            self._left = dict.fromkeys(meta.read_listed(frame))
        except FrameMalformed:
            return False  # it is refused when its turn comes
        return True

    def of(self, partition: int) -> wire.Frame | None:
        """What asks for a partition, once; None: nothing does."""
        if partition not in self._left:
            return None
        del self._left[partition]
        self._taken = True
        return meta.part(self._frame, (partition,))

    def rest(self) -> wire.Frame | None:
        """What is left of it; None: all was taken."""
        if not self._taken:
            return self._frame
        return meta.part(self._frame, tuple(self._left)) if self._left else None


def _sender(frame: wire.Frame) -> tuple[int, int, int]:
    return frame.worker, frame.rank, frame.incarnation
