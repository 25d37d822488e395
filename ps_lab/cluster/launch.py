"""One run: servers and workers from start to end on this machine, its progress shown on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ps_lab.cluster.cluster import Cluster, Job
from ps_lab.cluster.display import Display
from ps_lab.cluster.interrupts import signals_into
from ps_lab.status.observer import ask
from ps_lab.status.status import Status
from ps_lab.status.watch import Watch
from ps_wire.errors import PsError, UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.spec import nonfinite as choices
from ps_wire.spec import wire_dtype as wire_dtypes
from ps_wire.spec.address import check_job_name
from ps_wire.spec.consistency import parse

TICK_S = 0.25


def check_job(
    *,
    name: str,
    consistency: str,
    num_workers: int,
    script: Path,
    arguments: tuple[str, ...],
    nonfinite: str = "error",
    carrier: str | None = None,
    wire_dtype: str | None = None,
) -> Job:
    """What a person typed, as a job.

    Raises:
        UsageError: the script is no file, or the job's name, `nonfinite`, `carrier` or `wire_dtype` is none.
        ConsistencyInvalid: the consistency is unknown; the valid ones are listed.
    """
    if carrier is not None:
        carriers.parse(carrier)
    if wire_dtype is not None:
        wire_dtypes.parse(wire_dtype)
    if not script.is_file():
        raise UsageError(f"{script} is not a file; the training script comes after the options")
    return Job(
        name=check_job_name(name),
        consistency=str(parse(consistency)),
        num_workers=num_workers,
        script=script,
        arguments=arguments,
        nonfinite=choices.parse(nonfinite),
        carrier=carrier,
        wire_dtype=wire_dtype,
    )


def run(
    job: Job,
    *,
    num_servers: int,
    display: Display,
    environment: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> Status:
    """Runs a job on servers of its own, until all its workers have ended well.

    Call it in the main thread: it takes over the signals that stop a program.

    Args:
        job: what the workers run.
        num_servers: shards.
        display: shows progress.
        environment: of all processes; ours if None.
        fresh: see `Cluster`.

    Returns:
        What the servers said after the last worker had left.

    Raises:
        ProcessFailed: a server or worker ended by itself with a failure; all others have been ended.
        Interrupted: a signal came; everything has been ended.
        StartLimitExceeded: a server did not serve in time.
    """
    cluster = Cluster(num_servers=num_servers, on_line=display.line, environment=environment, fresh=fresh)
    with signals_into(cluster.events), cluster:
        display.note(f"job {job.name}, {job.consistency}, servers {','.join(cluster.addresses)}")
        workers = cluster.start(job)
        try:
            with Watch(cluster.addresses, job.name, cluster.access) as watch:
                cluster.wait(workers, timeout_s=TICK_S, on_tick=lambda: display.progress(watch.line))
        except PsError as error:
            display.note(f"{error.message}: ending the others")
            raise
        return ask(cluster.addresses, cluster.access)
