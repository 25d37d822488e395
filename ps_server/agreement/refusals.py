"""Refusals of a member's frames and calls, in the words that coordinator and shards share. Pure."""

from __future__ import annotations

from ps_wire.errors import Evicted, JobDropped, JobFull, RolledBack


def evicted(job: str, worker: int, incarnation: int) -> Evicted:
    """The error of an incarnation that was silent for longer than its lease."""
    return Evicted(
        f"worker {worker} of job {job} was silent for longer than its lease (PS_LEASE): "
        f"the others went on without its incarnation {incarnation}",
        worker=worker,
        incarnation=incarnation,
    )


def rolled_back(job: str, step: int, why: str = "a server has lost what it held") -> RolledBack:
    """The error of every incarnation whose steps are no more."""
    return RolledBack(f"job {job} goes on from its snapshot of step {step}: {why}", step=step)


def dropped(job: str) -> JobDropped:
    """The error of everybody who was in a job that a person has dropped."""
    return JobDropped(
        f"job {job} was dropped (ps-lab job drop): the servers have nothing of it any more, and its name "
        "begins anew",
        job=job,
    )


def too_many_jobs(most: int) -> JobFull:
    """A service has as many jobs as it may have, which those that have ended count among."""
    return JobFull(
        f"this service has {most} jobs already, ended ones among them: `ps-lab job drop` makes room"
    )
