"""The table of a run's workers on a terminal."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from ps_lab.cluster.run_table import MOST_ROWS, RunTable
from tests.unit.ps_lab.made import made_job, made_worker


def drawn(table: Table | None) -> list[list[str]]:
    """Its rows, in words."""
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [line.split() for line in lines if line.strip() and "─" not in line]


def test_each_worker_has_step_rate_loss_and_the_part_of_its_time_that_it_waits() -> None:
    table = RunTable()
    first = (made_worker(0, step=1, samples=100), made_worker(1, step=3, samples=0, state="joined"))
    table.of(made_job(workers=first), 10.0)
    then = (
        made_worker(0, step=9, samples=1300, waited_s=1.0, metrics={"loss": 0.25}),
        made_worker(1, step=3, samples=0, state="finished"),
    )
    assert drawn(table.of(made_job(workers=then), 14.0)) == [
        ["worker", "step", "samples/s", "loss", "waits"],
        ["0", "9", "300", "0.25", "25%"],
        ["1", "3", "finished"],
    ]


def test_the_same_look_is_no_new_one() -> None:
    table, job = RunTable(), made_job(workers=(made_worker(0, samples=10),))
    assert table.of(None, 0.0) is None
    assert table.of(job, 1.0) is table.of(job, 5.0)


def test_of_many_workers_those_that_are_furthest_behind_are_shown() -> None:
    workers = tuple(made_worker(number, step=100 - number) for number in range(MOST_ROWS + 4))
    rows = drawn(RunTable().of(made_job(workers=workers), 0.0))[1:]
    assert [row[0] for row in rows[:-1]] == [str(number) for number in range(4, MOST_ROWS + 4)]
    assert rows[-1] == ["…", "4", "more,", "further", "ahead"]
