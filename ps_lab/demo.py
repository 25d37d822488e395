"""The demo: the digits under three consistency models, compared in one table."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ps_lab.cluster.cluster import Job
from ps_lab.cluster.display import Display
from ps_lab.cluster.launch import run
from ps_lab.errors import DemoFailed
from ps_lab.status.status import Job as JobStatus
from ps_wire.spec.staleness import Staleness

MODELS = ("bsp", "ssp:3", "asp")
NUM_SERVERS = 2
NUM_WORKERS = 4
MIN_ACCURACY = 0.97
SCRIPT = Path("examples", "digits.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run in numbers.

    Attributes:
        consistency: the model.
        accuracy: on the test digits, of the weights after `finish`; the lowest that a worker measured.
        seconds: of the whole run, starts of all processes included.
        training_s: from the first batch to the end of `finish`, mean over workers.
        updates: optimizer steps taken on the servers.
        tau: version staleness.
        blocked_s: pulls waiting at the gate, mean over workers.
    """

    consistency: str
    accuracy: float
    seconds: float
    training_s: float
    updates: int
    tau: Staleness
    blocked_s: float


def run_demo(console: Console, *, fresh: bool = False) -> None:
    """Runs all models one after the other and prints the table.

    Raises:
        DemoFailed: it cannot run here, or a run stayed below `MIN_ACCURACY`; the table is printed first.
        PsError: a run failed.
    """
    script = find_script()
    rows = [_run_one(consistency, script, console, fresh=fresh) for consistency in MODELS]
    console.print(comparison(rows))
    low = [f"{row.consistency} reached {row.accuracy:.4f}" for row in rows if row.accuracy < MIN_ACCURACY]
    if low:
        raise DemoFailed(f"the demo must reach a test accuracy of {MIN_ACCURACY}: {', '.join(low)}")


def find_script() -> Path:
    """The example in the source tree.

    Raises:
        DemoFailed: there is no source tree here, or scikit-learn, which has the data, is not installed.
    """
    script = Path(__file__).resolve().parent.parent / SCRIPT
    if not script.is_file():
        raise DemoFailed(
            f"the demo runs {SCRIPT} of the source tree, and {script} does not exist: "
            "clone the repository and run `make demo` in it"
        )
    if importlib.util.find_spec("sklearn") is None:
        raise DemoFailed("the demo needs scikit-learn for its data: pip install 'scikit-learn>=1.4'")
    return script


def to_row(job: JobStatus, seconds: float) -> Row:
    """The numbers of a run, from what the servers said at its end.

    Raises:
        DemoFailed: no worker reported its accuracy and time.
    """
    accuracies = [worker.metrics["accuracy"] for worker in job.workers if "accuracy" in worker.metrics]
    training_s = job.metric("seconds")
    if not accuracies or training_s is None:
        raise DemoFailed(f"{job.consistency}: no worker reported accuracy and seconds")
    return Row(
        consistency=job.consistency,
        accuracy=min(accuracies),
        seconds=seconds,
        training_s=training_s,
        updates=job.updates,
        tau=job.tau,
        blocked_s=sum(worker.gate_wait_s for table in job.tables for worker in table.workers)
        / job.num_workers,
    )


def comparison(rows: list[Row]) -> Table:
    """The table that the demo ends with."""
    table = Table(
        title=f"digits, {NUM_SERVERS} servers, {NUM_WORKERS} workers",
        caption="seconds: the whole run, and in training alone; updates: optimizer steps on the servers, "
        "per second of training; staleness: updates between reading the weights and applying the gradient; "
        "blocked: seconds that pulls waited at the gate, mean over workers",
        caption_justify="left",
    )
    table.add_column("model")
    headers = ("test accuracy", "seconds", "training", "updates", "updates/s")
    for header in (*headers, "staleness mean", "p99", "max", "blocked"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(
            row.consistency,
            f"{row.accuracy:.4f}",
            f"{row.seconds:.1f}",
            f"{row.training_s:.1f}",
            str(row.updates),
            f"{row.updates / row.training_s:.0f}",
            f"{row.tau.mean:.2f}",
            str(row.tau.p99),
            str(row.tau.max),
            f"{row.blocked_s:.2f}",
        )
    return table


def _run_one(consistency: str, script: Path, console: Console, *, fresh: bool) -> Row:
    job = Job(
        name=f"digits-{consistency.replace(':', '')}",
        consistency=consistency,
        num_workers=NUM_WORKERS,
        script=script,
    )
    start_s = time.monotonic()
    with Display(console) as display:
        status = run(job, num_servers=NUM_SERVERS, display=display, fresh=fresh)
    seconds = time.monotonic() - start_s
    ended = status.job(job.name)
    assert ended is not None, "the servers keep a job until they stop"
    return to_row(ended, seconds)
