"""Which memory mapped weights take, and when weights are not mapped."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.job import table_start
from ps_worker.memory.os_memory import can_overlay
from tests.component.mapped import SMALL, Wide, mapped, script, sgd
from tests.component.reference import seeded
from tests.component.service import Cluster, fresh_name, partitions, run_workers
from tests.inside import exchange_of

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


def test_many_small_parameters_are_copied(cluster: Cluster):
    """To show each of them elsewhere would take longer."""

    def body(worker: ps.Worker) -> None:
        model = nn.ParameterList([nn.Parameter(torch.zeros(16)) for _ in range(50)])
        optimizer = worker.wrap(sgd(model), model)
        exchange = exchange_of(optimizer)
        assert not exchange.memory.mapped
        assert table_start.WORTH_MAPPING_BYTES > mmap.PAGESIZE

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
                with cell.lock:  # who answers a pull gives back what was lent behind that
                    assert cell.values.doubled
                    assert not cell.machine.staged
                    assert not cell.loans
        assert partitions(cluster, job) > 4

    run_workers(cluster, body, job=job)


def test_memory_of_shards_is_never_pinned(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A model that moves to an accelerator after wrap: to pin a page is to write it, as mlock shows."""
    device = Pinning()

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        memory = mapped(worker.wrap(sgd(model), model, buckets=SMALL)).memory
        with monkeypatch.context() as patch:
            patch.setattr(torch, "get_device_module", lambda _: device)
            memory.stagings.of(torch.device("cuda"))
        memory.stagings._of.clear()  # nothing is copied there
        assert device.pinned == {tensor.data_ptr() for tensor in memory.gradients.tensors}
        assert not memory.written()

    run_workers(cluster, body)


class Pinning:
    """A CUDA module, as far as `Stagings` calls it, that locks memory as a driver does."""

    def __init__(self) -> None:
        self.pinned: set[int] = set()
        self.Stream = lambda device: None

    def cudart(self) -> Pinning:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, _flags: int) -> int:  # noqa: N802 - CUDA's name
        ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
        ctypes.CDLL(None).munlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
        self.pinned.add(address)
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 - CUDA's name
        self.pinned.discard(address)
