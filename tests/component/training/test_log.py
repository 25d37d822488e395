"""`worker.log` takes whatever is one number, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import ps_worker as ps
from ps_wire.errors import UsageError
from tests.component.service import Cluster, run_workers
from tests.inside import steps_of

GRADED = torch.tensor(2.5, requires_grad=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (True, 1.0),
        (2.5, 2.5),
        (GRADED, 2.5),
        (GRADED * 2, 5.0),
        (torch.tensor([[1.5]], requires_grad=True), 1.5),
        (torch.tensor([True]), 1.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array([4]), 4.0),
        (math.inf, math.inf),
    ],
    ids=str,
)
def test_one_number_in_any_form_is_kept(cluster: Cluster, value: Any, expected: float):
    def body(worker: ps.Worker) -> None:
        worker.log(loss=value)
        assert dict(steps_of(worker).progress().metrics) == {"loss": expected}

    run_workers(cluster, body)


def test_nan_is_a_number_and_the_latest_value_counts(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        worker.log(loss=1.0, accuracy=0.5)
        worker.log(loss=torch.tensor(math.nan))
        metrics = steps_of(worker).progress().metrics
        assert math.isnan(metrics["loss"])
        assert metrics["accuracy"] == 0.5

    run_workers(cluster, body)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, requires_grad=True), r"Tensor of shape \(2,\), torch.float32"),
        (torch.zeros(0), r"Tensor of shape \(0,\)"),
        (torch.tensor(1j), r"Tensor of shape \(\), torch.complex64"),
        (torch.zeros((), device="meta"), r"Tensor of shape \(\)"),
        (np.zeros(3), r"ndarray of shape \(3,\), float64"),
        ([1.0], r"\[1.0\]"),
        ("much", "'much'"),
        (10**400, "an int out of range"),
        (10**5000, "an int out of range"),
        (None, "None"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, int) else "large",
)
def test_what_is_no_number_is_a_named_error(cluster: Cluster, value: Any, text: str):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(UsageError, match=rf"log\(loss=\.\.\.\) takes a number, got {text}"):
            worker.log(loss=value)
        assert not steps_of(worker).progress().metrics

    run_workers(cluster, body)


def test_a_name_that_cannot_travel_is_a_named_error_and_heartbeats_go_on(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(UsageError, match=r"names of Unicode text, got '.*udce9'"):
            worker.log(**{"loss\udce9": 1.0})
        assert not steps_of(worker).progress().metrics

    run_workers(cluster, body)
