"""Tensors that share a parameter's memory and are kept over steps, where weights are mapped (bsp)."""

from __future__ import annotations

import pytest
import torch

import ps_worker as ps
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import can_overlay
from tests.component.mapped import mapped
from tests.component.models import Mlp, loss_of
from tests.component.reference import seeded
from tests.component.service import Cluster, run_workers

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


@pytest.mark.parametrize("kept", ["state_dict", "data", "numpy"])
def test_what_is_kept_over_a_step_shows_every_second_version_and_the_parameter_every_one(
    cluster: Cluster, kept: str
):
    def body(worker: ps.Worker) -> None:
        model = seeded(lambda: Mlp(700))
        parameter = model.first.weight
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, overlap=False)
        mapped(optimizer)
        view = {
            "state_dict": lambda: model.state_dict()["first.weight"],
            "data": lambda: parameter.data,
            "numpy": lambda: torch.from_numpy(parameter.detach().numpy()),
        }[kept]()
        versions = [parameter.detach().clone()]
        shown = []
        for step in range(4):
            loss_of(model, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            versions.append(parameter.detach().clone())
            shown.append([place for place, it in enumerate(versions) if torch.equal(it, view)])
        assert shown == [[0], [2], [2], [4]]

    run_workers(cluster, body)
