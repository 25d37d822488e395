"""Weights that are not copied: they lie in two halves of shards' memory, which workers map (bsp, one host).

Every test looks that weights were mapped indeed: `mapped` fails where they are copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.frames import frame as wire
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import can_overlay
from tests.component.last_moment import apart
from tests.component.mapped import SMALL, Wide, adam, mapped, momentum, script, sgd
from tests.component.reference import alone, assert_same, batch, check, seeded
from tests.component.service import Cluster, fresh_name, run_workers, together
from tests.inside import exchange_of
from tests.until import LIMIT_S, until

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


def without_the_last(model: nn.Module, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        model(batch(0, step, 8, 67), all_of_it=False).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("make", [sgd, momentum, adam])
@pytest.mark.parametrize("overlap", [True, False])
def test_training_is_that_of_plain_torch_to_the_bit(cluster: Cluster, make: Any, overlap: bool):
    def looking(rank: int, model: nn.Module, optimizer: Any) -> None:
        if hasattr(optimizer, "_started"):
            mapped(optimizer)
        script(rank, model, optimizer)

    check(cluster, looking, seeded(Wide), make, num_workers=3, overlap=overlap, buckets=SMALL)


def test_the_weights_of_all_workers_lie_in_the_same_memory(cluster: Cluster):
    inodes = {}
    both = threading.Barrier(2, timeout=LIMIT_S)

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        inodes[worker.rank] = dict(mapped(optimizer).memory._laid)
        addresses = {model.first.weight.data_ptr()}
        for step in range(4):
            model(batch(worker.rank, step, 8, 67), all_of_it=True).backward()
            optimizer.step()
            addresses.add(model.first.weight.data_ptr())
        assert len(addresses) == 2  # of even and of odd versions
        both.wait()

    run_workers(cluster, body, num_workers=2)
    assert inodes[0] == inodes[1]
    assert sorted(inodes[0]) == [0, 1]  # both shards


def test_a_step_without_any_gradient_keeps_the_weights(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for _ in range(3):
            optimizer.step()
            assert all(map(torch.equal, before, model.parameters()))
        mapped(optimizer)

    run_workers(cluster, body)


def test_what_one_worker_writes_into_a_parameter_no_other_sees(cluster: Cluster):
    """Past autograd, between two steps; and who wrote is told by name of the error, whatever page it was."""
    written, looked = threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        mapped(optimizer)
        expected = model.sometimes.detach().clone()
        if worker.rank == 0:
            model.sometimes.data.fill_(7.0)
            written.set()
            assert looked.wait(LIMIT_S)
            with pytest.raises(ps.WeightsChanged):
                without_the_last(model, optimizer, 40)
            assert torch.equal(model.sometimes, expected)  # undone
        else:
            assert written.wait(LIMIT_S)
            assert torch.equal(model.sometimes, expected)
            looked.set()

    run_workers(cluster, body, num_workers=2)


def test_weights_that_arrive_are_seen_on_pages_that_were_written_to(cluster: Cluster):
    """After the error a page shows what the shard writes, as if nothing had happened."""

    def body(worker: ps.Worker) -> None:
        model, twin = seeded(Wide), seeded(Wide)
        optimizer, reference = worker.wrap(sgd(model), model, buckets=SMALL), sgd(twin, fused=True)
        mapped(optimizer)
        with torch.no_grad():
            model.first.weight.zero_()
        with pytest.raises(ps.WeightsChanged, match=r"first\.weight"):
            optimizer.step()
        optimizer.refresh()  # as the script would catch it and go on
        optimizer.zero_grad()
        for made, stepped in ((model, optimizer), (twin, reference)):
            script(0, made, stepped)
        worker.synchronize()
        assert_same(model, twin)

    run_workers(cluster, body)


def test_who_leaves_keeps_its_weights_while_others_train_on(cluster: Cluster):
    gone = threading.Event()

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        exchange = mapped(optimizer)
        if worker.rank == 1:
            state = model.state_dict()
            kept = {name: value.clone() for name, value in state.items()}
            worker.leave()
            gone.set()
            assert done.wait(LIMIT_S)
            for name, value in model.state_dict().items():
                assert torch.equal(value, kept[name])
                assert torch.equal(state[name], kept[name])  # memory of before, too
            with torch.no_grad():
                model.first.weight.zero_()  # it is its own
            return
        assert gone.wait(LIMIT_S)
        script(0, model, optimizer)
        assert model.first.weight.any()
        assert exchange.memory.mapped
        done.set()

    done = threading.Event()
    run_workers(cluster, body, num_workers=2)


def test_after_the_end_shards_hold_no_memory_of_a_worker_and_it_none_of_theirs(cluster: Cluster):
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        exchange = mapped(optimizer)
        script(0, model, optimizer)
        for server in cluster.shards:
            session = server.shard._jobs.by_name[job].sessions.live[0, 0]
            assert session._regions._tables
        worker.finish()
        for server in cluster.shards:
            session = server.shard._jobs.by_name[job].sessions.live[0, 0]
            until(lambda regions=session._regions: not regions._tables, "the shard has let go")
        assert not exchange.memory.mapped

    run_workers(cluster, body, job=job)


def test_a_late_answer_about_one_partition_changes_nothing(cluster: Cluster):
    """Each partition in turn is the last whose weights arrive."""
    model = seeded(Wide)
    expected = alone(script, model, momentum)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(momentum(model), model, buckets=SMALL, overlap=True)
        exchange = mapped(optimizer)
        take = exchange.receive
        kept: list[wire.Frame] = []

        def late(listed: wire.Frame) -> None:
            for frame in apart(listed):
                late_or_not(frame)

        def late_or_not(frame: wire.Frame) -> None:
            held_back = frame.version % exchange.plan.num_partitions
            if frame.kind is wire.Kind.PULLED and frame.partition == held_back and not kept:
                kept.append(frame)
                before = [parameter.data_ptr() for parameter in model.parameters()]
                threading.Timer(0.01, lambda: (seen.append(before), take(kept.pop()))).start()
                return
            take(frame)

        seen: list[list[int]] = []
        exchange.receive = late
        script(0, model, optimizer)
        assert len(seen) >= 3
        exchange.receive = take
        worker.finish()

    run_workers(cluster, body)
    assert_same(model, expected)


def test_a_reader_gets_whole_versions_while_halves_are_written(cluster: Cluster):
    """Every element of a version has the same value, so a torn read shows two."""
    job = fresh_name()
    started, read = threading.Event(), threading.Event()

    def trains() -> None:
        with ps.connect(servers=cluster.servers, job=job, num_workers=1, **cluster.settings) as worker:
            model = nn.ParameterList([nn.Parameter(torch.zeros(40_000))])
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, buckets=SMALL)
            mapped(optimizer)
            started.set()
            while not read.is_set():
                model[0].grad = torch.full((40_000,), -1.0)
                optimizer.step()

    def reads() -> None:
        try:
            assert started.wait(LIMIT_S)
            with ps.connect(servers=cluster.servers, job=job, role="reader", **cluster.settings) as reader:
                model = nn.ParameterList([nn.Parameter(torch.zeros(40_000))])
                for _ in range(10):
                    reader.read(model)
                    assert (model[0] == model[0][0]).all()
        finally:
            read.set()

    together([trains, reads])


@pytest.mark.parametrize("others", ["uds", "tcp", "grpc"])
def test_workers_of_one_job_may_have_other_carriers(cluster: Cluster, others: str):
    models = [seeded(Wide) for _ in range(2)]
    expected = alone(script, models[0], adam, num_workers=2)
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(adam(model), model, buckets=SMALL)
        exchange = exchange_of(optimizer)
        assert exchange.memory.mapped is (worker.rank == 0)
        script(worker.rank, model, optimizer)
        worker.finish()

    def one(rank: int) -> None:
        carrier = "auto" if rank == 0 else others
        with ps.connect(
            servers=cluster.servers, job=job, num_workers=2, worker=rank, carrier=carrier, **cluster.settings
        ) as worker:
            body(worker)

    together([lambda rank=rank: one(rank) for rank in range(2)])
    for model in models:
        assert_same(model, expected)


def test_a_broken_connection_is_made_again_over_the_same_memory(cluster: Cluster):
    model = seeded(Wide)
    expected = alone(script, model, momentum)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(momentum(model), model, buckets=SMALL)
        exchange = mapped(optimizer)
        laid = dict(exchange.memory._laid)
        for step in range(6):
            model(batch(0, step, 8, 67), all_of_it=step % 2 == 0).backward()
            if step % 2:
                for connection in exchange._connections:
                    connection._call.cancel()
            optimizer.step()
            optimizer.zero_grad()
        assert exchange.memory._laid == laid
        worker.finish()

    run_workers(cluster, body)
    assert_same(model, expected)


@pytest.mark.parametrize("end", [ps.Worker.finish, ps.Worker.leave])
def test_what_was_written_last_is_found_at_the_end(cluster: Cluster, end: Callable[[ps.Worker], None]):
    """No step came that would have found it; it is undone, and a second call ends."""

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        mapped(optimizer)
        script(0, model, optimizer)
        worker.synchronize()
        expected = model.sometimes.detach().clone()
        model.sometimes.data.fill_(7.0)
        with pytest.raises(ps.WeightsChanged):
            end(worker)
        assert torch.equal(model.sometimes, expected)
        end(worker)

    run_workers(cluster, body)


def test_an_error_of_the_script_is_not_hidden_by_what_it_had_written(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
):
    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        mapped(worker.wrap(sgd(model), model, buckets=SMALL))
        model.sometimes.data.fill_(7.0)
        raise ZeroDivisionError

    with caplog.at_level(logging.INFO, "ps_worker"), pytest.raises(ZeroDivisionError):
        run_workers(cluster, body)
    assert "was written by the script after wrap" in caplog.text
