"""A member of a job: one incarnation of one worker, and how far it is in the job. Pure.

Member: joining -> joined -> finishing -> finished -> left, or joined -> leaving -> left; lost (evicted) from
anywhere. After a rollback it is returning, from anywhere, until another incarnation takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class MemberState(StrEnum):
    """One of eight; see the module's docstring."""

    JOINING = "joining"
    JOINED = "joined"
    FINISHING = "finishing"
    FINISHED = "finished"
    LEAVING = "leaving"
    LEFT = "left"
    LOST = "lost"
    RETURNING = "returning"


_OUT = frozenset({MemberState.LEFT, MemberState.LOST})  # from anywhere: it goes at once, or is evicted
_HERE = _OUT | {MemberState.RETURNING}  # the job goes back to a snapshot
NEXT: Mapping[MemberState, frozenset[MemberState]] = {
    MemberState.JOINING: _OUT | {MemberState.JOINED, MemberState.LEAVING},
    MemberState.JOINED: _HERE | {MemberState.FINISHING, MemberState.LEAVING},
    MemberState.FINISHING: _HERE | {MemberState.FINISHED},
    MemberState.FINISHED: _HERE,
    MemberState.LEAVING: _HERE,
    MemberState.RETURNING: _OUT,
    MemberState.LEFT: frozenset({MemberState.LOST}),  # its removal is refused, which is said of whoever went
    MemberState.LOST: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class Member:
    """One incarnation of one worker.

    Attributes:
        state: changed by `become`.
        num_tables: that it has made since it came, or was told to come back.
        late: it came when the job had weights: it enters each table in two rounds, at a step that all name.
        lease_s: it is evicted when it has been silent for so long; 0: never.
        ranks: processes that share out its batches; 0: it has not said so yet.
        steps: that it has taken, as it says when it goes.
        taken: table -> steps whose pushes have left, as its heartbeats say. Not handed on: they say it again.
        enters: by table, the first step that a late one may enter at. Not handed on: who was about to enter
            does so at once.
    """

    worker: int
    incarnation: int
    host: str
    pid: int
    state: MemberState = MemberState.JOINING
    reader: bool = False
    num_tables: int = 0
    late: bool = False
    lease_s: float = 0.0
    ranks: int = 0
    steps: int = 0
    taken: Mapping[int, int] = field(default_factory=dict)
    enters: Mapping[int, int] = field(default_factory=dict)

    def become(self, state: MemberState) -> None:
        """Goes on to a state that can follow, or stays."""
        assert state is self.state or state in NEXT[self.state], (self.state, state)
        self.state = state

    def make_table(self) -> None:
        """It has made its next table."""
        self.num_tables += 1

    def enter_at(self, steps: Mapping[int, int]) -> None:
        """It came late, and may enter tables at these steps at the earliest."""
        self.enters = steps

    def say_taken(self, taken: Mapping[int, int]) -> None:
        """A heartbeat brings table -> steps whose pushes have left."""
        self.taken = taken

    def say_steps(self, steps: int) -> None:
        """It goes, and says how many steps it has taken."""
        self.steps = steps

    def send_back(self) -> None:
        """It is told to come back, to the tables of a snapshot, as another incarnation."""
        self.become(MemberState.RETURNING)
        self.num_tables = 0

    def be_known(self, incarnation: int, host: str) -> None:
        """One that was known from a snapshot alone is here: as this incarnation, from this host."""
        self.incarnation, self.host = incarnation, host

    @property
    def holder(self) -> str:
        """How people are told who it is."""
        if not self.host and not self.pid:
            return f"worker {self.worker}"
        return f"worker {self.worker} (host {self.host}, pid {self.pid})"

    @property
    def present(self) -> bool:
        """Whether it is still connected, as far as it has said."""
        return self.state not in (MemberState.LEFT, MemberState.LOST)

    def returns_from(self, incarnation: int) -> bool:
        """Whether it is told to come back, and this is the incarnation that it had, or nobody knows."""
        known = self.host or self.pid
        return self.state is MemberState.RETURNING and (not known or self.incarnation == incarnation)

    @property
    def unheard(self) -> bool:
        """Whether it trained at a snapshot's cut, and nothing was heard of it since: no shard knows it."""
        return self.state is MemberState.RETURNING and not self.host and not self.pid

    @property
    def trains(self) -> bool:
        """Whether the job waits for it."""
        return self.present and self.state is not MemberState.FINISHED and not self.reader

    def dump(self) -> dict[str, Any]:
        """For JSON; see the attributes for what is left out."""
        return {
            "state": self.state.value,
            "worker": self.worker,
            "incarnation": self.incarnation,
            "host": self.host,
            "pid": self.pid,
            "reader": self.reader,
            "num_tables": self.num_tables,
            "late": self.late,
            "lease_s": self.lease_s,
            "ranks": self.ranks,
            "steps": self.steps,
        }

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> Member:
        """Makes the member that was dumped."""
        return cls(**{**facts, "state": MemberState(facts["state"])})
