"""Frames that differ in their partition alone, sent as one with a list, and taken apart again.

Where payloads stay in shared memory a frame is all that travels, and what it costs is its handling at both
ends. What leaves together then leaves as one: pushes, what asks for weights, acknowledgements, and the word
that weights are there. A list changes nothing else: each partition of it is noted, taken, answered and, after
a connection broke, sent again by itself.

It must not know sockets, or what a frame means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from ps_wire.frames import meta
from ps_wire.frames.frame import CUT, LISTED, READ, SHARED, TIMED, Frame, Kind

_same = attrgetter(
    "kind", "codec", "flags", "table", "rank", "step", "version", "worker", "incarnation", "hyper", "weight"
)


def joined(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Frames that leave together; those of one list in the place of its first.

    So what asks for weights comes behind the pushes that it stood between. Frames about one partition keep
    their order, whatever list they are in.
    """
    if len(frames) == 1:
        return frames
    made: list[Frame] = []
    run = _Run()
    for frame in frames:
        joins = _joins(frame)
        if joins and run.takes(frame):
            continue
        made += run.lists()
        run = _Run()
        if joins:
            run.takes(frame)  # as the first of all
        else:
            made.append(frame)
    made += run.lists()
    return made


class _Run:
    """Frames that may change places, where that leaves those about one partition in their order."""

    def __init__(self) -> None:
        self._alike: dict[object, tuple[int, list[Frame]]] = {}  # lists, each with its place among them
        self._last: dict[tuple[int, int], int] = {}  # by table and partition, the place of its last frame

    def takes(self, frame: Frame) -> bool:
        """Puts a frame into its list; False: it would leave before one about a partition that it names."""
        pulls = frame.kind is Kind.PULL
        key = _same(frame), bytes(frame.meta) if frame.kind is Kind.PULLED else b""
        place, alike = self._alike.setdefault(key, (len(self._alike), []))
        named = meta.read_listed(frame) if pulls else (frame.partition,)
        if any(self._last.get((frame.table, at), 0) > place for at in named):
            return False
        self._last.update(((frame.table, at), place) for at in named)
        alike.append(frame)
        return True

    def lists(self) -> Iterator[Frame]:
        """The frames that leave, in their order."""
        for _, group in self._alike.values():
            yield group[0] if len(group) == 1 else _list(group)


def _joins(frame: Frame) -> bool:
    if frame.payload or frame.flags & LISTED:
        return False
    match frame.kind:
        case Kind.PUSH:
            return bool(frame.flags & SHARED) and not frame.meta
        case Kind.PULLED:
            return bool(frame.flags & SHARED) and not frame.flags & TIMED
        case Kind.PULL:
            return not frame.flags & (READ | CUT)
        case Kind.ACK:
            return True
    return False


def _list(group: Sequence[Frame]) -> Frame:
    """A partition may be there twice, where its frame was sent again: it is listed once."""
    first = group[0]
    if first.kind is Kind.PULL:
        return meta.part(first, list(dict.fromkeys(at for it in group for at in meta.read_listed(it))))
    indices = list(dict.fromkeys(it.partition for it in group))
    hyper = len(indices) if first.kind is Kind.PULLED else first.hyper
    flags, listed = first.flags | LISTED, meta.listed(indices) + first.meta
    return first.but(partition=indices[0], flags=flags, hyper=hyper, meta=listed)


def partitions(frame: Frame) -> tuple[int, ...]:
    """Those that a frame is about: of its list, in its order, or its own.

    Raises:
        FrameMalformed: its list is empty, cut short, or names a partition twice.
    """
    if not frame.flags & LISTED:
        return (frame.partition,)
    return meta.read_listed(frame, frame.hyper if frame.kind is Kind.PULLED else None)


def clocks(frame: Frame) -> bytes | memoryview:
    """The clocks of members in the meta of a PULLED, behind its list if it has one."""
    return frame.meta[4 * frame.hyper :] if frame.flags & LISTED else frame.meta
