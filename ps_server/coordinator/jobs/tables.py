"""The tables of a job as the coordinator knows them, and what the next one waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ps_server.coordinator.jobs.actions import named_workers
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.roster import Roster
from ps_wire.errors import ConfigurationRefused
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.spec.table import MAX_TABLES, TableSpec, check_same
from ps_wire.v1 import spec_pb2


@dataclass(slots=True)
class TableRecord:
    """The progress of a table: its slices allocated, its weights loaded, its members told to begin.

    Attributes:
        asked: whose weights start it.
    """

    spec: TableSpec
    opened: bool = False
    loaded: bool = False
    starting: bool = False
    started: bool = False
    asked: Member | None = None

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "spec": table_to_proto(self.spec).SerializeToString().hex(),
            "asked": None if self.asked is None else self.asked.worker,
            "opened": self.opened,
            "loaded": self.loaded,
            "starting": self.starting,
            "started": self.started,
        }

    def open(self) -> None:
        """All shards hold it."""
        self.opened = True

    def ask(self, member: Member) -> None:
        """This member's weights start it."""
        self.asked = member

    def upload(self) -> None:
        """These weights are on all shards."""
        self.loaded = True

    def begin_start(self) -> None:
        """The shards are told to let members push and pull."""
        self.starting = True

    def start(self) -> None:
        """All shards let members push and pull."""
        self.starting, self.started = False, True

    @classmethod
    def load(cls, facts: Mapping[str, Any], members: Mapping[int, Member]) -> TableRecord:
        """Makes the table that was dumped, of these members."""
        spec = table_from_proto(spec_pb2.Table.FromString(bytes.fromhex(facts["spec"])))
        asked = None if facts["asked"] is None else members.get(facts["asked"])
        return cls(**{**facts, "spec": spec, "asked": asked})


@dataclass(slots=True)
class JobTables:
    """The tables by number. Not thread-safe."""

    job: str
    records: list[TableRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def check(self, member: Member, spec: TableSpec, *, fixed: bool) -> None:
        """Refuses a table that is not the member's next one, or not the one that others have made.

        Args:
            member: who makes it.
            spec: the table.
            fixed: no table can be added any more.

        Raises:
            ConfigurationRefused: not its next one, or one too many.
            TableMismatch: it differs from the one that another worker has made.
        """
        if spec.number != member.num_tables or spec.number >= MAX_TABLES:
            raise ConfigurationRefused(
                f"worker {member.worker} makes table {spec.number}; its next is {member.num_tables} "
                f"of at most {MAX_TABLES}"
            )
        if spec.number < len(self.records):
            check_same(self.records[spec.number].spec, spec)
        elif fixed:
            raise ConfigurationRefused(
                f"job {self.job} has {len(self.records)} tables, not {spec.number + 1}"
            )

    def add(self, spec: TableSpec) -> None:
        """The next one."""
        self.records.append(TableRecord(spec))

    def clear(self) -> None:
        """There is none."""
        self.records.clear()

    @property
    def begun(self) -> bool:
        """Whether one has started, or is about to: for a worker that comes now that is too late."""
        return any(record.starting or record.started for record in self.records)

    def waiting(self) -> int | None:
        """The first table that has not started."""
        waits = [number for number, record in enumerate(self.records) if not record.started]
        return waits[0] if waits else None

    def missing(self, roster: Roster, needed: range, at_least: int = 0) -> list[str]:
        """Says for people what keeps the first table that has not started from starting.

        Args:
            roster: who is here.
            needed: numbers of the workers who must be.
            at_least: how many must be, by whichever numbers.
        """
        here = roster.here()
        numbers = {member.worker for member in here}
        missing = named_workers([number for number in needed if number not in numbers], "to join")
        if len(here) < at_least:
            missing.append(f"{at_least - len(here)} more workers to join")
        table = self.waiting()
        if table is not None:
            late = [member.worker for member in here if member.num_tables <= table]
            missing += named_workers(late, f"to make table {table}")
        return missing

    def suspend(self) -> None:
        """All workers are gone: what has started stays, and is made again otherwise."""
        while self.records and not self.records[-1].started:
            self.records.pop()

    def restore(self, specs: Iterable[TableSpec], *, started: bool) -> None:
        """All shards hold the tables of a snapshot in place of these; at its end they have `started`."""
        self.records = [TableRecord(spec, opened=True, loaded=True, started=started) for spec in specs]

    def dump(self) -> list[dict[str, Any]]:
        """All of them, for JSON."""
        return [record.dump() for record in self.records]

    def load(self, facts: Iterable[Mapping[str, Any]], members: Mapping[int, Member]) -> None:
        """Goes on with what was dumped, of these members."""
        self.records = [TableRecord.load(record, members) for record in facts]
