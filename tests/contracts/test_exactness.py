"""Training is exact over every carrier, also where connections break at any byte."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.frames.carrier import Carrier
from ps_wire.v1 import shard_pb2
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, seeded
from tests.component.service import Cluster, figures, fresh_name, partitions, run_workers

from ..faults.proxy import Proxy  # noqa: TID252

STEPS = 6
SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)
MAKE = {
    "SGD": lambda model, **kind: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kind),
    "Adam": lambda model, **kind: torch.optim.Adam(model.parameters(), lr=0.01, **kind),
}


def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def check_exact(server: Cluster, optimizer: str, **settings: Any) -> str:
    """Two workers train, and end with the weights of one process without servers; returns the job."""
    job, models = fresh_name(), [seeded(Mlp) for _ in range(2)]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        script(worker.rank, model, worker.wrap(MAKE[optimizer](model), model, buckets=SMALL))
        worker.finish()

    run_workers(server, body, num_workers=2, job=job, **settings)
    expected = alone(script, seeded(Mlp), MAKE[optimizer], num_workers=2)
    for model in models:
        assert_same(model, expected)
    return job


@pytest.mark.parametrize("carrier", Carrier)
@pytest.mark.parametrize("optimizer", MAKE)
def test_law_1_holds_over_every_carrier(server: Cluster, carrier: str, optimizer: str):
    check_exact(server, optimizer, carrier=carrier)


@pytest.mark.parametrize("optimizer", MAKE)
def test_law_1_holds_over_tls(secure: Cluster, optimizer: str):
    check_exact(secure, optimizer, carrier="tcp")


@pytest.mark.parametrize(("carrier", "seed"), [("tcp", 0), ("tcp", 1), ("tcp", 2), ("tls", 0), ("tls", 1)])
def test_law_13_tcp_connections_are_reset_at_any_byte(its_server: Cluster, seed: int):
    """In mid-frame, between two, inside a handshake: every push counts once, and the weights are exact."""
    server = its_server
    service = server.shards[0]._service
    carriers = service.carriers
    (port,) = [offer.address for offer in carriers if offer.name == "tcp"]
    draw = random.Random(seed)
    cuts = [draw.randrange(1, 4000) for _ in range(5)]
    with Proxy(f"127.0.0.1:{port}", cuts) as proxy:
        service.carriers = (shard_pb2.Carrier(name="tcp", address=proxy.address.rpartition(":")[2]),)
        try:
            job = check_exact(server, "SGD")
        finally:
            service.carriers = carriers
        assert proxy.resets == len(cuts)
    for worker in range(2):
        counts = figures(server, job, worker)
        assert counts["applied"] == counts["received"] == STEPS * partitions(server, job)
