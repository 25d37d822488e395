"""A stage of a pipeline is stopped or told to end: its pipeline ends as one worker, and the others go on."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pipelines import SCRIPT, start_stages
from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job
from tests.until import until

pytestmark = [pytest.mark.integration, pytest.mark.fault]


def steps_on(process: Process, count: int = 10) -> None:
    """Waits until it has taken so many more steps."""
    for _ in range(count):
        process.wait_line("^step ")


def test_a_pipeline_of_which_a_stage_was_killed_forms_again_and_others_go_on_meanwhile(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Killed between two micro-batches, and while the other stage is behind its schedule; nobody hangs."""
    job = fresh_job()
    options = "--lease", "60", "--consistency", "asp"  # who trains on may be silent for half of it
    words = str(tmp_path), "1000000", "print"

    def pipelines(*more: str, **which: Any) -> list[list[Process]]:
        return start_stages(spawn, cluster, SCRIPT, *words, *more, job=job, options=options, **which)

    first, second = pipelines("dies in its schedule")
    for how in ("dies before its push", ""):
        assert second[1].wait_end() == -signal.SIGKILL
        assert second[0].wait_end() == 75
        assert re.search("GroupBroken: rank 1 .*(has gone|was silent)", second[0].text), second[0].text
        steps_on(first[0])
        (second,) = pipelines(how, number=1)
    for stage in (*first, *second):
        steps_on(stage)


def test_a_stage_that_hangs_in_a_schedule_ends_its_pipeline_and_sigterm_of_one_ends_all_at_one_step(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Nobody waits in a send or a receive for a stage that is stopped; the other pipeline trains on."""
    job = fresh_job()
    options = "--lease", "20", "--consistency", "asp"  # who is stopped is silent for half of it
    pipelines = start_stages(
        spawn, cluster, SCRIPT, str(tmp_path), "1000000", "print", job=job, options=options
    )
    for pipeline in pipelines:
        for stage in pipeline:
            steps_on(stage)

    pipelines[1][1].signal(signal.SIGSTOP)

    assert pipelines[1][0].wait_end() == 75
    assert "rank 1 on" in pipelines[1][0].text
    assert "was silent for" in pipelines[1][0].text

    def is_out() -> bool:
        status = cluster.status(job)
        assert status is not None
        return any(it.worker == 1 and it.state in ("left", "lost") for it in status.workers)

    until(is_out, "the pipeline is out")
    for stage in pipelines[0]:
        steps_on(stage)

    pipelines[0][1].signal(signal.SIGTERM)

    assert [stage.wait_end() for stage in pipelines[0]] == [75, 75]
    steps = [[line for line in stage.lines if line.startswith("step ")][-1] for stage in pipelines[0]]
    assert steps[0] == steps[1]
