"""Optimizer state that workers share: whose counts, who waits for whom, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import PayloadMismatch, StartLimitExceeded, StrangerRefused, UsageError
from ps_wire.v1 import shard_pb2 as pb
from ps_worker.job.optimizer_state_calls import OptimizerStateCalls
from ps_worker.transport.grpc_service import GrpcService
from tests.component.models import Mlp, loss_of
from tests.component.reference import seeded
from tests.component.service import fresh_name, run_workers
from tests.inside import link_of

SMALL = ps.BucketOptions(partition_bytes=4096)


def hurry(worker: ps.Worker) -> None:
    """From now on it waits for a load for a moment only."""
    state = link_of(worker).optimizer_state
    state._settings = dataclasses.replace(state._settings, start_limit_s=0.2)


# -- several workers -----------------------------------------------------------------------------------


def test_all_workers_load_and_worker_0s_state_is_used(cluster):
    """The others wait until it is on the shards, load after load; what they bring is not looked at."""
    models = [seeded(Mlp) for _ in range(3)]

    def body(worker):
        model = models[worker.rank]
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), momentum=0.9), model, buckets=SMALL)
        seen = []
        for number in (1, 2):
            loss_of(model, worker.rank, number).backward()
            optimizer.step()
            value = float(100 * number + worker.rank)
            states = [{"momentum_buffer": torch.full_like(item, value)} for item in model.parameters()]
            link_of(worker).share_state(0, number, states)
            seen.append(link_of(worker).dump_state(0)[0]["momentum_buffer"].unique().tolist())
        return seen

    assert run_workers(cluster, body, num_workers=3) == [[[100.0], [200.0]]] * 3


def test_only_the_starters_state_starts_a_table(one_shard):
    """As its weights."""

    def body(worker):
        model = seeded(Mlp)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        for parameter in model.parameters():
            optimizer.state[parameter] = {"momentum_buffer": torch.full_like(parameter, worker.rank + 1.0)}
        worker.wrap(optimizer, model)
        return link_of(worker).dump_state(0)[0]["momentum_buffer"].unique().tolist()

    assert run_workers(one_shard, body, num_workers=2) == [[1.0], [1.0]]


def test_a_load_that_worker_0_does_not_make_ends_at_the_start_limit(one_shard):
    """The error says who has to call what."""
    models = [seeded(Mlp) for _ in range(2)]

    def body(worker):
        model = models[worker.rank]
        worker.wrap(torch.optim.Adam(model.parameters()), model)
        if worker.rank == 1:
            hurry(worker)
            with pytest.raises(StartLimitExceeded, match="worker 0 has not called load_state_dict"):
                link_of(worker).share_state(0, 1, [])
        worker.finish()

    run_workers(one_shard, body, num_workers=2)


def test_who_joins_a_job_that_has_state_sets_none(one_shard, caplog):
    """Only a start takes it from a script; the log says so, and nobody waits for worker 0."""
    job = fresh_name()

    def body(worker):
        model = seeded(Mlp)
        worker.wrap(torch.optim.SGD(model.parameters(), momentum=0.9), model)
        value = 2.0 if link_of(worker).resumed else 1.0
        states = [{"momentum_buffer": torch.full_like(item, value)} for item in model.parameters()]
        link_of(worker).share_state(0, 1, states)
        return link_of(worker).dump_state(0)[0]["momentum_buffer"].unique().tolist()

    for _ in range(2):
        with caplog.at_level("INFO", "ps_worker"):
            assert run_workers(one_shard, body, num_workers=2, job=job) == [[1.0], [1.0]]
    assert caplog.text.count("sets nothing: the job has its state") == 2


# -- on the way ---------------------------------------------------------------------------------------


def beside(worker: ps.Worker, calls_of: Callable, say: Callable = print) -> OptimizerStateCalls:
    """Another one of the same worker, with another way to the shards."""
    presence = link_of(worker).presence
    return OptimizerStateCalls(worker._settings, lambda: presence.membership, calls_of=calls_of, say=say)


def test_a_call_that_breaks_is_made_again(cluster):
    """Once to every shard: what was dumped and loaded is whole."""
    model = seeded(Mlp)

    def body(worker):
        broken = set()

        nobody = GrpcService(["127.0.0.1:1"])

        def calls_of(shard):
            if shard not in broken:
                broken.add(shard)
                return nobody.shard(0)
            return link_of(worker).presence.service.shard(shard)

        worker.wrap(torch.optim.SGD(model.parameters(), momentum=0.9), model, buckets=SMALL)
        plan = link_of(worker).exchanges[0].plan
        states = [{"momentum_buffer": item.detach().clone()} for item in model.parameters()]
        beside(worker, calls_of).load(0, plan, states)
        assert broken == {0, 1}
        broken.clear()
        got = beside(worker, calls_of).dump(0, plan)
        nobody.close()
        return states, got

    ((given, got),) = run_workers(cluster, body)
    for one, other in zip(given, got, strict=True):
        assert torch.equal(one["momentum_buffer"], other["momentum_buffer"])


def test_the_log_says_once_that_steps_differ(one_shard):
    """A parameter in two partitions, of which one is a step ahead, as it may be without a barrier."""
    model, said, job = seeded(lambda: Mlp(width=137)), [], fresh_name()

    def body(worker):
        optimizer = worker.wrap(torch.optim.Adam(model.parameters()), model, buckets=SMALL)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        state = beside(worker, link_of(worker).presence.service.shard, said.append)
        plan = link_of(worker).exchanges[0].plan
        state.dump(0, plan)
        assert said == []
        cell = one_shard.shards[0].shard.table(job, 0).cell(plan.num_partitions - 1)
        cell.import_state([{**piece, "step": piece["step"] + 1} for piece in cell.export_state()])
        return [state.dump(0, plan)[0]["step"].item() for _ in range(2)]

    assert run_workers(one_shard, body, consistency="asp", job=job) == [[2.0, 2.0]]
    assert len(said) == 1


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"step": torch.tensor(1.0), "exp_avg": torch.zeros(3)}, "'exp_avg' of parameter 'first.weight' has"),
        ({"step": "many"}, "'step' of parameter 'first.weight' is 'many'"),
    ],
)
def test_a_state_that_does_not_fit_its_parameter_is_refused_by_name(one_shard, state, said):
    """Before anything is sent."""
    model = seeded(Mlp)

    def body(worker):
        worker.wrap(torch.optim.Adam(model.parameters()), model)
        with pytest.raises(UsageError, match=said):
            link_of(worker).load_state(0, [state, {}, {}, {}])

    run_workers(one_shard, body)


def test_a_state_that_the_optimizer_cannot_have_is_refused_and_the_old_one_stays(one_shard):
    """Unknown names, missing names, and requests of strangers."""
    model = seeded(Mlp)
    other = torch.zeros_like(model.first.weight)

    def body(worker):
        link = link_of(worker)
        optimizer = worker.wrap(torch.optim.Adam(model.parameters()), model)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        before = link.dump_state(0)
        for bad in (
            {**before[0], "max_exp_avg_sq": other},
            {"step": torch.tensor(1.0), "exp_avg": other},
        ):
            with pytest.raises(PayloadMismatch, match="exp_avg"):
                link.load_state(0, [bad, *before[1:]])
        for wrong in ({"worker": 7}, {"incarnation": 99}):
            mine = link.optimizer_state._key(0)
            stranger = pb.TableKey(**{**{field.name: value for field, value in mine.ListFields()}, **wrong})
            link.optimizer_state._key = lambda _, key=stranger: key
            with pytest.raises(StrangerRefused):
                link.dump_state(0)
            with pytest.raises(StrangerRefused):
                link.load_state(0, before)
            del link.optimizer_state._key
        return before, link.dump_state(0)

    ((before, after),) = run_workers(one_shard, body)
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)


def test_a_load_that_one_of_two_tables_refuses_leaves_the_first_one_set_and_can_be_made_again(cluster):
    """A load is one table after the other: it is whole only once it has returned."""

    def body(worker):
        model = seeded(Mlp)
        optimizer = worker.wrap(torch.optim.Adam(model.first.parameters()), model)
        optimizer.add_param_group({"params": list(model.second.parameters())})
        loss_of(model, 0, 0).backward()
        optimizer.step()
        good = optimizer.state_dict()
        loss_of(model, 0, 1).backward()
        optimizer.step()
        bad = {**good, "state": {**good["state"], 2: {"step": torch.tensor(1.0)}}}
        optimizer.zero_grad()
        with pytest.raises(PayloadMismatch):
            optimizer.load_state_dict(bad)
        steps = [[entry["step"].item() for entry in optimizer.state_dict()["state"].values()]]
        optimizer.load_state_dict(good)
        steps.append([entry["step"].item() for entry in optimizer.state_dict()["state"].values()])
        return steps

    assert run_workers(cluster, body) == [[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]]]


def test_one_who_has_finished_may_read_and_not_write(one_shard):
    """State of a job that has ended stays as it is."""
    model = seeded(Mlp)

    def body(worker):
        optimizer = worker.wrap(torch.optim.Adam(model.parameters()), model)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        worker.finish()
        states = link_of(worker).dump_state(0)
        with pytest.raises(StrangerRefused, match="may only read"):
            link_of(worker).load_state(0, states)
        return states[0]["step"].item()

    assert run_workers(one_shard, body) == [1.0]
