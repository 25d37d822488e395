"""A worker whose weights are mapped leaves, or finishes: what is whose memory from then on."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.shared_memory import AVAILABLE
from ps_worker.memory import can_overlay

from .mapped import SMALL, mapped
from .service import Cluster, run_workers

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


def wrapped(worker: ps.Worker, **options: object) -> tuple[nn.Module, ps.WrappedOptimizer]:
    """Two layers of zeros, in several partitions on both shards; SGD with lr 1."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, buckets=SMALL, **options)
    mapped(optimizer)
    return model, optimizer


def backward(model: nn.Module) -> None:
    """Leaves gradients of zeros."""
    (model(torch.ones(2, 64)).sum() * 0.0).backward()


def test_what_a_worker_does_to_its_gradients_once_it_has_left_changes_nobodys_weights(cluster: Cluster):
    """Its last push counts, and was copied before `leave` returned: the step closes later."""
    left = threading.Event()

    def body(worker: ps.Worker) -> None:
        model, optimizer = wrapped(worker, gradient_as_bucket_view=True, overlap=True)
        for _ in range(3):  # from then on gradients are where shards read them
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        if worker.rank == 1:
            backward(model)
            optimizer.step()
            worker.leave()
            for parameter in model.parameters():
                parameter.grad.fill_(1000.0)
            left.set()
            return
        assert left.wait(30)
        backward(model)
        optimizer.step()
        worker.synchronize()
        assert not any(parameter.any() for parameter in model.parameters())

    run_workers(cluster, body, num_workers=2)
