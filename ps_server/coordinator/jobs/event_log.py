"""The events of one job on the coordinator: a line of the log each, and how often each kind came."""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque
from collections.abc import Mapping

from ps_server.coordinator.jobs.member import Member
from ps_server.events import Event, line_of
from ps_server.log import logger
from ps_wire.spec.epoch_use import EpochUse

KEPT = 20  # lines for status


class Events:
    """The events of one job: how often each kind came, and the last lines. Used on the event loop only.

    Attributes:
        counts: kind -> how often it came.
        last: lines with their times, the newest last.
    """

    def __init__(self, job: str) -> None:
        self.counts: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=KEPT)
        self._job = job

    def count(self, kind: str) -> None:
        """One more of something that the log says in words of its own."""
        self.counts[kind] += 1

    def load(self, counts: Mapping[str, int]) -> None:
        """Goes on from what the coordinator before this one has counted."""
        self.counts.update(counts)

    def record(self, event: Event, member: Member, *, membership_epoch: int, detail: str = "") -> None:
        """Counts and logs what happened to a member."""
        self.say(
            event,
            worker=member.worker,
            incarnation=member.incarnation,
            host=member.host,
            pid=member.pid,
            epoch=membership_epoch,
            detail=detail,
        )

    def record_epoch(self, use: EpochUse) -> None:
        """Counts and logs the account of an epoch that is over."""
        samples, unused = (use.samples, use.unused) if use.samples else ("?", "?")
        self.say(
            Event.EPOCH,
            loader=use.loader,
            number=use.epoch,
            samples=samples,
            used=use.used,
            unused=unused,
            handed_on=use.handed_on,
        )

    def say(self, event: Event, *, detail: str = "", **facts: object) -> None:
        """Counts and logs an event."""
        self.counts[event.value] += 1
        line = line_of(event, facts) + (f" ({detail})" if detail else "")
        now = dt.datetime.now(dt.UTC)
        self.last.append(f"{now:%Y-%m-%dT%H:%M:%SZ} {line}")
        logger.info("job %s: %s", self._job, line)
