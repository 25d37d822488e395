"""Many small parameters over shared memory: they stay where they are, and each version is mapped there."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import can_overlay
from tests.component.mapped import adam, mapped, momentum, sgd
from tests.component.reference import assert_same, batch, check, seeded
from tests.component.service import Cluster, run_workers
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


class Many(nn.Module):
    """300 parameters of 1.2 kB, one of which has no gradient in odd steps."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(300) * 0.01) for _ in range(300)])

    def forward(self, x: torch.Tensor, *, all_of_it: bool) -> torch.Tensor:
        parts = list(self.parts)[: 300 if all_of_it else 299]
        return (x @ torch.stack(parts).t()).square().mean()


def places(model: nn.Module) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


def script(rank: int, model: nn.Module, optimizer: Any, steps: int = 5) -> None:
    for step in range(steps):
        model(batch(rank, step, 8, 300), all_of_it=step % 2 == 0).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("make", [sgd, momentum, adam])
@pytest.mark.parametrize("options", [{}, {"overlap": False, "gradient_as_bucket_view": True}])
def test_training_is_that_of_plain_torch_to_the_bit_and_nothing_moves(
    cluster: Cluster, make: Any, options: dict[str, Any]
):
    def looking(rank: int, model: nn.Module, optimizer: Any) -> None:
        before = places(model)
        script(rank, model, optimizer)
        if isinstance(optimizer, ps.WrappedOptimizer):
            assert mapped(optimizer).memory.front() is not None
            assert places(model) == before

    check(cluster, looking, seeded(Many), make, num_workers=2, **options)


def test_what_a_script_writes_past_autograd_is_found_in_the_next_step(cluster: Cluster):
    """And undone: training goes on as if nothing had been written."""

    def body(worker: ps.Worker) -> None:
        model, twin = seeded(Many), seeded(Many)
        optimizer = worker.wrap(sgd(model), model, overlap=False)
        reference = sgd(twin, fused=True)
        mapped(optimizer)
        for _ in range(2):
            script(0, model, optimizer, 1)
            script(0, twin, reference, 1)
            model(batch(0, 9, 8, 300), all_of_it=True).backward()
            model.parts[217].data.add_(1.0)
            with pytest.raises(ps.WeightsChanged):
                optimizer.step()
            optimizer.zero_grad()
            assert_same(model, twin)

    run_workers(cluster, body)


def test_who_leaves_keeps_its_weights_while_others_train_on(cluster: Cluster):
    gone, done = threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> None:
        model = seeded(Many)
        optimizer = worker.wrap(sgd(model), model)
        mapped(optimizer)
        script(worker.rank, model, optimizer, 2)
        if worker.rank == 1:
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            before = places(model)
            worker.leave()
            gone.set()
            assert done.wait(LIMIT_S)
            assert places(model) == before
            assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
            with torch.no_grad():
                model.parts[0].zero_()  # it is its own
            return
        assert gone.wait(LIMIT_S)
        script(0, model, optimizer)
        worker.synchronize()
        assert model.parts[0].any()
        done.set()

    run_workers(cluster, body, num_workers=2)
