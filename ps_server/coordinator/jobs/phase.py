"""The phases of a job, and what can follow each. Pure; `job` says when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ps_wire.errors import PsError


class JobState(StrEnum):
    """One of four; `job` says what they mean."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


NEXT: Mapping[JobState, frozenset[JobState]] = {
    # Back to WAITING: its state is given up, or it goes back to a snapshot; to ENDED: to one of its end.
    JobState.WAITING: frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.ENDED}),
    JobState.RUNNING: frozenset({JobState.WAITING, JobState.SUSPENDED, JobState.ENDED}),
    JobState.SUSPENDED: frozenset({JobState.WAITING, JobState.RUNNING, JobState.ENDED}),
    # RUNNING: a table's start was under way when the last who trained went; the removal of that one ends it.
    JobState.ENDED: frozenset({JobState.WAITING, JobState.RUNNING}),
}


@dataclass(slots=True)
class Phase:
    """The state of a job with what decides how it goes on. Not thread-safe.

    Attributes:
        state: changed by `enter`.
        membership_epoch: grows with every change of members.
        restored: the job is back from a snapshot, and nobody has begun to train yet.
        any_finished: a worker has had no more data.
        has_final_state: the last state outside tables is here.
        broken: why those who are here were told to go. It is not handed on: they have to be gone by then.
    """

    state: JobState = JobState.WAITING
    membership_epoch: int = 0
    restored: bool = False
    any_finished: bool = False
    has_final_state: bool = False
    broken: PsError | None = None

    @property
    def has_state(self) -> bool:
        """Whether there is something to keep: tables have started."""
        return self.state is not JobState.WAITING or self.restored

    def enter(self, state: JobState) -> None:
        """Goes on to a state that can follow, or stays."""
        assert state is self.state or state in NEXT[self.state], (self.state, state)
        self.state = state

    def change_members(self) -> int:
        """The members are others now; returns the epoch of the membership."""
        self.membership_epoch += 1
        return self.membership_epoch

    def send_away(self, why: PsError) -> None:
        """Those who are here are told to go; a reason that they were told before stays."""
        self.broken = self.broken or why

    def take_in(self) -> None:
        """Nobody is here any more who was told to go: others may come."""
        self.broken = None

    def see_finished(self) -> None:
        """A worker has had no more data."""
        self.any_finished = True

    def keep_final_state(self) -> None:
        """The last state outside tables is here."""
        self.has_final_state = True

    def train(self) -> None:
        """Somebody trains, or nobody has come back who could: it is no more as the snapshot has it."""
        self.restored = False

    def roll_back(self, *, ended: bool, has_final_state: bool) -> None:
        """The job is as a snapshot has it, which is of its end or not; members are as they were."""
        self.change_members()
        self.enter(JobState.ENDED if ended else JobState.WAITING)
        self.restored, self.any_finished, self.broken = not ended, ended, None
        self.has_final_state = has_final_state

    def clear(self) -> None:
        """The job's state is given up."""
        self.enter(JobState.WAITING)
        self.restored = self.any_finished = self.has_final_state = False

    def dump(self) -> dict[str, Any]:
        """All but `broken`, for JSON."""
        return {
            "state": self.state.value,
            "epoch": self.membership_epoch,
            "has_final_state": self.has_final_state,
            "_any_finished": self.any_finished,
            "_restored": self.restored,
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped."""
        self.state = JobState(facts["state"])
        self.membership_epoch = facts["epoch"]
        self.has_final_state = facts["has_final_state"]
        self.any_finished = facts["_any_finished"]
        self.restored = facts["_restored"]
