"""The workers of a run as a table, made again with each look at the servers: step, rate, loss, waits."""

from __future__ import annotations

from rich import box
from rich.table import Table

from ps_lab.status.rates import Rates
from ps_lab.status.status import GONE, Job, Worker
from ps_wire.text import one_line

MOST_ROWS = 16  # of the workers that are furthest behind


class RunTable:
    """Makes tables of one look after the other; one thread calls it."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._seen: Job | None = None
        self._table: Table | None = None

    def of(self, job: Job | None, now_s: float) -> Table | None:
        """The table of the job as it was seen last; None before any of its workers was seen."""
        if job is not None and job is not self._seen and job.workers:
            self._seen, self._table = job, self._made(job, now_s)
        return self._table

    def _made(self, job: Job, now_s: float) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in ("worker", "step", "samples/s", "loss", "waits"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        slowest_first = sorted(job.workers, key=lambda worker: (worker.state in GONE, worker.step))
        shown = {worker.worker for worker in slowest_first[:MOST_ROWS]}
        for worker in job.workers:
            rates = [
                self._rates.rate((worker.worker, name), value, now_s)
                for name, value in (("samples", worker.samples), ("waited", worker.waited_s))
            ]
            if worker.worker in shown:
                table.add_row(*_cells(worker, *rates))
        if len(shown) < len(job.workers):
            table.add_row("…", *[""] * 4, f"{len(job.workers) - len(shown)} more, further ahead")
        self._rates.forget_others()
        return table


def _cells(worker: Worker, samples_per_s: float | None, waits_share: float | None) -> tuple[str, ...]:
    loss = worker.metrics.get("loss")
    trains = worker.state == "running"
    return (
        str(worker.worker),
        str(worker.step),
        f"{samples_per_s:,.0f}" if trains and samples_per_s is not None else "",
        "" if loss is None else f"{loss:.4g}",
        f"{min(waits_share, 1.0):.0%}" if trains and waits_share is not None else "",
        one_line(worker.waits or ("" if trains else worker.state)),
    )
