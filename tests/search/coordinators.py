"""What a search of all states of the service knows of coordinators: their states, as values.

A node is what a coordinator has in one state: its job with members and mailboxes, kept as what it hands off
when it stops (`coordinator_state`); its agenda; who its shards are (`Fleet`, `ShardRegistry`); whether the
job is going back (`Recovery`). `search_coordinator_visits` has what an input does, `search_coordinator_nodes`
all nodes that were met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ps_server.coordinator.fleet.ballots import Ballots
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.jobs.action_queue import ActionQueue
from ps_server.coordinator.jobs.actions import Action
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_wire.v1 import coordinator_pb2 as pb
from tests.search.shards import JOB, Input, Output

LEASE_S = 10.0
AT_ONCE = ("waiting", "notice", "joined", "table_made", "table_started", "upload_final", "ended")

Sent = tuple[bytes, bytes, tuple[bytes | None, ...]]  # an order, the boot of shard 1, the answers so far


class OnDisk(Generations):
    """Numbers of a state directory that is part of the state that is searched."""

    def __init__(self, last: int, own: int | None = None) -> None:
        """Takes the last number there is; `own` is None where a coordinator starts."""
        super().__init__(None)
        self._last, self.own = last, own or 0
        if own is None:
            self.own = self.next()

    @property
    def lasting(self) -> bool:
        return True


class Desk(JobRunner):
    """A room whose agenda the search carries out."""

    def do(self, actions: Sequence[Action]) -> None:
        self._actions.add(actions)


@dataclass(slots=True, eq=False, repr=False)
class CoordinatorNode:
    """See the module's docstring.

    Attributes:
        members: worker -> its incarnation and state.
        heard: (worker, incarnation) of those who have a mailbox.
        told: of those, who have something to hear.
        complete: all shards follow.
        recovers: "", "waits" for all shards, "loads".
        idle: nothing is under way: it can be handed on.
    """

    number: int
    room: dict[str, Any] | None
    agenda: ActionQueue
    standings: Mapping[int, tuple[bytes, int]]
    last: int
    own: int
    own_shard: int
    complete: bool
    recovers: str
    again: bool
    sent: Sent | None
    waits: pb.Order | None
    ballots: Ballots
    members: dict[int, tuple[int, str]] = field(default_factory=dict)
    heard: frozenset[tuple[int, int]] = frozenset()
    told: frozenset[tuple[int, int]] = frozenset()
    state: str = ""
    memo: dict[Input, tuple[CoordinatorNode, tuple[Output, ...]]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self.recovers and self.sent is self.waits is None and self.agenda.empty


@dataclass(slots=True)
class Jobs:
    """The one job that there is.

    Attributes:
        at_least: so many workers start it; 0: all.
        saved: its snapshots, by name.
    """

    consistency: str
    workers: int
    at_least: int = 0
    saved: dict[str, SavedJob] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        """As it is when nobody has come."""
        return Job(JOB, self.consistency, self.workers, min_workers=self.at_least)


def boot_of(number: int) -> bytes:
    """What a process draws when it starts."""
    return number.to_bytes(4, "big")
