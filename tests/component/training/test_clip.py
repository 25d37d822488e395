"""Tables with `clip_grad_norm`, over two shards in one process: as torch clips the averaged gradient."""

from __future__ import annotations

import re
import threading

import pytest
import torch

import ps_worker as ps
from ps_server.shard.table.step_closer import StepCloser
from ps_wire.errors import ConfigurationRefused, TableMismatch, UsageError
from tests.component.differing import refused
from tests.component.models import Mlp, loss_of
from tests.component.reference import batch, seeded
from tests.component.service import Cluster, LoopThread, run_workers
from tests.until import LIMIT_S

SHAPES = {"a": (300, 50), "b": (5000,), "c": (7,)}
STEPS = 4


def gradients(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Of norms that differ from step to step, so that some are clipped and some are not."""
    return {
        name: batch(10 * rank + place, step, *shape) * (0.001 if step == 1 else 1.0)
        for place, (name, shape) in enumerate(SHAPES.items())
    }


def zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def alone(num_workers: int, max_norm: float) -> dict[str, torch.Tensor]:
    """Plain torch: the mean gradient, `clip_grad_norm_`, one optimizer."""
    weights = {name: torch.nn.Parameter(value) for name, value in zeros().items()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.5, momentum=0.9)
    for step in range(STEPS):
        every = [gradients(rank, step) for rank in range(num_workers)]
        for name, weight in weights.items():
            weight.grad = sum(one[name] for one in every) / num_workers
        torch.nn.utils.clip_grad_norm_(weights.values(), max_norm)
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def train(worker: ps.Worker, max_norm: float, steps: int = STEPS) -> dict[str, torch.Tensor]:
    table = worker.table(zeros(), optimizer=ps.SGD(lr=0.5, momentum=0.9), clip_grad_norm=max_norm)
    for step in range(steps):
        table.push(gradients(worker.rank, step))
        pulled = table.pull().result(LIMIT_S)
    worker.finish()
    return dict(pulled.values)


@pytest.mark.parametrize("max_norm", [1.0, 60.0])
@pytest.mark.parametrize("shards", ["one_shard", "cluster"])
def test_a_clipped_table_is_one_process_that_clips(
    request: pytest.FixtureRequest, shards: str, max_norm: float
) -> None:
    """Three workers: the weights after several steps, to 1e-6 of their size."""
    cluster = request.getfixturevalue(shards)
    expected = alone(3, max_norm)
    first, *others = run_workers(cluster, lambda worker: train(worker, max_norm), num_workers=3)
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, rtol=1e-6, atol=1e-6)
        assert all(torch.equal(other[name], first[name]) for other in others)
    assert not torch.allclose(expected["b"], alone(3, 1e6)["b"], rtol=1e-3)


def test_a_wrapped_model_is_clipped_on_the_servers_and_overlaps(cluster: Cluster) -> None:
    """As one process that averages two replicas' gradients and clips the mean, to 1e-6."""
    expected, replicas = seeded(Mlp), [seeded(Mlp) for _ in range(2)]
    options = {"lr": 0.1, "momentum": 0.9}

    def body(worker: ps.Worker) -> bool:
        model = replicas[worker.rank]
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), **options), model, clip_grad_norm=1e-2)
        for step in range(STEPS):
            loss_of(model, worker.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        worker.finish()
        return optimizer.overlaps

    assert run_workers(cluster, body, num_workers=2) == [True, True]
    plain = torch.optim.SGD(expected.parameters(), **options)
    for step in range(STEPS):
        (sum(loss_of(expected, rank, step) for rank in range(2)) / 2).backward()
        assert torch.nn.utils.clip_grad_norm_(expected.parameters(), 1e-2) > 1e-2
        plain.step()
        plain.zero_grad()
    for got in replicas:
        for one, other in zip(got.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_who_finishes_behind_its_last_push_reads_that_step_though_it_is_decided_late(cluster, monkeypatch):
    """A push is acknowledged when it is there; its step closes when all shards have heard the scale."""
    decide = StepCloser._decide

    def late(closer: StepCloser, step: int, scale: float) -> None:
        threading.Event().wait(0.2 * (step == STEPS - 1))
        decide(closer, step, scale)

    monkeypatch.setattr(StepCloser, "_decide", late)

    def body(worker: ps.Worker) -> float:
        table = worker.table({"w": torch.zeros(2000)}, optimizer=ps.SGD(lr=1.0), clip_grad_norm=1e9)
        for _ in range(STEPS):
            table.push({"w": torch.ones(2000)})
        worker.finish()
        return float(table.pull().result(LIMIT_S).values["w"].sum())

    assert run_workers(cluster, body, num_workers=2) == [-2000.0 * STEPS] * 2


class Two(torch.nn.Module):
    """Parameters whose gradients are 3 and 4."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))

    def forward(self) -> torch.Tensor:
        return (3 * self.a + 4 * self.b).sum()


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1"])
def test_param_groups_are_clipped_by_one_norm_and_none_is_added_to_them(
    cluster: Cluster, consistency: str
) -> None:
    """One of wrap's would be a table of its own, with a norm of its own: refused, and all is as it was."""
    expected = Two()
    plain = torch.optim.SGD([{"params": [expected.a]}, {"params": [expected.b]}], lr=1.0)
    expected().backward()
    torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
    plain.step()

    def body(worker: ps.Worker) -> None:
        model = Two()
        optimizer = torch.optim.SGD([model.a], lr=1.0)
        optimizer.add_param_group({"params": [model.b]})
        optimizer = worker.wrap(optimizer, model, clip_grad_norm=0.5)
        model.register_parameter("c", torch.nn.Parameter(torch.zeros(1)))
        with pytest.raises(UsageError, match="add param-groups before wrap, or wrap without clip_grad_norm"):
            optimizer.add_param_group({"params": [model.c]})
        assert (len(optimizer.param_groups), optimizer.num_tables) == (2, 1)
        model().backward()
        optimizer.step()
        worker.synchronize()
        for got, wanted in zip((model.a, model.b), expected.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0.0)
        worker.finish()

    run_workers(cluster, body, consistency=consistency)


def test_a_worker_that_leaves_holds_no_clipped_step_up(cluster: Cluster) -> None:
    """One leaves between its steps, one has fewer: the last trains to its end."""

    def body(worker: ps.Worker) -> None:
        train(worker, 1.0, steps=STEPS - worker.rank)

    run_workers(cluster, body, num_workers=3)


def test_a_shard_that_loses_the_coordinator_holds_a_clipped_step_up_only_until_it_is_back(
    loop_thread: LoopThread,
) -> None:
    """Whether its report or the decision was lost: it says again what is undecided."""
    cluster = Cluster(loop_thread, 2)
    shards = cluster.coordinator._fleet

    def break_stream() -> None:
        for entry in shards._registered.values():
            entry.outbox.put_nowait(None)

    def body(worker: ps.Worker) -> dict[str, torch.Tensor]:
        table = worker.table(zeros(), optimizer=ps.SGD(lr=0.5, momentum=0.9), clip_grad_norm=1.0)
        for step in range(STEPS):
            if worker.rank == 0 and step in (1, 3):
                loop_thread.loop.call_soon_threadsafe(break_stream)
            table.push(gradients(worker.rank, step))
            pulled = table.pull().result(LIMIT_S)
        worker.finish()
        return dict(pulled.values)

    try:
        first, _ = run_workers(cluster, body, num_workers=2)
    finally:
        cluster.close()
    for name, value in alone(2, 1.0).items():
        torch.testing.assert_close(first[name], value, rtol=1e-6, atol=1e-6)


def test_two_clipped_tables_and_a_free_one_do_not_wait_for_each_other(cluster: Cluster) -> None:
    """Tables of one job take their steps in any order."""

    def body(worker: ps.Worker) -> float:
        norms = []
        tables = [
            worker.table({"w": torch.zeros(9000)}, optimizer=ps.SGD(lr=1.0), clip_grad_norm=limit)
            for limit in (1.0, None, 2.0)
        ]
        order = tables if worker.rank else tables[::-1]
        pulls = {}
        for table in order:
            table.push({"w": torch.ones(9000)})
            pulls[table] = table.pull()
        norms = [pulls[table].result(LIMIT_S).values["w"].norm().item() for table in tables]
        worker.finish()
        return norms

    for norms in run_workers(cluster, body, num_workers=2):
        assert norms == pytest.approx([1.0, 9000**0.5, 2.0], rel=1e-5)


@pytest.mark.parametrize("consistency", ["ssp:1", "asp"])
def test_a_clipped_table_needs_a_mean(one_shard: Cluster, consistency: str) -> None:
    """Where none is formed it is refused, with what to do."""

    def body(worker: ps.Worker) -> None:
        with pytest.raises(ConfigurationRefused, match=f"which {consistency} does not form: clip on each"):
            worker.table(zeros(), optimizer=ps.SGD(lr=0.5), clip_grad_norm=1.0)

    run_workers(one_shard, body, consistency=consistency)


def test_workers_must_clip_alike(one_shard: Cluster) -> None:
    """The first difference between tables is named."""

    def bring(worker: ps.Worker) -> None:
        worker.table(zeros(), optimizer=ps.SGD(lr=0.5), clip_grad_norm=1.0 + worker.rank)

    error = refused(one_shard, bring)
    assert isinstance(error, TableMismatch)
    differ = r"clip_grad_norm: the job has (1.0, this worker has 2|2.0, this worker has 1)\.0"
    assert re.search(differ, error.message)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_makes_no_sense_is_a_usage_error(one_shard: Cluster, wrong: float) -> None:
    """Before anything is sent."""

    def body(worker: ps.Worker) -> None:
        with pytest.raises(UsageError, match="clip_grad_norm must be a number, finite and > 0, got"):
            worker.table(zeros(), optimizer=ps.SGD(lr=0.5), clip_grad_norm=wrong)

    run_workers(one_shard, body)
