"""Lines of processes on the screen."""

from __future__ import annotations

import io

from rich.console import Console

from ps_lab.cluster.display import Display


def test_the_name_of_a_process_stands_once_before_each_of_its_lines() -> None:
    written = io.StringIO()
    with Display(Console(file=written, width=100)) as display:
        display.line("worker 1", "worker 1: data goes over shm")
        display.line("worker 1", "worker: data goes over uds")
        display.line("worker 1", "worker 10: not its own name")
        display.line("worker 1", "loss 0.5")
    assert written.getvalue().splitlines() == [
        "worker 1 | data goes over shm",
        "worker 1 | data goes over uds",
        "worker 1 | worker 10: not its own name",
        "worker 1 | loss 0.5",
    ]
