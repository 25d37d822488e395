"""One job on one shard: who may connect, who is in the gates, its tables. Guarded by the shard's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ps_server.agreement.gate import Gate, gate_of
from ps_server.agreement.refusals import evicted, rolled_back
from ps_server.events import Event, line_of
from ps_server.log import logger
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import ServerNotReady, StrangerRefused
from ps_wire.spec import consistency
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.nonfinite import parse as parse_nonfinite


class Retirable(Protocol):
    """A connection that another one can replace; see `Flow` for its figures.

    Attributes:
        carrier: its name.
    """

    carrier: str

    @property
    def received_bytes(self) -> int:
        """See `Flow`; so is the next one."""
        ...

    @property
    def sent_bytes(self) -> int:
        """See above."""
        ...

    def retire(self) -> None:
        """Takes no more frames; waits for the one that is being taken."""
        ...

    def sever(self) -> None:
        """Ends the connection at once, once it is retired, and frees what it holds. Never blocks."""
        ...


@dataclass(slots=True)
class ShardJob:
    """A job's part on this shard.

    Attributes:
        gate: of its consistency model.
        members: worker -> (incarnation, first step by table); those in the gates.
        known: worker -> live incarnation; members, and those who may only read.
        tokens: (worker, incarnation, rank) -> tokens good for one connection each.
        sessions: (worker, rank) -> its live connection.
        fenced: worker -> the newest incarnation that was fenced; it and older ones may do nothing any more.
        expelled: worker -> the connections that its fence has ended, until the verdict.
        connected: (worker, rank) -> the incarnation that has had a connection.
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
    tokens: dict[tuple[int, int, int], list[bytes]] = field(default_factory=dict)
    sessions: dict[tuple[int, int], Retirable] = field(default_factory=dict)
    memory_bytes: int = 0
    fenced: dict[int, int] = field(default_factory=dict)
    expelled: dict[int, tuple[Retirable, ...]] = field(default_factory=dict)
    connected: dict[tuple[int, int], int] = field(default_factory=dict)
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
            tokens={key: list(tokens) for key, tokens in self.tokens.items()},
            sessions=dict(self.sessions),
            fenced=dict(self.fenced),
            expelled=dict(self.expelled),
            connected=dict(self.connected),
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
            "expelled": list(self.expelled),
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
            expelled=dict.fromkeys(facts["expelled"], ()),
            floor=facts["floor"],
            floor_step=facts["floor_step"],
        )

    def load_members(self, facts: Mapping[str, Any]) -> None:
        """Those of what `dump` gave; its tables know them already."""
        self.members.update(
            {worker: (incarnation, dict(clocks)) for worker, incarnation, clocks in facts["members"]}
        )

    def connections(self) -> list[Retirable]:
        """All that are live, or wait for a verdict."""
        expelled = [*self.expelled.values()]  # at once: others come and go
        return [*self.sessions.values(), *(it for ended in expelled for it in ended)]

    def retire(self) -> None:
        """Nothing more is taken of its workers; waits for what is being taken."""
        for session in self.connections():
            session.retire()

    def sessions_of(self, worker: int) -> dict[int, Retirable]:
        """Rank -> its live connection, of one worker; in no order."""
        return {rank: it for (whose, rank), it in self.sessions.items() if whose == worker}

    def take_sessions(self, worker: int) -> tuple[Retirable, ...]:
        """Removes and returns the live connections of all ranks of a worker."""
        taken = [key for key in self.sessions if key[0] == worker]
        return tuple(self.sessions.pop(key) for key in taken)

    def forget_tokens(self, worker: int, incarnation: int | None = None) -> None:
        """No token of a worker is good any more; of one incarnation, or of all."""
        for key in [key for key in self.tokens if key[0] == worker and incarnation in (None, key[1])]:
            del self.tokens[key]

    def count_connection(self, worker: int, rank: int) -> None:
        """A rank of a worker has a connection: its first one, or another one in place of it."""
        incarnation = self.known.get(worker, 0)
        if self.connected.get((worker, rank)) == incarnation:
            self.say(Event.RETRY, worker=worker, incarnation=incarnation)
        self.connected[worker, rank] = incarnation

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
            if worker in self.expelled:
                raise ServerNotReady(f"worker {worker} of job {self.name} is being evicted", worker=worker)
            raise evicted(self.name, worker, incarnation)
        raise StrangerRefused(
            f"worker {worker} with incarnation {incarnation} has not joined job {self.name}",
            worker=worker,
            incarnation=incarnation,
        )
