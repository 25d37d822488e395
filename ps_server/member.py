"""Members of a job, and what the coordinator sends: values for `membership`.

Member: joining -> joined -> finishing -> finished -> left, or joined -> leaving -> left; lost from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ps_wire.errors import JobMismatch, PsError
from ps_wire.messages import refused_to_proto
from ps_wire.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

MAX_REASON = 300  # characters of a notice


class JobState(StrEnum):
    """See `membership`."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


class MemberState(StrEnum):
    """See the module's docstring."""

    JOINING = "joining"
    JOINED = "joined"
    FINISHING = "finishing"
    FINISHED = "finished"
    LEAVING = "leaving"
    LEFT = "left"
    LOST = "lost"


@dataclass(slots=True, kw_only=True)
class Member:
    """One incarnation of one worker."""

    worker: int
    incarnation: int
    host: str
    pid: int
    state: MemberState = MemberState.JOINING
    reader: bool = False
    num_tables: int = 0

    @property
    def holder(self) -> str:
        """How people are told who it is."""
        return f"worker {self.worker} (host {self.host}, pid {self.pid})"

    @property
    def present(self) -> bool:
        """Whether it is still connected, as far as it has said."""
        return self.state not in (MemberState.LEFT, MemberState.LOST)

    @property
    def trains(self) -> bool:
        """Whether the job waits for it."""
        return self.present and self.state is not MemberState.FINISHED and not self.reader


@dataclass(slots=True)
class TableRecord:
    """How far a table is: its slices allocated, its weights loaded, its members told to begin."""

    spec: TableSpec
    opened: bool = False
    loaded: bool = False
    starting: bool = False
    started: bool = False


@dataclass(frozen=True, slots=True)
class ToShards:
    """An order that every shard carries out before the next one is sent."""

    order: pb.Order


@dataclass(frozen=True, slots=True)
class ToMember:
    """A message for one incarnation of one worker."""

    worker: int
    incarnation: int
    reply: pb.MemberReply


Action: TypeAlias = ToShards | ToMember


def tell(member: Member, **reply: object) -> ToMember:
    """A message for a member: one field of `MemberReply`, by name."""
    return ToMember(member.worker, member.incarnation, pb.MemberReply(**reply))  # type: ignore[arg-type]


def refusal(member: Member, error: PsError) -> ToMember:
    """An error for a member."""
    return tell(member, refused=refused_to_proto(error))


def removal(job: str, member: Member) -> ToShards:
    """The order that takes a member out of the gates."""
    order = pb.RemoveMember(job=job, worker=member.worker, incarnation=member.incarnation)
    return ToShards(pb.Order(remove=order))


def notices(present: Iterable[Member], leaver: Member, reason: str) -> list[ToMember]:
    """Tells the others why a worker leaves, in one line; nothing where it gave no reason."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in reason).split())
    if not text:
        return []
    notice = pb.Notice(text=f"{leaver.holder} left: {text[:MAX_REASON]}")
    return [tell(member, notice=notice) for member in present if member is not leaver]


def check_job(job: spec_pb2.Job, wanted: spec_pb2.Job) -> None:
    """Refuses a worker that wants another job than the one of that name.

    Raises:
        JobMismatch: naming what differs.
    """
    for what, expected, got in (
        ("consistency", job.consistency, wanted.consistency),
        ("number of workers", job.num_workers, wanted.num_workers),
        ("nonfinite", job.nonfinite, wanted.nonfinite),
    ):
        if expected != got:
            raise JobMismatch(
                f"{what} of job {job.name}: the job has {expected}, this worker wants {got}",
                what=what,
                expected=str(expected),
                got=str(got),
            )
