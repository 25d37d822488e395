"""Ctrl-C at any line of backward or step(): training goes on with whole weights, with the step or without."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.interrupting import interrupted_at, settled, sgd
from tests.component.models import Mlp, loss_of
from tests.component.reference import assert_same, seeded
from tests.component.service import LIMIT_S, Cluster, run_workers

EACH = ps.BucketOptions(bucket_bytes=1, first_bucket_bytes=1)
STRIDE = 5  # of the lines that one test interrupts


WAYS_ON = {
    "abandon": lambda optimizer, model: optimizer.abandon(),
    "zero_grad": lambda optimizer, model: optimizer.zero_grad(),
    "forward": lambda optimizer, model: loss_of(model, 0, 0),
}


OVERLAPPING = ("abandon", True, "bsp", {})
# Without overlap a step has the same lines in all models: these share them.
SHARING = (
    (("zero_grad", False, "bsp", {}), (0, 3)),
    (("forward", False, "ssp:1", {}), (1, 4)),
    (("zero_grad", False, "asp", {"clip_grad_norm": 1e9}), (2, 0)),
)


@pytest.mark.parametrize(
    ("way", "overlap", "consistency", "options", "start"),
    [(*OVERLAPPING, start) for start in range(STRIDE)]
    + [(*kind, start) for kind, starts in SHARING for start in starts],
)
def test_wherever_ctrl_c_lands_in_backward_or_step_training_goes_on(
    cluster: Cluster, way: str, overlap: bool, consistency: str, options: Any, start: int
):
    """Over one run that is interrupted again and again, each time some lines later."""

    def body(worker: ps.Worker) -> int:
        model = seeded(Mlp)
        plain = copy.deepcopy(model)
        optimizer: Any = worker.wrap(sgd(model), model, overlap=overlap, buckets=EACH, **options)
        interrupted, line = True, start
        while interrupted:
            loss_of(plain, 0, line).backward()

            def step(line: int = line) -> None:
                loss_of(model, 0, line).backward()
                optimizer.step()

            interrupted = interrupted_at(line, step)
            WAYS_ON[way](optimizer, model)
            settled(optimizer, model, plain)
            for twin, steps in ((model, optimizer), (plain, sgd(plain))):
                steps.zero_grad()
                loss_of(twin, 0, line + 1).backward()
                steps.step()
                steps.zero_grad()
            assert_same(model, plain)
            line += STRIDE
        worker.finish()
        assert_same(model, plain)
        return line

    (lines,) = run_workers(cluster, body, consistency=consistency, limit_s=1.4 * LIMIT_S)
    assert lines > 100


def test_after_ctrl_c_in_backward_the_error_names_the_way_on(cluster: Cluster):
    """What had left counts, the rest abstains, and the gradients are cleared."""
    expected = [seeded(Mlp)]

    def body(worker: ps.Worker) -> int:
        model = seeded(Mlp)
        optimizer: Any = worker.wrap(sgd(model), model, overlap=True, buckets=EACH)
        boom = model.first.weight.register_hook(_interrupt) if worker.rank == 0 else None
        for step in range(3):
            if step == 0 and boom is not None:
                with pytest.raises(KeyboardInterrupt):
                    loss_of(model, 0, step).backward()
                boom.remove()
                for call in (optimizer.zero_grad, optimizer.state_dict):
                    with pytest.raises(ps.GradientChanged, match=r"after a Ctrl-C.*optimizer\.abandon\(\)"):
                        call()
                optimizer.abandon()
                assert all(parameter.grad is None for parameter in model.parameters())
                continue
            loss_of(model, worker.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        worker.finish()
        expected.append(model)
        return worker.step

    assert run_workers(cluster, body, num_workers=2) == [3, 3]
    assert_same(expected[1], expected[2])


def test_with_nothing_under_way_abandon_only_clears_gradients(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer: Any = worker.wrap(sgd(model), model, overlap=False)
        loss_of(model, 0, 0).backward()
        optimizer.abandon()
        assert worker.step == 0
        assert_same(model, seeded(Mlp))
        assert model.first.weight.grad is None

    run_workers(cluster, body)


def _interrupt(_gradient: torch.Tensor) -> None:
    raise KeyboardInterrupt
