"""Laws of docs/consistency.md over real server processes: each worker is a thread here."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn.functional import cross_entropy

import ps_worker as ps
from ps_wire.frames.carrier import Carrier
from ps_wire.sockets.shared_memory import AVAILABLE
from tests.until import until

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


class Turns:
    """Workers go one at a time, in an order that the test gives."""

    def __init__(self, order: list[int]) -> None:
        self._order = order
        self._at = 0
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """The next turn of this worker."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._order[self._at] == rank, LIMIT_S)
            yield
            self._at += 1
            self._changed.notify_all()


def test_law_3_bsp_does_not_depend_on_arrival_order(cluster: Servers) -> None:
    """Each push of a worker has arrived before the next worker's leaves: in other orders, the same bytes."""
    workers, steps = 3, 4

    def run(seed: int) -> torch.Tensor:
        draw = random.Random(seed)
        turns = Turns([rank for _ in range(steps) for rank in draw.sample(range(workers), workers)])

        def body(worker: ps.Worker) -> torch.Tensor:
            table = worker.table({"w": torch.ones(4000)}, optimizer=ps.Adam(lr=0.1), buckets=SMALL)
            for step in range(steps):
                generator = torch.Generator().manual_seed(100 * worker.rank + step)
                gradient = {"w": torch.randn(4000, generator=generator) * 10.0 ** (worker.rank - 1)}
                with turns.turn(worker.rank):
                    table.push(gradient, weight=(1.0, 3.0, 0.5)[worker.rank]).result(LIMIT_S)
                values = table.pull().result(LIMIT_S).values["w"]
            worker.finish()
            return values

        return train(cluster, body, num_workers=workers, consistency="bsp")[0]

    expected = run(0)
    for seed in (1, 2, 3):
        assert torch.equal(run(seed), expected)


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


@pytest.mark.parametrize("staleness", [0, 2])
def test_laws_5_and_6_the_gap_and_the_version_staleness_are_bounded(cluster: Servers, staleness: int) -> None:
    """A worker goes s + 1 ahead of others that stand; what these then push is no staler than it may be."""
    workers, steps, job = 3, 8, fresh_job()
    ahead = staleness + 1

    def body(worker: ps.Worker) -> None:
        start = {"w": torch.zeros(4000)}
        table = worker.table(start, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        table.pull().result(LIMIT_S)
        if worker.rank:
            for shard in (0, 1):
                until(lambda shard=shard: cluster.ledger(shard, job, 0).max_gap >= ahead, "it is ahead")
        for _ in range(steps):
            table.push({"w": torch.ones(4000)})
            table.pull().result(LIMIT_S)
        worker.finish()

    train(cluster, body, num_workers=workers, consistency=f"ssp:{staleness}", job=job)
    for shard in (0, 1):
        gaps = [cluster.ledger(shard, job, rank).max_gap for rank in range(workers)]
        assert max(gaps) == gaps[0] == ahead
        taus = dict(cluster.table(shard, job).tau)
        assert 0 < max(taus) <= (2 * staleness + 1) * (workers - 1)
        assert sum(taus.values()) == workers * steps * cluster.table(shard, job).partitions


def test_laws_7_and_10_asp_never_waits_and_conserves_version_staleness(cluster: Servers) -> None:
    """Worker 0 is at its end before others have begun; push and pull are one turn, whosever it is."""
    workers, job = 3, fresh_job()
    draw = random.Random(7)
    order = [0] * 20 + [draw.randrange(1, workers) for _ in range(30)] + [-1]
    turns, read = Turns(order), [0] * workers
    began = threading.Barrier(workers)

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(4000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        began.wait(LIMIT_S)  # all have read version 0
        for _ in range(order.count(worker.rank)):
            with turns.turn(worker.rank):
                table.push({"w": torch.ones(4000)}).result(LIMIT_S)
                pulled = table.pull().result(LIMIT_S)
                assert pulled.spread == 0
                read[worker.rank] = pulled.version
        worker.finish()

    train(cluster, body, num_workers=workers, consistency="asp", job=job)
    updates = len(order) - 1
    for shard in (0, 1):
        table = cluster.table(shard, job)
        assert table.min_version == table.max_version == updates
        applied = sum(tau * count for tau, count in dict(table.tau).items())
        in_flight = sum(updates - version for version in read)
        assert applied + in_flight * table.partitions == (workers - 1) * updates * table.partitions
        assert [cluster.ledger(shard, job, rank).gate_wait_s for rank in range(workers)] == [0.0] * workers


@pytest.mark.parametrize("consistency", ["bsp", "bsp:backup=1", "ssp:1", "asp:max_delay=1"])
def test_law_12_every_push_is_accounted_for(cluster: Servers, consistency: str) -> None:
    """Applied, dropped, abstained: gradients, some with NaN, and steps without one."""
    workers, steps, job = 3, 10, fresh_job()

    def body(worker: ps.Worker) -> int:
        table = worker.table({"w": torch.zeros(4000)}, optimizer=ps.SGD(lr=0.01), buckets=SMALL)
        draw = random.Random(worker.rank)
        for _ in range(steps):
            kind = draw.choice(("gradient", "gradient", "nan", "abstain"))
            if kind == "abstain":
                table.abstain()
            else:
                table.push({"w": torch.full((4000,), torch.nan if kind == "nan" else 1.0)})
            table.pull().result(LIMIT_S)
        worker.finish()
        return steps

    settings = {"num_workers": workers, "consistency": consistency, "job": job, "nonfinite": "skip"}
    pushed = train(cluster, body, **settings)
    total = Counter[str]()
    for shard in (0, 1):
        partitions = cluster.table(shard, job).partitions
        for rank, count in enumerate(pushed):
            ledger = cluster.ledger(shard, job, rank)
            assert ledger.received == count * partitions
            assert ledger.applied + ledger.dropped + ledger.abstained == ledger.received
            total.update(applied=ledger.applied, dropped=ledger.dropped, abstained=ledger.abstained)
    assert total["applied"] > 0
    assert total["abstained"] > 0
    assert (total["dropped"] == 0) or consistency in ("bsp:backup=1", "asp:max_delay=1")


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
