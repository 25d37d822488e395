"""While weights arrive: what scripts must not do, evictions, Ctrl-C and the end."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_worker import steps as steps_module
from tests.component.arriving import PAGES, Model, adam, arriving, bare, partitions_of, train
from tests.component.interrupting import interrupted_at, settled, sgd
from tests.component.last_moment import LastMoment
from tests.component.reference import alone, assert_same, batch, seeded
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import arrival_of, exchange_of, link_of
from tests.until import LIMIT_S, until


def test_a_parameter_that_is_read_past_its_module_is_an_error_that_names_it(cluster: Cluster):
    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        optimizer.zero_grad()
        out = model.second(model.first(model.into(batch(0, 3, 2, 3, 64))))
        loss = (out @ model.last.weight.T).square().mean()
        with pytest.raises(ps.UsageError, match=r"'last\.weight' was read before its new weights were here"):
            loss.backward()

    arriving(cluster, body)


def test_what_a_script_writes_while_weights_arrive_is_found(cluster: Cluster):
    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        with torch.no_grad():
            model.last.weight.clamp_(-1e-3, 1e-3)
        with pytest.raises(ps.WeightsChanged, match=r"last\.weight"):
            train(model, optimizer, [3])

    arriving(cluster, body)


@pytest.mark.parametrize("first", [True, False])
def test_an_eviction_is_no_error_of_a_forward_and_its_gradient_is_dropped(cluster: Cluster, first: bool):
    """Found before anything was read, the pass sees the weights of now; else the next step() joins again."""
    job = fresh_name()

    def body(worker: ps.Worker, model: Any, optimizer: Any, moments: LastMoment) -> None:
        exchange, before = exchange_of(optimizer), worker.step
        seen = []

        def evict(*_: Any) -> None:
            assert exchange.in_flight.wait_acked(limit_s=LIMIT_S)  # else the step before is undone, too
            cluster.evict(job, 0)
            until(lambda: exchange.in_flight.evicted, "it has heard")

        held = (
            range(exchange.plan.num_partitions) if first else partitions_of(optimizer, model, "last.weight")
        )
        moments.never.update(held)
        optimizer.zero_grad()
        if first:
            evict()
            moments.never.clear()
        hook = model.second.register_forward_hook(
            lambda *_: seen.append(exchange.in_flight.evicted) if first else evict()
        )
        loss = model(batch(0, 3, 2, 3, 64)).square().mean()
        hook.remove()
        assert seen == [False] * first  # it had joined again by then
        loss.backward()
        moments.never.clear()
        optimizer.step()
        assert link_of(worker).presence.joined.incarnation == 2
        train(model, optimizer, range(4, 6))
        assert worker.step >= before + 2
        worker.finish()

    arriving(cluster, body, job=job, lease=LIMIT_S)  # the step of a further eviction would be lost, too


@pytest.mark.parametrize("carrier", ["auto", "tcp"])
def test_wherever_ctrl_c_lands_while_weights_arrive_training_goes_on_with_whole_ones(
    cluster: Cluster, carrier: str
):
    """In a forward, backward or step, each time some lines later: with the step or without it."""

    def body(worker: ps.Worker) -> int:
        model, plain = seeded(Model), seeded(Model)
        optimizer: Any = worker.wrap(sgd(model), model, overlap=True, buckets=PAGES)
        line, interrupted = 0, True
        while interrupted:
            for twin, steps in ((model, optimizer), (plain, sgd(plain))):
                train(twin, steps, range(line, line + 3))
                steps.zero_grad()
            x = batch(0, line + 3, 2, 3, 64)
            plain(x).square().mean().backward()

            def step(x: torch.Tensor = x) -> None:
                model(x).square().mean().backward()
                optimizer.step()

            interrupted = interrupted_at(line, step)
            optimizer.abandon()
            assert bare(model)
            settled(optimizer, model, plain)
            line += 137
        worker.finish()
        assert_same(model, plain)
        return line

    (lines,) = run_workers(cluster, body, carrier=carrier)
    assert lines > 400


def test_who_leaves_before_its_weights_are_here_keeps_those_of_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps_module, "SETTLE_LIMIT_S", 0.01)
    model = seeded(Model)
    expected = alone(lambda _, plain, steps: train(plain, steps, range(2)), model, adam)

    def body(worker: ps.Worker, _model: Any, optimizer: Any, moments: LastMoment) -> None:
        moments.never.update(range(exchange_of(optimizer).plan.num_partitions))
        assert exchange_of(optimizer).memory.mapped
        worker.leave()
        assert bare(model)

    arriving(cluster, body, model=model)
    assert_same(model, expected)


@pytest.mark.parametrize("overlap", [False, "auto"])
def test_without_overlap_or_before_it_is_decided_step_returns_with_all_weights(
    cluster: Cluster, overlap: Any
):
    model = seeded(Model)
    steps = 1 if overlap == "auto" else 3
    expected = alone(lambda _, plain, it: train(plain, it, range(steps)), model, adam)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(adam(model), model, overlap=overlap, buckets=PAGES)
        LastMoment(exchange_of(optimizer), lambda *_: True)
        train(model, optimizer, range(steps))
        assert_same(model, expected)

    run_workers(cluster, body)


def test_while_modules_are_watched_a_copy_has_no_hooks(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Model)
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=PAGES)
        train(model, optimizer, range(1))
        assert arrival_of(optimizer)._hooks.watching
        assert bare(copy.deepcopy(model))
        train(model, optimizer, range(1, 5))
        assert arrival_of(optimizer).under_way  # it was put off, not given up

    run_workers(cluster, body)
