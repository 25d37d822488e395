"""Plain BSP over Unix sockets: gradients and weights leave by reference, and are owned until they arrive."""

from __future__ import annotations

import fcntl
import os
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.frames import frame as wire
from ps_wire.sockets.frame_socket import FrameSocket
from ps_wire.sockets.shared_memory import AVAILABLE
from tests.component.reference import alone, assert_same, batch, check, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no memory to be lent here")
F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h
BUCKETS = ps.BucketOptions(bucket_bytes=1 << 18, first_bucket_bytes=1 << 17, partition_bytes=1 << 17)


class Broad(nn.Module):
    """Partitions that are large enough to leave by reference, on both shards, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(67, 1021)
        self.second = nn.Linear(1021, 129)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


def sgd(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **kind)


def adam(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, **kind)


def script(rank: int, model: nn.Module, optimizer: Any) -> None:
    for step in range(5):
        model(batch(rank, step, 8, 67)).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that have left by reference, by whose memory it was: a server's is sealed against writers."""
    count: Counter[str] = Counter()
    send = os.sendfile

    def counted(to: int, descriptor: int, *where: int) -> int:
        sent = send(to, descriptor, *where)
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        count["server" if seals & F_SEAL_FUTURE_WRITE else "worker"] += sent
        return sent

    monkeypatch.setattr(os, "sendfile", counted)
    return count


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("overlap", [True, False])
def test_training_is_that_of_plain_torch_to_the_bit(
    cluster: Cluster, left: Counter[str], make: Any, overlap: bool
) -> None:
    how = {"num_workers": 3, "overlap": overlap, "buckets": BUCKETS, "carrier": "uds"}
    check(cluster, script, seeded(Broad), make, **how)
    assert left["worker"] > 0
    assert left["server"] > 0


@pytest.mark.parametrize("consistency", ["ssp:1", "asp", "bsp:backup=1"])
def test_where_weights_change_under_who_reads_them_nothing_leaves_by_reference(
    cluster: Cluster, left: Counter[str], consistency: str
) -> None:
    def body(worker: ps.Worker) -> None:
        model = seeded(Broad)
        script(worker.rank, model, worker.wrap(sgd(model), model, buckets=BUCKETS))
        worker.finish()

    run_workers(cluster, body, num_workers=2, carrier="uds", consistency=consistency)
    assert not left


def test_weights_that_a_worker_has_not_copied_yet_are_not_written(cluster: Cluster) -> None:
    """Worker 1 copies them after worker 0 has pushed the next step: it still finds its version."""
    pushed = threading.Event()
    waited = []

    def copying_late(exchange: Any) -> None:
        landing = exchange.landing

        def late(frame: wire.Frame, payload_bytes: int) -> memoryview | None:
            if frame.version == 1:
                waited.append(pushed.wait(LIMIT_S))
            return landing(frame, payload_bytes)

        exchange.landing = late

    def saying_so(exchange: Any) -> None:
        ask = exchange.pull

        def asked(*, step: int, **how: Any) -> None:
            ask(step=step, **how)
            if step == 2:  # after the pushes of step 1
                assert not exchange.in_flight.all_pulled_within(0.05)
                pushed.set()

        exchange.pull = asked

    def body(worker: ps.Worker) -> None:
        model = seeded(Broad)
        optimizer = worker.wrap(sgd(model), model, overlap=False, buckets=BUCKETS)
        (saying_so, copying_late)[worker.rank](exchange_of(optimizer))
        script(worker.rank, model, optimizer)
        worker.finish()
        assert_same(model, expected)

    expected = alone(script, seeded(Broad), sgd, num_workers=2)
    run_workers(cluster, body, num_workers=2, carrier="uds")
    assert waited
    assert all(waited)


def test_gradients_that_a_shard_has_not_copied_yet_are_not_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards copy them after the script has gone on, and written to its own gradients."""
    go = threading.Event()
    place = FrameSocket._place

    def late(head: wire.Header, landing: Any) -> memoryview:
        if head.kind is wire.Kind.PUSH and head.frame().step == 2:  # workers receive none
            assert go.wait(LIMIT_S)
        return place(head, landing)

    monkeypatch.setattr(FrameSocket, "_place", staticmethod(late))
    model = seeded(Broad)
    expected = alone(script, model, sgd)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(sgd(model), model, overlap=True, buckets=BUCKETS)
        exchange = exchange_of(optimizer)

        def then(step: int) -> None:
            optimizer.zero_grad(set_to_none=False)
            if step != 2:
                return
            before = [flat.clone() for flat in exchange.gradients.tensors]
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(123.0)
            assert not exchange.in_flight.all_free
            assert all(map(torch.equal, before, exchange.gradients.tensors))
            optimizer.zero_grad()
            go.set()
            exchange.in_flight.wait_free()

        for step in range(5):
            model(batch(0, step, 8, 67)).backward()
            optimizer.step()
            then(step)
        worker.finish()

    run_workers(cluster, body, carrier="uds")
    assert_same(model, expected)
