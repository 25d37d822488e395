"""Kinds of events in the life of a job and its members, and the line of the log that each makes.

A line is `job NAME: event=KIND key=value ...`, then details in brackets.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


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
