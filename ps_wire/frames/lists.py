"""Frames that differ in their partition alone, sent as one with a list, and taken apart again.

Where payloads stay in shared memory a frame is all that travels, and what it costs is its handling at both
ends. What leaves together then leaves as one: pushes, what asks for weights, acknowledgements, and the word
that weights are there. A list changes nothing else: each partition of it is noted, taken, answered and, after
a connection broke, sent again by itself.

It must not know sockets, or what a frame means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from ps_wire.frames import meta
from ps_wire.frames.frame import CUT, LISTED, READ, SHARED, TIMED, Frame, Kind

_same = attrgetter(
    "kind", "codec", "flags", "table", "rank", "step", "version", "worker", "incarnation", "hyper", "weight"
)


def joined(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Frames that leave together, in order; those of one list in the place of its first.

    What asks for weights comes behind the pushes that it stood between.
    """
    if len(frames) == 1:
        return frames
    made: list[Frame] = []
    alike: dict[object, list[Frame]] = {}
    for frame in frames:
        if _joins(frame):
            clocks = bytes(frame.meta) if frame.kind is Kind.PULLED else b""
            alike.setdefault((_same(frame), clocks), []).append(frame)
        else:
            made += _lists(alike.values())
            alike = {}
            made.append(frame)
    made += _lists(alike.values())
    return made


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


def _lists(groups: Iterable[Sequence[Frame]]) -> Iterator[Frame]:
    for group in sorted(groups, key=lambda it: it[0].kind is Kind.PULL):
        yield group[0] if len(group) == 1 else _list(group)


def _list(group: Sequence[Frame]) -> Frame:
    """A partition may be there twice, where its frame was sent again: it is listed once."""
    first = group[0]
    if first.kind is Kind.PULL:
        return meta.part(first, list(dict.fromkeys(at for it in group for at in meta.read_listed(it))))
    indices = list(dict.fromkeys(it.partition for it in group))
    hyper = len(indices) if first.kind is Kind.PULLED else first.hyper
    flags, listed = first.flags | LISTED, meta.listed(indices) + first.meta
    return replace(first, partition=indices[0], flags=flags, hyper=hyper, meta=listed)


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
