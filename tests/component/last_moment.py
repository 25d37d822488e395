"""Weights that come at the last moment: each partition that is held back comes when somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ps_wire.frames import frame as wire
from ps_wire.frames import lists


def apart(frame: wire.Frame) -> list[wire.Frame]:
    """The frames of a list, as if each had come by itself."""
    if frame.kind is not wire.Kind.PULLED or not frame.flags & wire.LISTED:
        return [frame]
    alone = frame.but(flags=frame.flags & ~wire.LISTED, hyper=0, meta=bytes(lists.clocks(frame)))
    return [alone.but(partition=partition) for partition in lists.partitions(frame)]


class LastMoment:
    """Stands between an exchange and its connections.

    Attributes:
        waited: for each wait that let weights in: the partitions that it let in.
        never: partitions that no wait lets in.
    """

    def __init__(self, exchange: Any, held: Callable[[int, int], bool]) -> None:
        """`held(partition, step)`: whether these weights are held back."""
        self.waited: list[list[int]] = []
        self.never: set[int] = set()
        self._held = held
        self._lock = threading.Lock()
        self._wanted: frozenset[int] | None = frozenset()
        self._kept: dict[int, Any] = {}
        self._exchange = exchange
        self._take, self._wait = exchange.receive, exchange.wait_pulled
        self._wait_within = exchange.in_flight.all_pulled_within
        exchange.receive, exchange.wait_pulled = self.take, self.wait_pulled
        exchange.in_flight.all_pulled_within = self.all_pulled_within
        exchange.landing = lambda *_: None  # not a byte may be in its place before

    def take(self, listed: Any) -> None:
        for frame in apart(listed):
            self._take_one(frame)

    def _take_one(self, frame: Any) -> None:
        if frame.kind is wire.Kind.PULLED:
            with self._lock:
                wanted = self._wanted is None or frame.partition in self._wanted
                held = self._held(frame.partition, self._exchange.in_flight._pulls.step)
                if wanted and held:
                    self.waited.append([frame.partition])
                if frame.partition in self.never or (held and not wanted):
                    kept = frame.but(payload=bytes(frame.payload))  # the buffer is the connection's
                    self._kept[frame.partition] = kept
                    return
        self._take(frame)

    def wait_pulled(self, report: Any = None, wanted: frozenset[int] | None = None) -> None:
        self._let_in(wanted)
        try:
            self._wait(report, wanted)
        finally:
            self._wanted = frozenset()

    def all_pulled_within(self, limit_s: float) -> bool:
        self._let_in(None)
        return self._wait_within(limit_s)

    def _let_in(self, wanted: frozenset[int] | None) -> None:
        with self._lock:
            self._wanted = wanted
            let_in = [it for it in self._kept if (wanted is None or it in wanted) and it not in self.never]
            frames = [self._kept.pop(index) for index in let_in]
        if frames:
            self.waited.append(sorted(let_in))
        for frame in frames:
            self._take(frame)
