"""Servers that are stopped in order and started again: nothing is lost, and nobody notices but by waiting."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest
import torch

import ps_worker as ps
import ps_worker.membership.membership
from ps_server.coordinator.jobs.runner import JobRunner
from tests.component.reference import batch, seeded
from tests.component.service import Cluster, fresh_name, partitions, run_workers, together
from tests.inside import link_of
from tests.until import LIMIT_S

SMALL = ps.BucketOptions(partition_bytes=4096)  # both shards have some


@pytest.fixture
def lasting(loop_thread, tmp_path):
    """Two shards with state directories, and nothing durable else."""
    cluster = Cluster(loop_thread, 2, options={"state_dir": tmp_path / "state-{shard}"})
    yield cluster
    cluster.close()


def body(cluster, job, rank, carrier, clip_grad_norm, at_step):
    with ps.connect(servers=cluster.servers, job=job, num_workers=2, worker=rank, carrier=carrier) as worker:
        model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.fill_(0.01 * (number + 1))
        optimizer = worker.wrap(
            torch.optim.AdamW(model.parameters(), lr=0.05), model, clip_grad_norm=clip_grad_norm
        )
        data = torch.Generator().manual_seed(rank)
        for step in range(8):
            x = torch.randn(4, 256, generator=data)
            model(x).square().mean().backward()
            at_step(rank, step)
            optimizer.step()
            optimizer.zero_grad()
        worker.finish()
        return [parameter.detach().clone() for parameter in model.parameters()], link_of(
            worker
        ).presence.joined


@pytest.mark.parametrize(("carrier", "clip_grad_norm"), [("shm", None), ("tcp", 0.01)])
def test_a_rolling_restart_is_bit_exact(lasting, carrier, clip_grad_norm, caplog):
    """Each server in turn is stopped and started while workers train: same weights, same incarnations."""
    caplog.set_level(logging.INFO, logger="ps_server")
    job = fresh_name()
    stopping = {2: 1, 4: 0, 6: 1}
    meet = threading.Barrier(2, timeout=LIMIT_S)

    def restart(rank, step):
        if step in stopping and meet.wait() == 0:
            lasting.stop(stopping[step])
            lasting.start_again(stopping[step])

    def train(name, at_step):
        bodies = [
            lambda rank=rank: body(lasting, name, rank, carrier, clip_grad_norm, at_step) for rank in range(2)
        ]
        return together(bodies)

    expected = train(fresh_name(), lambda _rank, _step: None)
    found = train(job, restart)
    for (weights, joined), (whole, _) in zip(found, expected, strict=True):
        assert joined.incarnation == 1
        assert all(map(torch.equal, weights, whole))
    assert caplog.text.count(f"job {job}: event=restore hand_off=yes") == 1  # of the coordinator's process


def test_a_restart_of_the_coordinator_in_the_middle_of_an_epoch_hands_it_on(lasting):
    """A loader goes on in its share: every sample is used once in each epoch, and accounted for."""
    job, restarted = fresh_name(), []

    def train(worker):
        model = torch.nn.Linear(1, 1)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
        samples = torch.arange(40.0).reshape(40, 1)
        loader = worker.loader(torch.utils.data.TensorDataset(samples), batch_size=4, shuffle=False)
        found = []
        for epoch in worker.epochs(2):
            found.append([])
            for (x,) in loader:
                model(x).sum().backward()
                if epoch == 0 and len(found[0]) == 12:
                    lasting.stop(0)
                    lasting.start_again(0)
                    restarted.append(epoch)
                optimizer.step()
                optimizer.zero_grad()
                found[-1] += x.flatten().tolist()
        worker.finish()
        return found, [(use.samples, use.used) for use in worker.stats().epochs if use.over]

    ((found, uses),) = run_workers(lasting, train, job=job)
    assert restarted == [0]
    assert [sorted(samples) for samples in found] == [list(range(40))] * 2
    assert uses == [(40, 40)] * 2


def test_what_one_used_who_left_while_a_shard_was_away_is_used_once_though_its_lease_ends_too(
    lasting, monkeypatch
):
    """Its leave waits for the shard, and so does its eviction: what it had committed is dealt to nobody."""
    monkeypatch.setattr(ps_worker.membership.membership, "LEAVE_LIMIT_S", 0.2)
    job, back = fresh_name(), threading.Event()

    def trained(worker, batches, most=1000):
        table, found = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL), []
        for samples in itertools.islice(batches, most):
            table.push({"w": torch.ones(3000)}).result(LIMIT_S)
            table.pull().result(LIMIT_S)
            found += samples.tolist()
            assert most < 1000 or back.wait(LIMIT_S)
        return found

    def body(rank):
        options = {"num_workers": 2, "worker": rank, "consistency": "asp"}
        with ps.connect(servers=lasting.servers, job=job, **options) as worker:
            batches = iter(worker.loader(range(60), batch_size=3))
            found = trained(worker, batches, 3 if rank else 1000)
            if rank:
                lasting.stop(1)
        if rank:
            lasting.begin_eviction(job, 1)
            lasting.start_again(1)
            back.set()
        return found

    found = together([lambda: body(0), lambda: body(1)])
    assert sorted(found[0] + found[1]) == list(range(60))


def test_a_rolling_restart_with_backup_workers_is_the_replay_of_whom_it_took(lasting):
    """Servers are stopped while one worker is behind, at work on weights that are not the newest."""
    steps, backup, workers = 8, 1, 3
    stopping = {2: 1, 4: 0, 6: 1}
    job, meet = fresh_name(), threading.Barrier(workers, timeout=LIMIT_S)

    def train(worker):
        model = seeded(lambda: torch.nn.Linear(256, 64))
        optimizer = worker.wrap(torch.optim.AdamW(model.parameters(), lr=0.05), model)
        numbers = []
        for step in range(steps):
            late = worker.rank == step % workers
            loss = loss_of(model, worker.rank, step)
            if late:
                meet.wait()  # the others have gone on
                if step in stopping:
                    lasting.stop(stopping[step])
                    lasting.start_again(stopping[step])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.synchronize()
            numbers.append(optimizer.step_number)
            if not late:
                meet.wait()
            meet.wait()
        stats = worker.stats()
        worker.finish()
        return (
            [it.detach().clone() for it in model.parameters()],
            numbers,
            stats,
            link_of(worker).presence.joined,
        )

    found = run_workers(lasting, train, num_workers=workers, consistency=f"bsp:backup={backup}", job=job)
    model = seeded(lambda: torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in [rank for rank in range(workers) if rank != step % workers]:
            loss_of(model, rank, step).backward()  # torch adds to .grad in rank order
        for parameter in model.parameters():
            parameter.grad.div_(workers - backup)
        optimizer.step()
    for rank, (weights, numbers, stats, joined) in enumerate(found):
        assert all(map(torch.equal, weights, model.parameters()))
        assert numbers == list(range(1, steps + 1))
        assert joined.incarnation == 1
        assert stats.dropped == partitions(lasting, job) * len(range(rank, steps, workers))
        assert stats.missed == 0


def loss_of(model, rank, step):
    return model(batch(rank, step, 4, 256)).square().mean()


def test_a_job_that_is_forgotten_while_the_coordinator_stops_is_no_trouble(lasting, monkeypatch):
    """Another one waits for what is on its way; what is handed off is what is left."""

    def trains(worker):
        worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
        worker.finish()

    for _ in range(2):
        run_workers(lasting, trains)
    rooms = lasting.coordinator.runners
    assert len(rooms) == 2

    async def settle(_room):
        if len(rooms) > 1:
            rooms.popitem()

    monkeypatch.setattr(JobRunner, "settle", settle)
    assert lasting._loop.start(lasting.coordinator.drain()).result(LIMIT_S)
    assert len(rooms) == 1
