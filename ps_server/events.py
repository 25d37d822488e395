"""What happened to the members of a job: a line of the log each, and how often each kind came."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from ps_server.log import logger
from ps_server.member import Member


class Event(StrEnum):
    """A kind."""

    JOIN = "join"
    REJOIN = "rejoin"
    RESUME = "resume"
    LEAVE = "leave"
    FINISH = "finish"
    EVICT = "evict"
    ROLL_BACK = "rollback"


class Events:
    """See the module's docstring. Used on the event loop only."""

    def __init__(self, job: str) -> None:
        self.counts: Counter[str] = Counter()
        self._job = job

    def record(self, event: Event, member: Member, *, epoch: int, detail: str = "") -> None:
        """Counts and logs an event."""
        self.counts[event.value] += 1
        logger.info(
            "job %s: event=%s worker=%d incarnation=%d host=%s pid=%d epoch=%d%s",
            self._job,
            event.value,
            member.worker,
            member.incarnation,
            member.host,
            member.pid,
            epoch,
            f" ({detail})" if detail else "",
        )
