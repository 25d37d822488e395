"""One job on one shard: who may connect, who is in the gates, its tables. Guarded by the shard's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ps_server.agreement.gate import Gate, gate_of
from ps_server.agreement.refusals import evicted, rolled_back
from ps_server.events import Event, line_of
from ps_server.log import logger
from ps_server.shard.connection_tokens import UnusedTokens
from ps_server.shard.sessions import Retirable, Sessions
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import ServerNotReady, StrangerRefused
from ps_wire.spec import consistency
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.nonfinite import parse as parse_nonfinite


@dataclass(slots=True)
class ShardJob:
    """A job's part on this shard.

    Attributes:
        gate: of its consistency model.
        members: worker -> (incarnation, first step by table); those in the gates.
        known: worker -> live incarnation; members, and those who may only read.
        tokens: that are good for one connection each.
        sessions: the connections of its workers.
        fenced: worker -> the newest incarnation that was fenced; it and older ones may do nothing any more.
        events: kind -> how often it came here.
        floor: incarnations up to this one were before the rollback to `floor_step`; 0: there was none.
    """

    name: str
    consistency: consistency.Consistency
    num_workers: int
    nonfinite: NonFinite = NonFinite.ERROR
    members: dict[int, tuple[int, Mapping[int, int]]] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    tables: dict[int, ShardTable] = field(default_factory=dict)
    tokens: UnusedTokens = field(default_factory=UnusedTokens)
    sessions: Sessions = field(default_factory=Sessions)
    memory_bytes: int = 0
    fenced: dict[int, int] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    floor: int = 0
    floor_step: int = 0
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = gate_of(self.consistency)

    def is_member(self, worker: int, incarnation: int) -> bool:
        """Whether this incarnation is in the gates."""
        return self.members.get(worker, (None,))[0] == incarnation

    def reserve(self, nbytes: int) -> None:
        """A table of it takes so much memory."""
        self.memory_bytes += nbytes

    def release(self, nbytes: int) -> None:
        """A table that took so much is not there, or not any more."""
        self.memory_bytes -= nbytes

    def copy(self) -> ShardJob:
        """Of this moment, with the same tables and connections: for who reads it without the lock."""
        return replace(
            self,
            members=dict(self.members),
            known=dict(self.known),
            tables=dict(self.tables),
            tokens=self.tokens.copy(),
            sessions=self.sessions.copy(),
            fenced=dict(self.fenced),
            events=Counter(self.events),
        )

    def dump(self) -> dict[str, Any]:
        """The state that goes on elsewhere, as JSON: not its tables, connections, tokens and counts."""
        return {
            "name": self.name,
            "consistency": str(self.consistency),
            "num_workers": self.num_workers,
            "nonfinite": str(self.nonfinite),
            "members": [
                [worker, incarnation, list(clocks.items())]
                for worker, (incarnation, clocks) in self.members.items()
            ],
            "known": list(self.known.items()),
            "fenced": list(self.fenced.items()),
            "expelled": list(self.sessions.expelled),
            "floor": self.floor,
            "floor_step": self.floor_step,
        }

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> ShardJob:
        """Takes what `dump` gave, but for members: their tables have to be there, see `load_members`."""
        return cls(
            name=facts["name"],
            consistency=consistency.parse(facts["consistency"]),
            num_workers=facts["num_workers"],
            nonfinite=parse_nonfinite(facts["nonfinite"]),
            known=dict(facts["known"]),
            fenced=dict(facts["fenced"]),
            sessions=Sessions.of_expelled(facts["expelled"]),
            floor=facts["floor"],
            floor_step=facts["floor_step"],
        )

    def load_members(self, facts: Mapping[str, Any]) -> None:
        """Those of what `dump` gave; its tables know them already."""
        self.members.update(
            {worker: (incarnation, dict(clocks)) for worker, incarnation, clocks in facts["members"]}
        )

    def retire(self) -> None:
        """Nothing more is taken of its workers; waits for what is being taken."""
        for session in self.sessions.every():
            session.retire()

    def sever(self) -> None:
        """After `retire`: its connections end at once, and what they hold is free."""
        for session in self.sessions.every():
            session.sever()

    def put_table(self, table: ShardTable) -> None:
        """A table of it that is open from now on."""
        self.tables[table.spec.number] = table

    def drop_table(self, number: int) -> None:
        """Forgets a table that has not started."""
        del self.tables[number]

    # -- who is in it ----------------------------------------------------------------------------------

    def admit(self, worker: int, incarnation: int, clocks: Mapping[int, int] | None) -> None:
        """A worker may connect, and tokens of those before are void; with clocks it is a member."""
        self.known[worker] = incarnation
        self.tokens.forget(worker)
        if clocks is not None:
            self.members[worker] = (incarnation, dict(clocks))

    def enter(self, worker: int, incarnation: int, table: int, step: int) -> None:
        """Who may connect becomes a member of a table; `step` is its first."""
        known, clocks = self.members.get(worker, (incarnation, {}))
        clocks = {**clocks, table: step} if known == incarnation else {table: step}
        self.members[worker] = incarnation, clocks

    def leave(self, worker: int, incarnation: int) -> None:
        """A worker is no member any more; it may still connect, to read."""
        if self.is_member(worker, incarnation):
            del self.members[worker]

    def dismiss(self, worker: int, incarnation: int) -> tuple[Retirable, ...]:
        """A reader goes; returns the connections that it leaves."""
        self.known.pop(worker, None)
        self.tokens.forget(worker, incarnation)
        return self.sessions.pop(worker)

    def fence(self, worker: int, incarnation: int) -> tuple[Retirable, ...]:
        """This incarnation may do nothing any more; returns its connections, kept until the verdict."""
        if self.known.get(worker) == incarnation:
            del self.known[worker]
        self.leave(worker, incarnation)
        self.tokens.forget(worker, incarnation)
        self.fenced[worker] = max(incarnation, self.fenced.get(worker, 0))
        return self.sessions.expel(worker)

    def connect(self, worker: int, rank: int, session: Retirable) -> tuple[Retirable | None, bool]:
        """A rank of a worker connects; returns the connection before, and whether it had any: it counts."""
        incarnation = self.known.get(worker, 0)
        again = self.sessions.connected.get((worker, rank)) == incarnation
        self.events[Event.RETRY.value] += again
        return self.sessions.replace(worker, rank, incarnation, session), again

    def say(self, event: Event, **facts: object) -> None:
        """Counts and logs an event."""
        self.events[event.value] += 1
        logger.info("job %s: %s", self.name, line_of(event, facts))

    def check_known(self, worker: int, incarnation: int) -> None:
        """Refuses who has not joined.

        Raises:
            RolledBack: it is of a time that is undone.
            Evicted: it was silent for longer than its lease.
            ServerNotReady: it is about to be evicted.
            StrangerRefused: the worker has not joined, or another incarnation of it has.
        """
        if self.known.get(worker) == incarnation:
            return
        if self.floor and incarnation <= self.floor:
            raise rolled_back(self.name, self.floor_step)
        if incarnation <= self.fenced.get(worker, -1):
            if worker in self.sessions.expelled:
                raise ServerNotReady(f"worker {worker} of job {self.name} is being evicted", worker=worker)
            raise evicted(self.name, worker, incarnation)
        raise StrangerRefused(
            f"worker {worker} with incarnation {incarnation} has not joined job {self.name}",
            worker=worker,
            incarnation=incarnation,
        )
