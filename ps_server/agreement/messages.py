"""Reports of shards and choices of the coordinator as protobuf messages.

Shards send norms (clipping) and attendances (backup workers); the coordinator answers with choices. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from ps_server.agreement.attendance import Attendance, CatchUp, Choice, Choose, Late, TableAttendance
from ps_server.agreement.clipping import Norm
from ps_wire.v1 import coordinator_pb2 as pb

Report: TypeAlias = Norm | TableAttendance
UNANSWERED = frozenset({"choose", "catch_up"})  # orders; in their place among the others


class TableOpening(NamedTuple):
    """A table of a job, and how often it has been opened."""

    job: str
    table: int
    opening: int


def job_of(order: pb.Order) -> str:
    """The job that an order is about: those of one job are carried out in the order in which they come.

    Empty for one that this release does not know, which is only to be refused.
    """
    kind = order.WhichOneof("kind")
    if kind is None:
        return ""
    job = getattr(order, kind).job
    return job if isinstance(job, str) else str(job.name)


def choice_to_proto(of: TableOpening, choice: Choice) -> pb.Order:
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


def report_to_request(report: Report) -> pb.FollowRequest:
    """A report, as a follower says it."""
    if isinstance(report, Norm):
        return pb.FollowRequest(norm=norm_to_proto(report))
    return pb.FollowRequest(attendance=attendance_to_proto(report))


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


def norm_to_proto(norm: Norm) -> pb.Norm:
    """A norm as a message."""
    return pb.Norm(
        job=norm.job,
        table=norm.table,
        opening=norm.opening,
        step=norm.step,
        squares=norm.squares,
        epoch=norm.membership_epoch,
    )


def norm_from_proto(message: pb.Norm) -> Norm:
    """The norm in a message."""
    return Norm(
        job=message.job,
        table=message.table,
        opening=message.opening,
        step=message.step,
        squares=message.squares,
        membership_epoch=message.epoch,
    )
