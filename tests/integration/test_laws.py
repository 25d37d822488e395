"""Laws of docs/consistency.md over real server processes: each worker is a thread here."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.functional import cross_entropy

import ps_worker as ps
from ps_wire.carrier import Carrier
from ps_wire.shared_memory import AVAILABLE

from .processes import LIMIT_S
from .servers import Servers, fresh_job
from .team import train

pytestmark = pytest.mark.integration

SMALL = ps.BucketOptions(bucket_bytes=16_384, first_bucket_bytes=4096, partition_bytes=4096)


def seeded_model(*, norm: bool = False) -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Linear(11, 129),
        torch.nn.BatchNorm1d(129) if norm else torch.nn.Tanh(),
        torch.nn.Linear(129, 3),
    )
    generator = torch.Generator().manual_seed(7)  # threads share the global one
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 11, generator=generator), torch.randint(3, (count,), generator=generator)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_law_2_bsp_with_batch_b_is_close_to_one_worker_with_batch_n_times_b(cluster: Servers) -> None:
    """BSP(4, b) against one worker with 4b: relative L2 of the weights <= 1e-5 after 20 SGD steps."""
    size, workers, steps = 8, 4, 20
    batches = [samples(size * workers, seed) for seed in range(steps)]

    def body(worker: ps.Worker) -> torch.Tensor:
        model = seeded_model()
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        mine = slice(size * worker.rank, size * (worker.rank + 1))
        for x, y in batches:
            cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
            optimizer.zero_grad()
        worker.finish()
        return weights(model)

    model = seeded_model()
    start = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    expected = weights(model)
    assert (expected - start).norm() > 0.01 * start.norm()
    for got in train(cluster, body, num_workers=workers, consistency="bsp"):
        assert (got - expected).norm() <= 1e-5 * expected.norm()


@pytest.fixture(params=Carrier)
def carrier(request: pytest.FixtureRequest) -> str:
    """Each that there is here."""
    if request.param is Carrier.SHM and not AVAILABLE:
        pytest.skip("no shared memory that can be sealed")
    return request.param


@pytest.mark.parametrize("staleness", [0, 2])
def test_law_4_a_reader_misses_no_update_that_is_old_enough(
    cluster: Servers, staleness: int, carrier: str
) -> None:
    """Under SSP(s) a reader at clock c sees every update with timestamp <= c - s - 1, and none twice."""
    workers, steps, columns = 3, 12, 64
    seen: list[tuple[int, torch.Tensor]] = []

    def body(worker: ps.Worker) -> None:
        start = {"w": torch.zeros(workers, steps, columns)}
        table = worker.table(start, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        for clock in range(steps):
            update = torch.zeros(workers, steps, columns)
            update[worker.rank, clock] = -1.0
            table.push({"w": update})
            seen.append((table.step, table.pull().result(LIMIT_S).values["w"]))
        worker.finish()

    train(cluster, body, num_workers=workers, consistency=f"ssp:{staleness}", carrier=carrier)
    assert len(seen) == workers * steps
    for clock, values in seen:
        assert ((values == 0) | (values == 1)).all()
        assert (values[:, : max(clock - staleness, 0)] == 1).all(), clock


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_law_8_a_worker_reads_its_own_writes(cluster: Servers, consistency: str, carrier: str) -> None:
    """What a worker pushed is in its next pull; versions never go back, on any partition."""
    workers, steps, columns = 3, 10, 512
    share = 1.0 / workers if consistency == "bsp" else 1.0

    def body(worker: ps.Worker) -> None:
        start = {"w": torch.zeros(workers, steps, columns)}
        table = worker.table(start, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        newest, before = 0, torch.zeros(workers, steps, columns)
        for clock in range(steps):
            update = torch.zeros(workers, steps, columns)
            update[worker.rank, clock] = -1.0
            table.push({"w": update})
            pulled = table.pull().result(LIMIT_S)
            values = pulled.values["w"]
            assert (values[worker.rank, : clock + 1] == share).all()
            assert (values >= before).all()
            assert pulled.version >= newest
            newest, before = pulled.version, values
        worker.finish()

    train(cluster, body, num_workers=workers, consistency=consistency, carrier=carrier)


def trained(servers: Servers, consistency: str, num_workers: int, carrier: str) -> torch.Tensor:
    """Weights after some steps of Adam with a schedule of lr, in several partitions per shard."""

    def body(worker: ps.Worker) -> torch.Tensor:
        model = seeded_model()
        adam = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = worker.wrap(adam, model, buckets=SMALL)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(8):
            x, y = samples(16, 100 * worker.rank + step)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        worker.finish()
        return weights(model)

    first, *others = train(servers, body, num_workers=num_workers, consistency=consistency, carrier=carrier)
    assert all(torch.equal(first, other) for other in others)
    return first


def test_law_9_asp_with_one_worker_is_the_local_loop(cluster: Servers, carrier: str) -> None:
    """ASP with one worker gives the bytes of torch.optim (fused) in a plain loop."""
    model = seeded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(8):
        x, y = samples(16, step)
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert torch.equal(trained(cluster, "asp", 1, carrier), weights(model))


def test_law_11_two_shards_equal_one(cluster: Servers, single: Servers, carrier: str) -> None:
    """BSP with 2 workers gives the same bytes on 2 shards as on 1."""
    assert torch.equal(trained(cluster, "bsp", 2, carrier), trained(single, "bsp", 2, carrier))


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_law_18_unequal_numbers_of_batches_end(cluster: Servers, consistency: str, carrier: str) -> None:
    """Workers with 3, 9 and 6 batches all end, with the same final weights and buffers (BatchNorm's)."""
    gone = threading.Event()

    def body(worker: ps.Worker) -> dict[str, torch.Tensor]:
        model = seeded_model(norm=True)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for step in range((3, 9, 6)[worker.rank]):
            if worker.rank and step == 5 and consistency != "asp":
                assert gone.wait(LIMIT_S)  # the shortest has said that it is done
            x, y = samples(16, 100 * worker.rank + step)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if worker.rank == 0:
            gone.set()
        worker.finish()
        return {name: value.clone() for name, value in model.state_dict().items()}

    job = fresh_job()
    states = train(cluster, body, num_workers=3, consistency=consistency, job=job, carrier=carrier)
    assert states[0]["1.num_batches_tracked"] == 3  # the lowest worker's buffers
    for state in states[1:]:
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())
    for shard in (0, 1):
        for rank, batches in enumerate((3, 9, 6)):
            ledger = cluster.ledger(shard, job, rank)
            assert ledger.received == ledger.applied == batches * cluster.table(shard, job).partitions
