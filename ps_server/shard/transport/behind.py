"""Frames that have come behind a push while it is taken, and what of them asks for the weights that it makes.

Where a push is applied when it comes, weights can then go to who asks as they are made. It must not know
tables.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Protocol

from ps_wire.errors import FrameMalformed, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.sockets.frame_socket import close_all
from ps_wire.spec.codec import AS_THEY_ARE

MAX_FRAMES = 64  # that are looked at ahead of their turn


class Received(Protocol):
    """Where frames come from."""

    def received(self, *, reads: bool = False) -> wire.Frame | None:
        """See `FrameSocket.received`."""
        ...


class Behind:
    """The frames behind one that is being taken, in their order. For one thread.

    Partitions that a PULL asks for may be taken away before its turn.
    """

    def __init__(self, peer: Received) -> None:
        """Has looked at nothing."""
        self._peer = peer
        self._frames: deque[_Behind] = deque()
        self._error: PsError | None = None

    def asking(self, push: wire.Frame) -> wire.Frame | None:
        """Gives what asks for the weights that this push of one partition makes; None: nothing has come.

        Whoever gets it has to take it behind the push.
        """
        self._look()
        for it in self._frames:
            pull = it.asking(push)
            if pull is not None:
                return pull
        return None

    def next(self) -> wire.Frame | None:
        """Gives what is left of the next frame that has come, if it has no payload; never waits.

        Raises:
            PsError: what comes next is no frame, or nothing comes any more: see `FrameSocket.received`.
        """
        while self._frames:
            rest = self._frames.popleft().rest()
            if rest is not None:
                return rest
        if self._error is not None:
            raise self._error
        return self._peer.received()

    def close(self) -> None:
        """Takes none of what is left."""
        for it in self._frames:
            close_all(it.frame.descriptors)

    def _look(self) -> None:
        while self._error is None and len(self._frames) < MAX_FRAMES:
            try:
                frame = self._peer.received(reads=True)
            except PsError as error:  # of what comes next: those before it are taken first
                self._error = error
                return
            if frame is None:
                return
            self._frames.append(_Behind(frame))


class _Behind:
    """One frame; `_left` are the partitions of a PULL that are not taken."""

    __slots__ = ("_left", "_whole", "frame")

    def __init__(self, frame: wire.Frame) -> None:
        self.frame = frame
        self._left: dict[int, None] = {}
        self._whole = True
        if frame.kind is wire.Kind.PULL and not frame.flags and frame.codec == AS_THEY_ARE:
            with suppress(FrameMalformed):  # it is refused when its turn comes
                self._left = dict.fromkeys(meta.read_listed(frame))

    def asking(self, push: wire.Frame) -> wire.Frame | None:
        frame = self.frame
        if push.partition not in self._left or not _follows(frame, push):
            return None
        del self._left[push.partition]
        self._whole = False
        return meta.part(frame, (push.partition,))

    def rest(self) -> wire.Frame | None:
        if self._whole:
            return self.frame
        return meta.part(self.frame, tuple(self._left)) if self._left else None


def _follows(pull: wire.Frame, push: wire.Frame) -> bool:
    """Whether it asks for what its own sender's push makes."""
    return (
        pull.table == push.table
        and pull.step == push.step + 1
        and (pull.worker, pull.rank, pull.incarnation) == (push.worker, push.rank, push.incarnation)
    )
