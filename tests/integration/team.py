"""Workers in threads of the test process, one thread each, on real server processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import ps_worker as ps

from .processes import LIMIT_S
from .servers import Servers, fresh_job

torch.set_num_threads(1)


def together(bodies: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs all of them at once, each in a thread; raises the first error when all have ended."""
    results: list[Any] = [None] * len(bodies)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            results[place] = bodies[place]()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        if thread.is_alive() and errors:
            break
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    return results


@contextmanager
def hearing(*words: str) -> Iterator[threading.Event]:
    """Gives what is set when a worker of this process says a line that has all of these words."""
    said = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if all(word in record.getMessage() for word in words):
                said.set()

    logger, heard = logging.getLogger("ps_worker"), Heard()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(heard)
    try:
        yield said
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)


def join(servers: Servers | str, job: str, **options: Any) -> ps.Worker:
    """`ps.connect` with limits that a test can wait for."""
    address = servers if isinstance(servers, str) else servers.option
    limits = {"connect_limit": LIMIT_S, "start_limit": LIMIT_S, "retry_limit": LIMIT_S}
    return ps.connect(**{"servers": address, "job": job, **limits, **options})


def train(
    servers: Servers | Sequence[str],
    body: Callable[[ps.Worker], Any],
    *,
    num_workers: int,
    consistency: str,
    job: str | None = None,
    **settings: Any,
) -> list[Any]:
    """Runs `body(worker)` for every worker of a job, each in a thread; returns what they return, by rank.

    Args:
        servers: for all workers, or the `--servers` of each.
        body: one worker's script.
        num_workers: of the job.
        consistency: as typed.
        job: its name; a fresh one by default.
        settings: more of `ps.connect`.
    """
    name = job or fresh_job()

    def one(rank: int) -> Any:
        reach = servers if isinstance(servers, Servers) else servers[rank]
        options = {"consistency": consistency, "num_workers": num_workers, "worker": rank, **settings}
        with join(reach, name, **options) as worker:
            assert worker.rank == rank
            return body(worker)

    return together([lambda rank=rank: one(rank) for rank in range(num_workers)])
