"""The numbers of the demo's table."""

import io

import pytest
from rich.console import Console

from ps_lab.demo import Row, comparison, find_script, to_row
from ps_lab.errors import DemoFailed
from ps_wire.spec.staleness import Staleness

from .made import made_job, made_table, made_table_worker, made_worker

ENDED = made_job(
    consistency="asp",
    num_workers=2,
    state="ended",
    workers=(
        made_worker(0, metrics={"accuracy": 0.98, "seconds": 4.0, "loss": 0.1}),
        made_worker(1, metrics={"accuracy": 0.96, "seconds": 6.0}),
    ),
    tables=(
        made_table(
            max_version=500,
            tau_counts={1: 98, 9: 2},
            workers=(made_table_worker(0, gate_wait_s=1.0), made_table_worker(1, gate_wait_s=2.0)),
        ),
    ),
)


def test_a_row_has_the_lowest_accuracy_and_means_over_workers() -> None:
    assert to_row(ENDED, 9.5) == Row(
        consistency="asp",
        accuracy=0.96,
        seconds=9.5,
        training_s=5.0,
        updates=500,
        tau=Staleness(pushes=100, mean=1.16, p99=9, max=9),
        blocked_s=1.5,
    )


def test_a_run_that_reports_no_accuracy_is_no_row() -> None:
    with pytest.raises(DemoFailed, match="no worker reported"):
        to_row(made_job(workers=(made_worker(0, metrics={"loss": 0.1}),)), 1.0)


def test_the_table_has_what_the_demo_promises() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison([to_row(ENDED, 9.5)]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for expected in ("asp", "0.9600", "9.5", "5.0", "500", "100", "1.16", "1.50", "updates/s", "blocked"):
        assert expected in text


def test_the_demo_finds_its_script_in_the_source_tree() -> None:
    assert find_script().name == "digits.py"
