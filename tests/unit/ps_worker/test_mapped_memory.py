"""Which memory mapped weights take, and when weights are not mapped."""

from __future__ import annotations

import mmap

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.shared_memory import AVAILABLE
from ps_worker import link
from ps_worker.memory import can_overlay

from .mapped import SMALL, Wide, mapped, script, sgd
from .reference import seeded
from .service import Cluster, fresh_name, partitions, run_workers

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


def test_many_small_parameters_are_copied(cluster: Cluster):
    """To show each of them elsewhere would take longer."""

    def body(worker: ps.Worker) -> None:
        model = nn.ParameterList([nn.Parameter(torch.zeros(16)) for _ in range(50)])
        optimizer = worker.wrap(sgd(model), model)
        (started,) = optimizer._started
        assert not started.exchange.memory.mapped
        assert link.WORTH_MAPPING_BYTES > mmap.PAGESIZE

    run_workers(cluster, body)


def test_a_shard_keeps_no_slice_of_a_gradient(cluster: Cluster):
    """What a worker has pushed is read where it lies, and nothing of it is kept once its step has closed."""
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        mapped(optimizer)
        script(0, model, optimizer)
        worker.synchronize()
        for server in cluster.shards:
            for cell in server.shard.table(job, 0).cells():
                assert cell.values.doubled
                assert not cell.machine.staged
                assert not cell._lent
        assert partitions(cluster, job) > 4

    run_workers(cluster, body, job=job)
