"""Figures of a job for who watches it: values of one moment, taken on the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.member_streams import worker_status
from ps_server.coordinator.snapshots.taken import SnapshotFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFigures:
    """One worker, as of its last heartbeat; `lease_left_s` is None where it has no lease."""

    worker: int
    steps: int
    samples: int
    waited_s: float
    heartbeat_age_s: float
    lease_left_s: float | None
    stalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One job.

    Attributes:
        name: of it.
        consistency: as typed.
        state: as status has it.
        wanted: workers that it was made for.
        states: state -> workers in it.
        members: the first ones that are neither gone nor lost, by number.
        left_out: members beyond these.
        events: kind -> how often.
        snapshot: of the last one; None where none are taken.
    """

    name: str
    consistency: str
    state: str
    wanted: int
    states: Mapping[str, int]
    members: tuple[MemberFigures, ...]
    left_out: int
    events: Mapping[str, int]
    snapshot: SnapshotFigures | None


def figures_of(
    runner: JobRunner, snapshot: SnapshotFigures | None, *, now_s: float, most_members: int
) -> JobFigures:
    """A job now, with at most so many members."""
    members = runner.job.roster.members
    live = sorted(worker for worker, member in members.items() if member.present)
    return JobFigures(
        name=runner.job.name,
        consistency=runner.job.spec.consistency,
        state=runner.job.state.value,
        wanted=runner.job.spec.num_workers,
        states=Counter(member.state.value for member in members.values()),
        members=tuple(_member(runner, worker, now_s) for worker in live[:most_members]),
        left_out=max(len(live) - most_members, 0),
        events=dict(runner.events.counts),
        snapshot=snapshot,
    )


def _member(runner: JobRunner, worker: int, now_s: float) -> MemberFigures:
    status = worker_status(runner, runner.job.roster.members[worker], now_s)
    return MemberFigures(
        worker=worker,
        steps=status.progress.step,
        samples=status.progress.samples,
        waited_s=status.progress.waited_s,
        heartbeat_age_s=status.heartbeat_age_s,
        lease_left_s=None if status.lease_left_s < 0 else status.lease_left_s,
        stalled=bool(status.progress.waits),
    )
