"""Backup workers: choices of all jobs on the coordinator, and reports and choices as messages.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ps_server.attendance import Attendance, CatchUp, Choice, Choose, Late, TableAttendance
from ps_server.chooser import Chooser
from ps_server.clipping import holders
from ps_server.gate import gate_of
from ps_wire import consistency
from ps_wire.plan import Plan
from ps_wire.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

FIRST_ROUNDS, SECOND_ROUNDS = frozenset({"prepare", "fence"}), frozenset({"enter", "evict"})
UNANSWERED = frozenset({"choose", "catch_up"})  # orders; in their place among the others


class _Place(NamedTuple):
    job: str
    table: int
    opening: int


@dataclass(slots=True)
class Choices:
    """Choosers by table. Not thread-safe."""

    num_shards: int
    _backup: dict[str, int] = field(default_factory=dict)  # by job
    _choosers: dict[tuple[str, int], tuple[int, Chooser]] = field(default_factory=dict)

    def admitted(self, job: spec_pb2.Job) -> None:
        """The shards are told of a member of this job."""
        self._backup[job.name] = gate_of(consistency.parse(job.consistency)).backup

    def opened(self, job: str, spec: TableSpec, opening: int, step: int = 0) -> None:
        """The shards are told to open a table, whose first step is `step`: one before it is void."""
        self._choosers.pop((job, spec.number), None)
        backup = self._backup.get(job, 0)
        if backup:
            chooser = Chooser(backup, holders(Plan(spec, self.num_shards)))
            if step > 0:
                chooser.last = Choose(step=step - 1, workers=frozenset())  # no shard asks for that
            self._choosers[job, spec.number] = opening, chooser

    def capture(self) -> list[str]:
        """The last choices about each table, for JSON: a shard may not have heard them."""
        made = [
            choice_to_proto(_Place(job, table, opening), choice)
            for (job, table), (opening, chooser) in self._choosers.items()
            for choice in chooser.made
        ]
        return [order.SerializeToString().hex() for order in made]

    def restore(self, captured: Iterable[str]) -> None:
        """What a coordinator before this one has chosen, of tables that are open."""
        for text in captured:
            order = pb.Order.FromString(bytes.fromhex(text))
            choice: pb.Choose | pb.CatchUp = getattr(order, order.WhichOneof("kind") or "")
            _, chooser = self._choosers[choice.job, choice.table]
            chooser.remember(choice_from_proto(choice))

    def dropped(self, job: str) -> None:
        """The shards are told to forget a job."""
        self._backup.pop(job, None)
        for key in [key for key in self._choosers if key[0] == job]:
            del self._choosers[key]

    def hold(self, job: str) -> None:
        """A change of members begins, in two rounds: nothing is chosen until `release`."""
        for _, chooser in self._of(job).values():
            chooser.hold()

    def release(self, job: str) -> list[tuple[pb.Order, tuple[int, ...]]]:
        """It has ended: orders that follow from what was reported meanwhile, and whom each goes to."""
        orders = []
        for number, (opening, chooser) in self._of(job).items():
            place = _Place(job, number, opening)
            orders += [(choice_to_proto(place, choice), shards) for choice, shards in chooser.release()]
        return orders

    def _of(self, job: str) -> dict[int, tuple[int, Chooser]]:
        return {number: known for (name, number), known in self._choosers.items() if name == job}

    def reported(self, shard: int, attended: TableAttendance) -> list[tuple[pb.Order, tuple[int, ...]]]:
        """What a shard's report leads to: orders, and the shards that each goes to."""
        opening, chooser = self._choosers.get((attended.job, attended.table), (-1, None))
        if chooser is None or opening != attended.opening or shard not in chooser.holders:
            return []
        sent = chooser.reported(shard, attended.report)
        place = _Place(attended.job, attended.table, opening)
        return [(choice_to_proto(place, choice), shards) for choice, shards in sent]


def choice_to_proto(of: _Place, choice: Choice) -> pb.Order:
    """A choice about a table, as an order."""
    if isinstance(choice, Choose):
        workers = sorted(choice.workers)
        choose = pb.Choose(job=of.job, table=of.table, opening=of.opening, step=choice.step, workers=workers)
        return pb.Order(choose=choose)
    late = _late_to_proto(choice.late)
    return pb.Order(
        catch_up=pb.CatchUp(job=of.job, table=of.table, opening=of.opening, late=late, step=choice.step)
    )


def choice_from_proto(message: pb.Choose | pb.CatchUp) -> Choice:
    """The choice in an order."""
    if isinstance(message, pb.Choose):
        return Choose(step=message.step, workers=frozenset(message.workers))
    (late,) = _late_from_proto([message.late])
    return CatchUp(late=late, step=message.step)


def attendance_to_proto(attended: TableAttendance) -> pb.Attendance:
    """A report as a message."""
    report = attended.report
    return pb.Attendance(
        job=attended.job,
        table=attended.table,
        opening=attended.opening,
        step=report.step,
        ready=sorted(report.ready),
        members=sorted(report.members),
        wanted=report.wanted,
        late=[_late_to_proto(late) for late in sorted(report.late)],
    )


def attendance_from_proto(message: pb.Attendance) -> TableAttendance:
    """The report in a message."""
    report = Attendance(
        step=message.step,
        ready=frozenset(message.ready),
        members=frozenset(message.members),
        wanted=message.wanted,
        late=frozenset(_late_from_proto(message.late)),
    )
    return TableAttendance(job=message.job, table=message.table, opening=message.opening, report=report)


def _late_to_proto(late: Late) -> pb.LateWorker:
    return pb.LateWorker(worker=late.worker, incarnation=late.incarnation, clock=late.clock)


def _late_from_proto(messages: Iterable[pb.LateWorker]) -> list[Late]:
    return [
        Late(worker=message.worker, incarnation=message.incarnation, clock=message.clock)
        for message in messages
    ]
