"""Members of a job, and what the coordinator sends: values for `membership`.

Member: joining -> joined -> finishing -> finished -> left, or joined -> leaving -> left; lost (evicted) from
anywhere. After a rollback it is returning, from anywhere, until another incarnation takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from ps_wire.errors import JobMismatch, PsError
from ps_wire.frames.messages import refused_to_proto
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

MAX_REASON = 300  # characters of a notice
MAX_NAMED = 16  # in a list for people


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
    RETURNING = "returning"


@dataclass(slots=True, kw_only=True)
class Member:
    """One incarnation of one worker.

    Attributes:
        late: it came when the job had weights: it enters each table in two rounds, at a step that all name.
        lease_s: it is evicted when it has been silent for so long; 0: never.
        steps: that it has taken, as it says when it goes.
        taken: table -> steps whose pushes have left, as its heartbeats say.
        enters: by table, the first step that a late one may enter at.
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
    steps: int = 0
    taken: Mapping[int, int] = field(default_factory=dict)
    enters: Mapping[int, int] = field(default_factory=dict)

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


@dataclass(slots=True)
class TableRecord:
    """How far a table is: its slices allocated, its weights loaded, its members told to begin."""

    spec: TableSpec
    opened: bool = False
    loaded: bool = False
    starting: bool = False
    started: bool = False
    asked: Member | None = None  # whose weights start it


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


@dataclass(frozen=True, slots=True)
class TwoRounds:
    """An order, and a second one that is made of what all shards answer to it; nothing comes between.

    Attributes:
        first: every shard holds still what it concerns.
        least: whether `second` gets the smallest figures of all shards, else the largest.
        second: names the step that the change takes effect at, on every shard.
    """

    first: pb.Order
    least: bool
    second: Callable[[Mapping[int, int]], pb.Order]


Action: TypeAlias = ToShards | ToMember | TwoRounds


def named(words: Sequence[str]) -> str:
    """A list for people: the first of them, and how many more there are."""
    more = len(words) - MAX_NAMED
    return ", ".join(words[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


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


def eviction(job: str, member: Member, epoch: int) -> TwoRounds:
    """Takes a worker that has not left out of the gates; of its pushes those that are everywhere count."""
    place = {"job": job, "worker": member.worker, "incarnation": member.incarnation}

    def verdict(limits: Mapping[int, int]) -> pb.Order:
        return pb.Order(evict=pb.EvictMember(**place, limits=limits, epoch=epoch))  # type: ignore[arg-type]

    return TwoRounds(pb.Order(fence=pb.RemoveMember(**place)), True, verdict)  # type: ignore[arg-type]


def entrance(job: str, member: Member, table: int) -> TwoRounds:
    """Brings a worker into the gates of a table, at the first step that has closed nowhere, or later."""
    least = member.enters.get(table, 0)
    place = {"job": job, "table": table, "worker": member.worker, "incarnation": member.incarnation}

    def named(first: Mapping[int, int]) -> pb.Order:
        return pb.Order(enter=pb.EnterTable(**place, step=max(first.get(table, 0), least)))  # type: ignore[arg-type]

    return TwoRounds(pb.Order(prepare=pb.EnterTable(**place)), False, named)  # type: ignore[arg-type]


def notices(present: Iterable[Member], leaver: Member, reason: str, what: str = "left: ") -> list[ToMember]:
    """Tells the others why a worker goes, in one line; nothing where there is no reason."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in reason).split())
    if not text:
        return []
    notice = pb.Notice(text=f"{leaver.holder} {what}{text[:MAX_REASON]}")
    return [tell(member, notice=notice) for member in present if member is not leaver]


def check_job(job: spec_pb2.Job, wanted: spec_pb2.Job) -> None:
    """Refuses a worker that wants another job than the one of that name.

    Raises:
        JobMismatch: naming what differs.
    """
    for what, expected, got in (
        ("consistency", job.consistency, wanted.consistency),
        ("number of workers", size_of(job), size_of(wanted)),
        ("nonfinite", job.nonfinite, wanted.nonfinite),
    ):
        if expected != got:
            raise JobMismatch(
                f"{what} of job {job.name}: the job has {expected}, this worker wants {got}",
                what=what,
                expected=str(expected),
                got=str(got),
            )


def size_of(job: spec_pb2.Job) -> str:
    """As people write it: `4`, or `2:8`."""
    return f"{job.min_workers}:{job.num_workers}" if job.min_workers else f"{job.num_workers}"
