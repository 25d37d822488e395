"""Pipelines as processes: each stage as a person starts it in a terminal of its own."""

from __future__ import annotations

from pathlib import Path

from .processes import Process, Start
from .servers import Servers, fresh_job

SCRIPT = str(Path(__file__).with_name("pipeline_script.py"))


def start_stages(
    spawn: Start,
    servers: Servers,
    *script: str,
    workers: int = 2,
    stages: int = 2,
    job: str = "",
    options: tuple[str, ...] = (),
) -> list[list[Process]]:
    """The stages of all workers of a job, by worker."""
    job = job or fresh_job()
    return [
        [
            spawn(
                *("ps-worker", "--servers", servers.option, "--job", job, "--num-workers", str(workers)),
                *("--worker", str(worker), "--pipeline-stages", str(stages), "--stage", str(stage)),
                *options,
                *script,
            )
            for stage in range(stages)
        ]
        for worker in range(workers)
    ]
