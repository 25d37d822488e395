"""Groups of ranks as processes: what starts each rank, as torchrun would."""

from __future__ import annotations

from pathlib import Path

from .processes import Process, Start
from .servers import Servers, fresh_job

SCRIPT = str(Path(__file__).with_name("group_script.py"))


def start_groups(
    spawn: Start,
    servers: Servers,
    *script: str,
    groups: int = 2,
    size: int = 2,
    consistency: str = "bsp",
    job: str = "",
    options: tuple[str, ...] = (),
) -> list[list[Process]]:
    """The ranks of all groups of a job, by worker."""
    job = job or fresh_job()
    return [
        [
            start_rank(
                spawn,
                servers,
                *script,
                worker=worker,
                rank=rank,
                groups=groups,
                size=size,
                job=job,
                options=("--consistency", consistency, *options),
            )
            for rank in range(size)
        ]
        for worker in range(groups)
    ]


def start_rank(
    spawn: Start,
    servers: Servers,
    *script: str,
    worker: int,
    rank: int,
    groups: int,
    size: int,
    job: str,
    options: tuple[str, ...] = (),
) -> Process:
    """One rank of one group."""
    at = worker * size + rank
    return spawn(
        *(*servers.worker(job), "--group-size", str(size)),
        *options,
        *script,
        RANK=str(at),
        WORLD_SIZE=str(groups * size),
        LOCAL_RANK=str(at),
    )
