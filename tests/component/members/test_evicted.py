"""Workers that fall silent for longer than their lease: others go on, and they join again by themselves."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import Evicted, StrangerRefused
from ps_wire.frames.carrier import Carrier
from ps_worker.membership.incarnation import Incarnation
from ps_worker.membership.member_stream import MemberStream
from tests.component.models import Mlp, loss_of
from tests.component.reference import seeded
from tests.component.service import fresh_name, together
from tests.inside import link_of
from tests.until import LIMIT_S, until


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))


def step(table: ps.Table, value: float = 1.0) -> float:
    table.push({"w": torch.full((3000,), -value)})
    return float(table.pull().result(LIMIT_S).values["w"].min())  # without a barrier partitions may differ


@pytest.mark.parametrize("consistency", ["bsp", "ssp:0"])
def test_a_silent_worker_is_evicted_and_joins_again(cluster, consistency, caplog):
    """The other goes on without it, and then with it, from a step that is named; nobody gets an error."""
    job = fresh_name()
    evicted = threading.Event()
    again = threading.Event()

    def join(rank):
        return ps.connect(
            servers=cluster.servers, job=job, consistency=consistency, num_workers=2, worker=rank
        )

    def stays():
        with join(0) as worker:
            table = table_of(worker)
            values = [step(table) for _ in range(4)]  # from the third on the other is silent
            evicted.set()
            while not again.is_set():
                values.append(step(table))
            worker.finish()
            return values, table.step

    def falls_silent():
        with join(1) as worker:
            table = table_of(worker)
            for _ in range(2):
                step(table)
            cluster.evict(job, 1)
            assert evicted.wait(LIMIT_S)
            before = table.step
            step(table, 1000.0)  # void
            entered = table.step
            for _ in range(3):
                step(table)
            again.set()
            worker.finish()
            return before, entered, link_of(worker).presence.joined.incarnation

    with caplog.at_level("INFO"):
        (values, steps), (before, entered, incarnation) = together([stays, falls_silent])
    assert before == 2
    assert 4 <= entered <= steps
    assert incarnation == 2
    assert values == sorted(values)
    assert max(values) < 1000.0
    assert "event=evict worker=1 incarnation=1" in caplog.text
    assert "event=rejoin worker=1 incarnation=2" in caplog.text


@pytest.mark.parametrize("overlap", [True, False])
def test_a_training_loop_goes_on_after_an_eviction_without_a_line_of_code(cluster, overlap):
    """Weights, buffers, param_groups and what is registered are those of the lowest worker that trains."""
    job = fresh_name()
    gone, again = threading.Event(), threading.Event()

    def body(rank):
        with ps.connect(servers=cluster.servers, job=job, num_workers=2, worker=rank) as worker:
            model = torch.nn.Sequential(seeded(Mlp), torch.nn.BatchNorm1d(3))
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, overlap=overlap)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            mine = torch.full((), float(rank))
            worker.register_state("scheduler", scheduler)
            worker.register_state("mine", mine)

            def train():
                loss_of(model[0], worker.rank, worker.step).backward()
                model[1].running_mean.add_(1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()

            train()
            if rank == 1:
                cluster.evict(job, 1)
                assert gone.wait(LIMIT_S)
                train()
                found = scheduler.last_epoch, worker.step, float(mine), float(model[1].running_mean[0])
                again.set()
            else:
                for _ in range(3):
                    train()
                gone.set()
                while not again.is_set():
                    train()
                found = None
            worker.finish()
            return found, {name: it.clone() for name, it in model.state_dict().items()}

    (_, first), (found, second) = together([lambda: body(0), lambda: body(1)])
    epoch, at, mine, mean = found
    assert at >= 4
    assert mine == 0.0
    assert 4 <= epoch <= at  # the state is that of a step before the one that it enters at
    assert mean == epoch
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("carrier", list(Carrier))
def test_who_is_evicted_while_it_connects_again_joins_again_though_the_shard_says_so_first(
    carrier, monkeypatch, one_shard
):
    """Its push is on its way when the shard answers; what the coordinator says comes afterwards."""
    job, shard = fresh_name(), one_shard.shards[0].shard
    replace_session, take_reply, fail = shard.replace_session, MemberStream._receive_reply, Incarnation.fail
    heard = threading.Event()

    def evicted():
        (entry,) = [it for it in shard.jobs() if it.name == job]
        return 0 in entry.fenced and 0 not in entry.sessions.expelled

    def evicts_first(*args):
        monkeypatch.delattr(shard, "replace_session")
        one_shard.evict(job, 0)
        until(evicted)
        return replace_session(*args)

    def takes_late(stream, number, reply):
        if reply.WhichOneof("kind") == "refused":
            assert heard.wait(LIMIT_S)
        take_reply(stream, number, reply)

    def hears(incarnation, error):
        fail(incarnation, error)
        if threading.current_thread().name.startswith("ps-shard"):
            heard.set()

    monkeypatch.setattr(MemberStream, "_receive_reply", takes_late)
    monkeypatch.setattr(Incarnation, "fail", hears)
    with ps.connect(servers=one_shard.servers, job=job, num_workers=1, carrier=carrier) as worker:
        table = table_of(worker)
        assert step(table) == 1.0
        monkeypatch.setattr(shard, "replace_session", evicts_first, raising=False)
        (entry,) = [it for it in shard.jobs() if it.name == job]
        session = entry.sessions.live[0, 0]
        session.retire()  # over gRPC frames may come for a moment after the connection was cut
        session.sever()
        step(table, 1000.0)
        assert link_of(worker).incarnation == 2
        assert step(table) < 1000.0
        worker.finish()


def test_a_stream_that_breaks_is_no_death(cluster, caplog):
    """It is made again; what was said on the way is not lost, nor taken twice."""
    job = fresh_name()
    with (
        caplog.at_level("INFO"),
        ps.connect(servers=cluster.servers, job=job, num_workers=1) as worker,
    ):
        for number in range(3):
            link_of(worker).presence.membership._stream._call.cancel()
            table = worker.table({f"w{number}": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0))
            table.push({f"w{number}": torch.ones(10)}).result(LIMIT_S)
        worker.finish()
    said = [line for line in caplog.text.splitlines() if f"job {job}:" in line]  # not of jobs of other tests
    assert any("event=resume worker=0" in line for line in said)
    assert not any("event=evict" in line for line in said)


def test_who_is_evicted_while_it_finishes_joins_again_and_finishes(one_shard):
    """It waits for the others as before, and gets the final weights."""
    job = fresh_name()
    others = threading.Event()

    def body(rank):
        with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
            table = table_of(worker)
            step(table)
            if rank == 0:
                one_shard.evict(job, 1)
                assert others.wait(LIMIT_S)
            else:
                others.set()
            worker.finish()
            return step_free(table)

    def step_free(table):
        return float(table.pull().result(LIMIT_S).values["w"].unique())

    assert together([lambda: body(0), lambda: body(1)]) == [1.0, 1.0]


def test_who_is_evicted_after_a_shard_has_called_it_a_stranger_joins_again(one_shard):
    """As a shard does that has come back without it, before the coordinator sends everybody back."""
    job = fresh_name()
    with ps.connect(servers=one_shard.servers, job=job, num_workers=1) as worker:
        first = table_of(worker)
        link_of(worker).exchanges.fail(StrangerRefused("worker 0 with incarnation 1 has not joined"))
        one_shard.evict(job, 0)
        until(lambda: isinstance(link_of(worker).exchanges.failure, Evicted))
        second = table_of(worker)
        assert link_of(worker).incarnation == 2
        assert step(first) == step(second) == 1.0
        worker.finish()


def test_who_is_evicted_after_a_shard_has_called_it_a_stranger_steps_on_with_its_table(one_shard):
    job = fresh_name()
    with ps.connect(servers=one_shard.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        link_of(worker).exchanges.fail(StrangerRefused("worker 0 with incarnation 1 has not joined"))
        one_shard.evict(job, 0)
        until(lambda: isinstance(link_of(worker).exchanges.failure, Evicted))
        assert [step(table), step(table)] == [0.0, 1.0]  # the batch in hand is dropped
        assert link_of(worker).incarnation == 2
        worker.finish()


def test_who_is_evicted_before_the_start_starts_with_the_others(one_shard):
    """While it waits in wrap: it joins again, and the job begins when all are there."""
    job = fresh_name()
    waits = threading.Event()

    def body(rank):
        with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
            if rank == 0:
                assert waits.wait(LIMIT_S)
                one_shard.evict(job, 1)
            else:
                waits.set()
            table = table_of(worker)
            return step(table), link_of(worker).presence.joined.incarnation

    assert together([lambda: body(0), lambda: body(1)]) == [(1.0, 1), (1.0, 2)]


def test_a_worker_that_was_alone_goes_on_with_its_own_buffers_and_the_jobs_optimizer_state(one_shard):
    """A suspended job waits for nobody; `state_dict` joins again first."""
    with ps.connect(servers=one_shard.servers, job=(job := fresh_name()), num_workers=1) as worker:
        model = seeded(Mlp)
        model.register_buffer("mean", torch.zeros(2))
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        model.mean.fill_(3.0)
        one_shard.evict(job, 0)
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
        assert worker.step == 1
        assert float(model.mean[0]) == 3.0
        worker.finish()


def test_gradients_of_another_optimizer_from_before_the_eviction_are_void(one_shard):
    """Two optimizers: the first finds the eviction; neither takes a step, so their clocks stay together."""
    with ps.connect(servers=one_shard.servers, job=(job := fresh_name()), num_workers=1) as worker:
        models = [seeded(Mlp) for _ in range(2)]
        pair = [worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model) for model in models]
        before = [it.clone() for it in models[1].parameters()]
        for model in models:
            loss_of(model, 0, 0).backward()
        one_shard.evict(job, 0)
        until(lambda: isinstance(link_of(worker).exchanges.failure, Evicted))  # else the first step counts
        for optimizer in pair:
            optimizer.step()
        assert [optimizer.step_number for optimizer in pair] == [0, 0]
        assert not any(optimizer.abstained for optimizer in pair)
        assert all(torch.equal(a, b) for a, b in zip(before, models[1].parameters(), strict=True))
        for optimizer in pair:
            optimizer.zero_grad()
        for model, optimizer in zip(models, pair, strict=True):
            loss_of(model, 0, 1).backward()
            optimizer.step()
        assert not all(torch.equal(a, b) for a, b in zip(before, models[1].parameters(), strict=True))
        worker.finish()


def test_who_joins_in_mid_run_gets_what_those_who_train_have(one_shard):
    """Weights of the step it enters at; buffers, param_groups and what it registers, as worker 0 has them."""
    job = fresh_name()
    trained, joined = threading.Event(), threading.Event()

    def connect(rank):
        return ps.connect(servers=one_shard.servers, job=job, num_workers="1:2", worker=rank)

    def made(worker):
        model = torch.nn.Sequential(seeded(Mlp), torch.nn.BatchNorm1d(3))
        return model, worker.wrap(torch.optim.SGD(model.parameters(), lr=0.5), model)

    def first():
        with connect(0) as worker:
            model, optimizer = made(worker)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            worker.register_state("scheduler", scheduler)
            while not joined.is_set():
                loss_of(model[0], 0, worker.step).backward()
                model[1].running_mean.fill_(7.0)
                optimizer.step()
                optimizer.zero_grad()
                if worker.step < 3:
                    scheduler.step()
                elif worker.step > 5:
                    trained.set()
            worker.finish()
            return [it.clone() for it in model.parameters()]

    def second():
        assert trained.wait(LIMIT_S)
        with connect(1) as worker:
            model, optimizer = made(worker)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            worker.register_state("scheduler", scheduler)
            found = worker.step, scheduler.last_epoch, float(model[1].running_mean[0])
            lr = optimizer.param_groups[0]["lr"]
            loss_of(model[0], 1, 0).backward()
            optimizer.step()
            joined.set()
            worker.finish()
            return found, lr, [it.clone() for it in model.parameters()]

    weights, ((step_, epoch, mean), lr, final) = together([first, second])
    assert step_ > 5
    assert (epoch, mean) == (2, 7.0)
    assert lr == 0.5 * 0.5**2
    assert all(torch.equal(a, b) for a, b in zip(weights, final, strict=True))
