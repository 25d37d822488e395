"""A run ends at its target by what its report will say of it."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from ps_lab.compare.metrics import window_of
from ps_lab.compare.progress import SILENT_S, RecordsProgress
from ps_lab.experiments.experiment import Target

from .growing import STEP_S, Records


def test_one_batch_that_is_below_the_target_ends_no_run(tmp_path: Path):
    records = Records(tmp_path, 2)
    watch = records.watch()
    for index in range(40):
        dips = index == 30
        for worker in (0, 1):
            records.step(worker, index * STEP_S, loss=0.1 if dips else 2.0)
        assert not watch.met(0.1 if dips else 2.0)
    assert records.target_s() is None
    for index in range(40, 60):
        for worker in (0, 1):
            records.step(worker, index * STEP_S, loss=0.5)
    assert watch.met(0.5)
    assert records.target_s() is not None


@pytest.mark.parametrize("seed", range(20))
def test_where_a_run_ends_its_report_finds_the_target_reached(tmp_path: Path, seed: int):
    """Whatever noise there is, and however late one of them writes."""
    draw = random.Random(seed)
    records = Records(tmp_path, 3)
    watch = records.watch()
    written = [0.0, 0.0, 0.0]
    for index in range(400):
        records.now_s = index * STEP_S
        for worker in range(3):
            while draw.random() < 0.7 and written[worker] < records.now_s:
                written[worker] += STEP_S * draw.uniform(0.8, 1.2)
                loss = 2.0 - 0.01 * index + draw.gauss(0.0, 0.5)
                records.step(worker, written[worker], loss=loss)
        if watch.met(0.0):
            break
    else:
        pytest.fail("it never ends")
    assert index > window_of(3)
    assert records.target_s() is not None


@pytest.mark.parametrize("loss", [1e308, math.inf, math.nan])
def test_a_loss_that_grows_beyond_all_numbers_reaches_no_target(tmp_path: Path, loss: float):
    records = Records(tmp_path, 1)
    for index in range(1, 13):
        records.step(0, index * STEP_S, loss=loss)
    assert not records.watch().met(loss)


def test_who_writes_no_more_is_not_waited_for(tmp_path: Path):
    records = Records(tmp_path, 2)
    watch = records.watch()
    records.step(1, STEP_S, loss=0.5)
    for index in range(2, 30):
        records.step(0, index * STEP_S, loss=0.5)
    assert not watch.met(0.5)
    records.now_s += SILENT_S
    records.step(0, 30 * STEP_S, loss=0.5)
    assert watch.met(0.5)


def test_what_is_logged_seldom_counts_as_it_was_logged_last(tmp_path: Path):
    """Of fewer values than a running mean has there is none; a loss of few steps is no loss."""
    accuracy = Target(metric="accuracy", value=0.9, larger_is_better=True)
    records = Records(tmp_path, 1)
    assert not records.watch(accuracy).met(0.95), "records say nothing yet"
    records.step(0, STEP_S, loss=0.1, accuracy=0.95)
    assert records.watch(accuracy).met(0.95)
    assert not records.watch(accuracy).met(0.85)
    assert not records.watch(accuracy).met(None)
    assert not records.watch().met(0.1)


def test_progress_is_read_from_records_as_they_grow(tmp_path: Path):
    records = Records(tmp_path, 2)
    progress = RecordsProgress(tmp_path, 2)
    assert progress.seen is None
    assert progress.line == "starting: 2 of 2 workers are there"
    records.step(0, STEP_S, loss=1.0)
    records.step(1, STEP_S, loss=2.0, accuracy=0.5)
    seen = progress.seen
    assert seen is not None
    assert (seen.step, seen.samples, seen.metrics) == (1, 8, {"accuracy": 0.5, "loss": 1.5})
    records.step(0, 2 * STEP_S, loss=3.0)
    seen = progress.seen
    assert seen is not None
    assert (seen.step, seen.samples, seen.metrics["loss"]) == (2, 12, 2.5)
