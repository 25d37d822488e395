"""Parameters that move or are changed after wrap: followed with the bytes of torch, or an error by name."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps

from .models import Mlp, loss_of
from .reference import assert_same, check, seeded
from .service import Cluster, run_workers

STEPS = 4


def sgd(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kind)


def train(rank: int, model: nn.Module, optimizer: Any, steps: range = range(STEPS)) -> None:
    for step in steps:
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


# -- moved ---------------------------------------------------------------------------------------------


def shares(model: nn.Module) -> None:
    model.share_memory()


def pickles(model: nn.Module) -> None:
    """As for a process of torch.multiprocessing: the storages move into shared memory."""
    ForkingPickler.dumps(model)


@pytest.mark.parametrize("move", [shares, pickles], ids=lambda move: move.__name__)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_model_that_moves_into_shared_memory_trains_on(cluster: Cluster, num_workers: int, move: Any):
    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        train(rank, model, optimizer, range(2))
        move(model)
        assert all(parameter.is_shared() for parameter in model.parameters())
        train(rank, model, optimizer, range(2, STEPS))
        assert all(parameter.is_shared() for parameter in model.parameters())

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers)


@pytest.mark.parametrize("move", [shares, pickles], ids=lambda move: move.__name__)
def test_a_model_that_moves_before_finish_gets_the_final_weights(cluster: Cluster, move: Any):
    """The other worker goes on by itself, so they are new."""
    models = [seeded(Mlp), seeded(Mlp)]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model)
        train(worker.rank, model, optimizer, range(2 + 2 * worker.rank))
        if worker.rank == 0:
            move(model)
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    assert_same(*models)
