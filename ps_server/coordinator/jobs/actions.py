"""Actions of the coordinator for one job: messages to members and orders to shards. Values, made by `job`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ps_server.coordinator.jobs.member import Member
from ps_wire.errors import PsError
from ps_wire.frames.messages import refused_to_proto
from ps_wire.v1 import coordinator_pb2 as pb

MAX_NOTICE_REASON = 300  # characters of a notice
MAX_NAMED = 16  # in a list for people


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


def named_workers(numbers: Sequence[int], what: str) -> list[str]:
    """Workers of whom one thing is said: `worker 1 to join`, `workers 1, 2 to join`, or nothing."""
    if not numbers:
        return []
    return [f"worker{'s' if len(numbers) > 1 else ''} {named([str(it) for it in numbers])} {what}"]


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


def eviction(job: str, member: Member, membership_epoch: int) -> TwoRounds:
    """Takes a worker that has not left out of the gates; of its pushes those that are everywhere count."""
    whom = {"job": job, "worker": member.worker, "incarnation": member.incarnation}

    def verdict(limits: Mapping[int, int]) -> pb.Order:
        evict = pb.EvictMember(**whom, limits=limits, epoch=membership_epoch)  # type: ignore[arg-type]
        return pb.Order(evict=evict)

    return TwoRounds(pb.Order(fence=pb.RemoveMember(**whom)), True, verdict)  # type: ignore[arg-type]


def entrance(job: str, member: Member, table: int) -> TwoRounds:
    """Brings a worker into the gates of a table, at the first step that has closed nowhere, or later."""
    least = member.enters.get(table, 0)
    whom = {"job": job, "table": table, "worker": member.worker, "incarnation": member.incarnation}

    def entered(first: Mapping[int, int]) -> pb.Order:
        step = max(first.get(table, 0), least)
        return pb.Order(enter=pb.EnterTable(**whom, step=step))  # type: ignore[arg-type]

    return TwoRounds(pb.Order(prepare=pb.EnterTable(**whom)), False, entered)  # type: ignore[arg-type]


def notices(present: Iterable[Member], leaver: Member, reason: str, what: str = "left: ") -> list[ToMember]:
    """Tells the others why a worker goes, in one line; nothing where there is no reason."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in reason).split())
    if not text:
        return []
    notice = pb.Notice(text=f"{leaver.holder} {what}{text[:MAX_NOTICE_REASON]}")
    return [tell(member, notice=notice) for member in present if member is not leaver]


def refused_newcomer(present: Iterable[Member], who: str, error: PsError) -> list[ToMember]:
    """Tells those who wait for the start, in one line, who was refused and why."""
    why = "".join(sign if sign.isprintable() else " " for sign in error.message)
    notice = pb.Notice(text=f"{who} was refused: {type(error).__name__}: {why[:MAX_NOTICE_REASON]}")
    return [tell(member, notice=notice) for member in present]
