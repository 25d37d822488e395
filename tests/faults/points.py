"""Every point of the life of a push and of a pull, by name, and the spans of a process that they lie at.

A point is before or after a span of `ps_wire.process.trace`, on a worker or on a server. Its facts say whose
push or pull it is, and of which step (of a pull: the clock that it asks at). It must not know what
happens there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ps_wire.frames.frame import Frame, Kind

PUSH = (
    "worker before a push is queued",
    "worker after a push is queued",
    "worker before PUSH is sent",
    "worker after PUSH is sent",
    "server before PUSH is taken",
    "server before a push is staged",
    "server after a push is staged",
    "server after PUSH is taken",
    "server before a step is closed",
    "server before the mean",
    "server after the mean",
    "server before a push is applied",
    "server after a push is applied",
    "server after a step is closed",
    "server before ACK is sent",
    "server after ACK is sent",
    "worker before ACK is taken",
    "worker after ACK is taken",
    "server before FREE is sent",
    "server after FREE is sent",
    "worker before FREE is taken",
    "worker after FREE is taken",
)
PULL = (
    "worker before weights are asked for",
    "worker after weights are asked for",
    "worker before PULL is sent",
    "worker after PULL is sent",
    "server before PULL is taken",
    "server before a pull is noted",
    "server after a pull is noted",
    "server after PULL is taken",
    "server before a reply is made",
    "server after a reply is made",
    "server before PULLED is sent",
    "server after PULLED is sent",
    "worker before PULLED is taken",
    "worker after PULLED is taken",
    "worker before the wait for weights",
    "worker after the wait for weights",
)
POINTS = (*PUSH, *PULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known at a point; None: unknown, or of several."""

    worker: int | None = None
    step: int | None = None
    partition: int | None = None


Reading = Callable[..., Iterator[tuple[str, Facts | None]]]


def _of_frame(frame: Frame) -> Facts:
    whose = None if frame.kind is Kind.PULLED else frame.worker  # those are one message for all who asked
    return Facts(worker=whose, step=frame.step, partition=frame.partition)


def _frames(verb: str, *kinds: Kind) -> Reading:
    def read(_self: Any, given: Any, *_: Any) -> Iterator[tuple[str, Facts | None]]:
        for frame in [given] if isinstance(given, Frame) else given:
            if frame.kind in kinds and frame.step >= 1:  # an ACK of a LOAD is of step 0
                yield f"{frame.kind.name} is {verb}", _of_frame(frame)

    return read


def _call(what: str) -> Reading:
    def read(_self: Any, *_: Any, step: int, **__: Any) -> Iterator[tuple[str, Facts | None]]:
        yield what, Facts(step=step)

    return read


def _inside(what: str) -> Reading:
    """A span that knows nothing: it is about what its thread was about."""

    def read(*_: Any, **__: Any) -> Iterator[tuple[str, Facts | None]]:
        yield what, None

    return read


def _staged(cell: Any, contribution: Any) -> Iterator[tuple[str, Facts | None]]:
    facts = Facts(worker=contribution.worker, step=contribution.step, partition=cell._index)
    yield "a push is staged", facts


def _noted(partition: int, pull: Any) -> Iterator[tuple[str, Facts | None]]:
    yield "a pull is noted", Facts(worker=pull.worker, step=pull.clock, partition=partition)


def _closed(partition: int, step: int) -> Iterator[tuple[str, Facts | None]]:
    yield "a step is closed", Facts(step=step, partition=partition)


def _applied(cell: Any, action: Any, *_: Any) -> Iterator[tuple[str, Facts | None]]:
    workers = {item.worker for item in action.contributions}
    whose = workers.pop() if len(workers) == 1 else None
    yield "a push is applied", Facts(worker=whose, step=action.step, partition=cell._index)


def _replied(replies: Any, step: int, *_: Any, **__: Any) -> Iterator[tuple[str, Facts | None]]:
    yield "a reply is made", Facts(step=step, partition=replies.partition)


SPANS: Mapping[str, Mapping[str, Reading]] = {
    "worker": {
        "queue pushes": _call("a push is queued"),
        "ask for weights": _call("weights are asked for"),
        "send": _frames("sent", Kind.PUSH, Kind.PULL),
        "take an answer": _frames("taken", Kind.ACK, Kind.FREE, Kind.PULLED),
        "wait for weights": _inside("the wait for weights"),
    },
    "server": {
        "take a frame": _frames("taken", Kind.PUSH, Kind.PULL),
        "stage": _staged,
        "take a pull": _noted,
        "close": _closed,
        "mean": _inside("the mean"),
        "apply": _applied,
        "reply": _replied,
        "send": _frames("sent", Kind.ACK, Kind.FREE, Kind.PULLED),
    },
}
