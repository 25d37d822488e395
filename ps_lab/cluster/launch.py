"""One run: servers and workers from start to end on this machine, its progress shown on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from ps_lab.cluster.cluster import Cluster, Job, interrupted
from ps_lab.cluster.display import Display
from ps_lab.cluster.interrupts import Signalled, signals_into
from ps_lab.cluster.run_table import RunTable
from ps_lab.cluster.server_logs import ServerLogs
from ps_lab.cluster.team import OnFailure, Team
from ps_lab.errors import ProcessFailed, process_failed
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
MAX_RESTARTS = 3  # of one worker: what fails each time does not run for ever
HOPELESS = (os.EX_USAGE, os.EX_CONFIG)  # a worker that was refused: it would be again


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
    group_size: int = 1,
    pipeline_stages: int = 1,
    nproc: int | None = None,
) -> Job:
    """Makes a job of what a person typed.

    Raises:
        UsageError: the script is no file, or the job's name, `nonfinite`, `carrier` or `wire_dtype` is none;
            or numbers of processes do not fit.
        ConsistencyInvalid: the consistency is unknown; the valid ones are listed.
    """
    if carrier is not None:
        carriers.parse(carrier)
    if wire_dtype is not None:
        wire_dtypes.parse(wire_dtype)
    if group_size > 1 and pipeline_stages not in (1, group_size):
        raise UsageError(
            f"--group-size {group_size} with --pipeline-stages {pipeline_stages}: leave --group-size out"
        )
    size = max(group_size, pipeline_stages)
    if nproc not in (None, size):
        option = "--pipeline-stages" if pipeline_stages > 1 else "--group-size"
        raise UsageError(f"--nproc {nproc}: each worker has {size} processes, as {option} {size} says")
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
        group_size=size,
        pipeline=pipeline_stages > 1,
    )


def run(
    job: Job,
    *,
    num_servers: int,
    display: Display,
    environment: Mapping[str, str] | None = None,
    fresh: bool = False,
    on_failure: OnFailure = OnFailure.STOP,
    logs: str | None = None,
) -> Status:
    """Runs a job on servers of its own, until all its workers have ended.

    Call it in the main thread: it takes over the signals that stop a program.

    Args:
        job: what the workers run.
        num_servers: shards.
        display: shows progress.
        environment: of all processes; ours if None.
        fresh: see `Cluster`.
        on_failure: what follows when a worker fails. The end of a server ends the run in any case.
        logs: of the servers; see `ServerLogs`.

    Returns:
        What the servers said after the last worker had left.

    Raises:
        ProcessFailed: a server or worker ended by itself with a failure; all others have ended, too.
        Interrupted: a signal came; everything has been ended.
        StartLimitExceeded: a server did not serve in time.
    """
    kept = ServerLogs(logs, display.line)
    well = False
    try:
        cluster = Cluster(num_servers=num_servers, on_line=kept.receive, environment=environment, fresh=fresh)
        with signals_into(cluster.events), cluster:
            size = f"{job.num_workers} worker{'s' * (job.num_workers > 1)}"
            display.note(f"job {job.name}, {job.consistency}, {size}, servers {','.join(cluster.addresses)}")
            if kept.folder is not None:
                display.note(f"what the servers log is in {kept.folder}")
            team = Team(cluster, job)
            try:
                with Watch(cluster.addresses, job.name, cluster.access) as watch:
                    failed = _to_its_end(cluster, team, on_failure, display, watch)
            except PsError as error:
                display.note(f"{error.message}: ending the others")
                raise
            if failed is not None:
                raise failed
            status = ask(cluster.addresses, cluster.access)
        well = True
    finally:
        kept.close(well=well)
        if not well and kept.folder is not None:
            display.note(f"what the servers logged is in {kept.folder}")
    return status


def _to_its_end(
    cluster: Cluster, team: Team, on_failure: OnFailure, display: Display, watch: Watch
) -> ProcessFailed | None:
    """Until all workers have ended; the first that failed and did not start again."""
    first: ProcessFailed | None = None
    table = RunTable()
    while not team.over:
        event = cluster.next_event(TICK_S)
        team.look()
        if event is None:
            display.progress(watch.line, table.of(watch.job, time.monotonic()))
            continue
        if isinstance(event, Signalled):
            raise interrupted(event)
        child = event.child
        assert child.exit_code is not None
        number = team.left(child)
        if number is not None and child.exit_code == 0:
            continue
        failed = process_failed(child.name, child.exit_code)
        if number is None or on_failure is OnFailure.STOP:
            raise failed
        if on_failure is OnFailure.CONTINUE:
            first = first or failed
            display.note(f"{failed.message}: the others go on")
        elif child.exit_code in HOPELESS or team.starts_again[number] == MAX_RESTARTS:
            raise failed
        else:
            team.again(number)
            display.note(
                f"{failed.message}: it starts again ({team.starts_again[number]} of {MAX_RESTARTS} times)"
            )
    return first
