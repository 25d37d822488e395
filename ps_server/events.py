"""What happened to a job and its members: a line of the log each, and how often each kind came.

A line is `job NAME: event=KIND key=value ...`, then details in brackets.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque
from collections.abc import Mapping
from enum import StrEnum

from ps_server.log import logger
from ps_server.member import Member
from ps_wire.epoch_use import EpochUse

KEPT = 20  # lines for status


class Event(StrEnum):
    """A kind."""

    JOIN = "join"
    REJOIN = "rejoin"
    RESUME = "resume"
    RETRY = "retry"
    LEAVE = "leave"
    DRAIN = "drain"
    FINISH = "finish"
    EVICT = "evict"
    DROP = "drop"
    EPOCH = "epoch"
    RESTORE = "restore"
    LOSE = "lose"
    ROLL_BACK = "rollback"


MEANING: Mapping[str, str] = {
    "join": "a worker is a member from now on",
    "rejoin": "a worker that was evicted is a member again, under a new incarnation",
    "resume": "a worker's stream to the coordinator broke, and another one goes on",
    "retry": "a worker's data connection to a shard broke, and another one says again what was not answered",
    "leave": "a worker has left",
    "drain": "a worker was told to stop (SIGTERM), and has left after its step",
    "finish": "a worker has no more data",
    "evict": "a worker was silent for longer than its lease: the others go on without it",
    "drop": "pushes of a worker came too late, and were not applied",
    "epoch": "all samples of an epoch have been handed out that will be",
    "restore": "state of the job was read from a snapshot or a hand-off file",
    "lose": "a shard's part of the job is gone, or void: all go back to a snapshot, or the job ends",
    "rollback": "all went back to a snapshot, for a shard had lost its part",
}


def line_of(event: Event, facts: Mapping[str, object]) -> str:
    """How an event is logged."""
    return " ".join([f"event={event.value}", *(f"{name}={value}" for name, value in facts.items())])


class Events:
    """See the module's docstring. Used on the event loop only.

    Attributes:
        counts: kind -> how often it came.
        last: lines with their times, the newest last.
    """

    def __init__(self, job: str) -> None:
        self.counts: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=KEPT)
        self._job = job

    def record(self, event: Event, member: Member, *, epoch: int, detail: str = "") -> None:
        """Counts and logs what happened to a member."""
        self.say(
            event,
            worker=member.worker,
            incarnation=member.incarnation,
            host=member.host,
            pid=member.pid,
            epoch=epoch,
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
