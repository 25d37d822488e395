"""Law 13 over real processes: whatever happens to a connection, each push is applied exactly once."""

from __future__ import annotations

import random

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import PushOutOfOrder
from ps_wire.frames.frame import Kind
from tests.integration.processes import LIMIT_S
from tests.integration.raw import RawWorker
from tests.integration.servers import Servers, fresh_job, until
from tests.integration.team import join, train

from .proxy import Proxy

pytestmark = [pytest.mark.integration, pytest.mark.fault]

WORKERS, STEPS, COLUMNS = 2, 25, 1024
# Several frames a shard and step: a reset falls within a frame as well as between two.
SMALL = ps.BucketOptions(bucket_bytes=65_536, first_bucket_bytes=16_384, partition_bytes=16_384)


def one_hot(rank: int, clock: int) -> torch.Tensor:
    update = torch.zeros(WORKERS, STEPS, COLUMNS)
    update[rank, clock] = -1.0
    return update


def pushes(worker: ps.Worker) -> torch.Tensor:
    """Pushes a one-hot a step, and returns the sum of all updates that were applied."""
    start = {"w": torch.zeros(WORKERS, STEPS, COLUMNS)}
    table = worker.table(start, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
    for clock in range(STEPS):
        table.push({"w": one_hot(worker.rank, clock)})
        seen = table.pull().result(LIMIT_S).values["w"]
        assert (seen[worker.rank, : clock + 1] > 0).all()
    worker.finish()
    return table.pull().result(LIMIT_S).values["w"]


def check_applied_once(servers: Servers, job: str, finals: list[torch.Tensor], consistency: str) -> None:
    """Every update is in the weights exactly once, and the ledgers say the same."""
    share = 1.0 / WORKERS if consistency == "bsp" else 1.0
    for values in finals:
        assert (values == share).all()
    for shard in (0, 1):
        table = servers.table(shard, job)
        for rank in range(WORKERS):
            ledger = servers.ledger(shard, job, rank)
            assert ledger.received == ledger.applied == STEPS * table.partitions
            assert ledger.dropped == ledger.abstained == 0
        updates = STEPS if consistency == "bsp" else STEPS * WORKERS
        assert (table.min_version, table.max_version) == (updates, updates)
    assert servers.ledger(1, job, 1).duplicates == 0  # of the worker whose connections held


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
@pytest.mark.parametrize("seed", [1, 2])
def test_law_13_resets_while_pushes_are_under_way(cluster: Servers, consistency: str, seed: int) -> None:
    """Connections of one worker to one shard are reset at random bytes, again and again."""
    job, draw = fresh_job(), random.Random(seed)
    cuts = [draw.randrange(500, 5000), *(draw.randrange(3000, 250_000) for _ in range(4))]
    with Proxy(cluster.addresses[1], cuts) as proxy:
        reach = [f"{cluster.addresses[0]},{proxy.address}", cluster.option]
        finals = train(reach, pushes, num_workers=WORKERS, consistency=consistency, job=job, carrier="grpc")
        assert proxy.cuts_left == 0
        assert proxy.resets == len(cuts)
    check_applied_once(cluster, job, finals, consistency)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_law_13_acks_are_lost(cluster: Servers, consistency: str) -> None:
    """A push arrives, its ack does not, the connection breaks: sent again, it counts as a duplicate."""
    job = fresh_job()
    grpc = {"consistency": consistency, "carrier": "grpc"}  # the carrier that goes through the proxy
    with (
        Proxy(cluster.addresses[1]) as proxy,
        join(f"{cluster.addresses[0]},{proxy.address}", job, **grpc) as worker,
    ):
        table = worker.table({"w": torch.zeros(8, 4096)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        partitions = cluster.table(1, job).partitions
        for step in range(1, 4):
            proxy.mute()
            pushed = table.push({"w": -torch.ones(8, 4096)})
            applied = step * partitions
            until(lambda applied=applied: cluster.ledger(1, job, 0).applied == applied, f"step {step}")
            assert not pushed.done()
            proxy.reset()
            pushed.result(LIMIT_S)
            assert (table.pull().result(LIMIT_S).values["w"] == step).all()
            ledger = cluster.ledger(1, job, 0)
            assert ledger.received == ledger.applied == step * partitions
            assert ledger.duplicates == step * partitions
        worker.finish()


def test_law_13_weights_are_lost_on_their_way(cluster: Servers) -> None:
    """A pull whose answer is lost is asked again, and answered with the same weights."""
    job = fresh_job()
    with (
        Proxy(cluster.addresses[1]) as proxy,
        join(f"{cluster.addresses[0]},{proxy.address}", job, consistency="bsp", carrier="grpc") as worker,
    ):
        table = worker.table({"w": torch.zeros(8, 4096)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        table.push({"w": -torch.ones(8, 4096)}).result(LIMIT_S)
        sent = cluster.table(1, job).bytes_out
        proxy.mute()
        pulled = table.pull()
        until(lambda: cluster.table(1, job).bytes_out > sent, "the answer is on its way")
        assert not pulled.done()
        proxy.reset()
        assert (pulled.result(LIMIT_S).values["w"] == 1).all()
        assert pulled.result().version == 1
        worker.finish()


@pytest.mark.parametrize("consistency", ["bsp", "ssp:0", "asp"])
def test_law_13_duplicate_frames(cluster: Servers, consistency: str) -> None:
    """A frame that comes again, at once or steps later, is acknowledged again and not applied again."""
    with RawWorker(cluster, consistency) as worker:
        stream, partition = worker.streams[1], next(worker.partitions(shard=1))
        for step in range(3):
            for again in (step, step, 0):
                stream.send(worker.push(partition, again))
                ack = stream.receive()
                assert (ack.kind, ack.step) == (Kind.ACK, again)
            assert worker.read(partition, step + 1) == {step + 1.0}
        ledger = cluster.ledger(1, worker.job, 0)
        assert (ledger.received, ledger.applied, ledger.duplicates) == (3, 3, 6)


@pytest.mark.parametrize("consistency", ["bsp", "ssp:0", "asp"])
def test_law_13_reordered_frames(cluster: Servers, consistency: str) -> None:
    """A step that comes too early is refused with the clock to send again from; in order it is taken."""
    with RawWorker(cluster, consistency) as worker:
        stream, partition = worker.streams[1], next(worker.partitions(shard=1))
        for step in (1, 2):
            stream.send(worker.push(partition, step, value=-8.0))
            refusal = stream.refusal()
            assert type(refusal) is PushOutOfOrder
            assert refusal.facts["clock"] == 0
        for step in (0, 1, 2):
            stream.send(worker.push(partition, step))
            assert stream.receive().kind is Kind.ACK
            assert worker.read(partition, step + 1) == {step + 1.0}
        ledger = cluster.ledger(1, worker.job, 0)
        assert (ledger.received, ledger.applied, ledger.duplicates, ledger.refused) == (3, 3, 0, 2)


def test_law_13_a_push_on_the_old_connection_and_again_on_the_new(cluster: Servers) -> None:
    """Which of the two is first does not matter: one is applied, and the answer goes to the new one."""
    with RawWorker(cluster, "asp") as worker:
        partition = next(worker.partitions(shard=1))
        for step in range(5):
            old = worker.streams[1]
            old.send(worker.push(partition, step))
            new = worker.streams[1] = worker.connect(1)
            new.send(worker.push(partition, step))
            ack = new.receive()
            assert (ack.kind, ack.step) == (Kind.ACK, step)
            assert worker.read(partition, step + 1) == {step + 1.0}
            old.__exit__()
        ledger = cluster.ledger(1, worker.job, 0)
        assert (ledger.received, ledger.applied) == (5, 5)
        assert ledger.duplicates <= 5
