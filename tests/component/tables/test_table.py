"""Tables without autograd: push and pull by name, futures, versions; what is refused leaves nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.differing import refused
from tests.component.reference import batch
from tests.component.service import Cluster, figures, fresh_name, partitions, run_workers
from tests.until import LIMIT_S

SMALL = ps.BucketOptions(bucket_bytes=8192, first_bucket_bytes=4096, partition_bytes=4096)
START = {"w": torch.arange(3000.0).view(30, 100), "b": torch.ones(7), "none": torch.zeros(0, 3)}
ONE = ps.SGD(lr=1.0)


def make(worker: ps.Worker, **given: Any) -> ps.Table:
    return worker.table(START, **{"optimizer": ONE, "buckets": SMALL} | given)


def one_worker(cluster: Cluster, body: Any, **settings: Any) -> Any:
    (result,) = run_workers(cluster, body, **settings)
    return result


def gradient(rank: int, step: int) -> dict[str, torch.Tensor]:
    return {"w": batch(rank, step, 30, 100), "b": batch(rank, step, 7)}


def test_push_and_pull(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        table = make(worker)
        assert table.pull().result(LIMIT_S).values["w"].equal(START["w"])
        for step in range(3):
            assert table.push(gradient(0, step)).result(LIMIT_S) is None
        assert table.step == worker.step == 3
        pulled = table.pull().result(LIMIT_S)
        assert (pulled.version, pulled.spread, pulled.clocks) == (3, 0, {0: 3})
        for name in ("w", "b"):
            expected = START[name]
            for step in range(3):
                expected = expected - gradient(0, step)[name]
            assert torch.equal(pulled.values[name], expected)
        assert pulled.values["none"].shape == (0, 3)

    one_worker(cluster, body)


def test_what_was_pulled_is_the_callers_own(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        table = make(worker)
        first = table.pull().result(LIMIT_S).values
        first["b"].fill_(9.0)
        assert table.pull().result(LIMIT_S).values["b"].equal(START["b"])
        assert table.step == 0

    one_worker(cluster, body)


def test_start_values_are_copied(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        mine = torch.ones(5)
        table = worker.table({"w": mine}, optimizer=ONE)
        mine.fill_(3.0)
        assert table.pull().result(LIMIT_S).values["w"].equal(torch.ones(5))

    one_worker(cluster, body)


def test_out_takes_the_values(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        table = make(worker)
        out = {"w": torch.empty(30, 100), "b": torch.empty(7)}
        pulled = table.pull(out=out).result(LIMIT_S)
        assert pulled.values["w"] is out["w"] or pulled.values["w"].data_ptr() == out["w"].data_ptr()
        assert out["w"].equal(START["w"])
        assert out["b"].equal(START["b"])
        other = torch.empty(100, 30).t()
        assert table.pull(out={"w": other}).result(LIMIT_S).values.keys() == {"w"}
        assert other.equal(START["w"])

    one_worker(cluster, body)


def test_out_may_be_a_parameter(cluster: Cluster):
    """`pull(out=dict(model.named_parameters()))` writes to leaves that require grad."""

    def body(worker: ps.Worker) -> None:
        layer = torch.nn.Linear(4, 3)
        start = {name: torch.full_like(value, 2.0) for name, value in layer.named_parameters()}
        table = worker.table(start, optimizer=ONE)
        table.pull(out=dict(layer.named_parameters())).result(LIMIT_S)
        assert torch.equal(layer.weight, torch.full((3, 4), 2.0))

    one_worker(cluster, body)


def test_gradients_that_require_grad_are_taken_as_numbers(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        table = make(worker)
        for _ in range(2):
            table.push({"b": torch.ones(7, requires_grad=True)}).result(LIMIT_S)
        assert table.pull().result(LIMIT_S).values["b"].equal(START["b"] - 2)

    one_worker(cluster, body)


def test_a_future_cannot_be_cancelled_under_the_table(cluster: Cluster):
    """What is under way comes in any case, and the table goes on."""

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        pulled = table.pull()
        assert not pulled.cancel()
        assert pulled.result(LIMIT_S).version == 0
        pushed = table.push(gradient(0, 0))
        assert not pushed.cancel()
        pushed.result(LIMIT_S)
        assert table.pull().result(LIMIT_S).version == 1

    one_worker(cluster, body)


def test_gradients_are_copied_before_push_returns(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        table = make(worker)
        mine = {"w": torch.ones(30, 100)}
        for _ in range(5):
            table.push(mine)
            mine["w"].add_(1.0)
        assert table.pull().result(LIMIT_S).values["w"].equal(START["w"] - 15)

    one_worker(cluster, body)


def test_names_that_are_not_pushed_have_no_gradient(cluster: Cluster):
    """With weight decay a gradient of zeros would show."""

    def body(worker: ps.Worker) -> None:
        table = make(worker, optimizer=ps.SGD(lr=1.0, weight_decay=0.5))
        table.push({"b": torch.zeros(7)})
        table.push({})
        values = table.pull().result(LIMIT_S).values
        assert values["w"].equal(START["w"])
        assert values["b"].equal(START["b"] * 0.5)

    one_worker(cluster, body)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"v": torch.zeros(7)}, "the table has no 'v'; it has w, b, none"),
        ({"b": torch.zeros(8)}, r"'b' has shape \(7,\)"),
        ({"b": torch.zeros(7, 1)}, r"got \(7, 1\)"),
        ({"b": torch.zeros(7, dtype=torch.float64)}, r"got \(7,\) and torch.float64"),
        ({"b": torch.zeros(7), "w": torch.zeros(3000)}, "'w' has shape"),
    ],
)
def test_an_unknown_name_or_a_wrong_shape_or_dtype_leaves_nothing(
    cluster: Cluster, given: dict[str, torch.Tensor], text: str
):
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        with pytest.raises(ps.UsageError, match=text):
            table.push(given)
        with pytest.raises(ps.UsageError, match=text):
            table.pull(out=given)
        assert table.step == 0
        assert worker.stats().bytes_pushed == 0
        pulled = table.pull().result(LIMIT_S)
        assert pulled.version == 0
        assert pulled.values["b"].equal(START["b"])
        assert figures(cluster, job, 0)["received"] == 0
        table.push(gradient(0, 0)).result(LIMIT_S)

    one_worker(cluster, body, job=job)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan"), 1e39, 1e-60])
def test_a_weight_that_makes_no_sense_leaves_nothing(cluster: Cluster, weight: float):
    """A weight travels as float32, where 1e39 is infinite and 1e-60 is 0."""

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        with pytest.raises(ps.UsageError, match="weight of a push"):
            table.push(gradient(0, 0), weight=weight)
        assert table.step == 0
        table.push(gradient(0, 0), weight=1.0).result(LIMIT_S)

    one_worker(cluster, body)


def test_bsp_takes_the_weighted_mean(cluster: Cluster):
    def body(worker: ps.Worker) -> torch.Tensor:
        table = make(worker)
        table.push(gradient(worker.rank, 0), weight=1.0 + 2 * worker.rank)
        return table.pull().result(LIMIT_S).values["w"]

    first, second = run_workers(cluster, body, num_workers=2)
    mean = (gradient(0, 0)["w"] * 1.0 + gradient(1, 0)["w"] * 3.0) / 4.0
    assert first.equal(START["w"] - mean)
    assert second.equal(first)


def test_abstaining_advances_the_clock_and_is_counted(cluster: Cluster):
    job = fresh_name()

    def body(worker: ps.Worker) -> torch.Tensor:
        table = make(worker)
        for step in range(4):
            if worker.rank == 1 and step % 2:
                table.abstain()
            else:
                table.push(gradient(worker.rank, step))
            pulled = table.pull().result(LIMIT_S)
            assert pulled.version == table.step == step + 1
        return pulled.values["w"]

    first, second = run_workers(cluster, body, num_workers=2, job=job)
    expected = START["w"]
    for step in range(4):
        gradients = [gradient(0, step)["w"], gradient(1, step)["w"]]
        expected = expected - (gradients[0] if step % 2 else (gradients[0] + gradients[1]) / 2)
    assert first.equal(expected)
    assert second.equal(expected)
    counts = figures(cluster, job, 1)
    assert counts["abstained"] == counts["applied"] == 2 * partitions(cluster, job)


def test_under_bsp_a_pull_waits_for_the_others(cluster: Cluster):
    pulling = threading.Event()

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        if worker.rank:
            assert pulling.wait(LIMIT_S)
            table.push(gradient(1, 0)).result(LIMIT_S)
            return
        table.push(gradient(0, 0)).result(LIMIT_S)
        pulled = table.pull()
        assert not pulled.done()
        pulling.set()
        assert pulled.result(LIMIT_S).version == 1

    run_workers(cluster, body, num_workers=2)


def test_ssp_lets_a_worker_be_ahead_by_its_bound_and_no_more(cluster: Cluster):
    """Bound 2: at clocks 1 and 2 nobody waits; at clock 3 the gate stays shut until the other has moved."""
    ahead, seen = threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        if worker.rank:
            assert ahead.wait(LIMIT_S)
            table.push(gradient(1, 0)).result(LIMIT_S)
            assert seen.wait(LIMIT_S)  # who has left has no clock in an answer
            return
        for step in range(2):
            table.push(gradient(0, step))
            assert table.pull().result(LIMIT_S).version == step + 1
        table.push(gradient(0, 2)).result(LIMIT_S)
        pulled = table.pull()
        assert not pulled.done()
        ahead.set()
        got = pulled.result(LIMIT_S)
        seen.set()
        assert got.version == 4
        assert got.clocks == {0: 3, 1: 1}
        assert worker.stats().max_gap == 3

    run_workers(cluster, body, num_workers=2, consistency="ssp:2")


def test_asp_never_waits(cluster: Cluster):
    done = threading.Event()

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        if worker.rank:
            assert done.wait(LIMIT_S)
            return
        for step in range(20):
            table.push(gradient(0, step))
            assert table.pull().result(LIMIT_S).version == step + 1
        assert worker.stats().gate_wait_s == 0.0
        done.set()

    run_workers(cluster, body, num_workers=2, consistency="asp")


def test_spread_is_newest_minus_oldest_version(cluster: Cluster):
    """The exchange is told versions that differ, as in asp while another's push is half applied."""

    def body(worker: ps.Worker) -> None:
        table = make(worker)
        table.push(gradient(0, 0))
        future = table.pull()
        future.result(LIMIT_S)
        table._exchange.in_flight.versions[0] += 4
        assert table._pulled(None).spread == 4
        assert table._pulled(None).version == 1
        assert worker.stats().spread == 4

    one_worker(cluster, body, consistency="asp")


def test_after_finish_a_pull_gets_the_final_weights(cluster: Cluster):
    def body(worker: ps.Worker) -> torch.Tensor:
        table = make(worker)
        for step in range(1 + worker.rank):
            table.push(gradient(worker.rank, step))
        worker.finish()
        return table.pull().result(LIMIT_S).values["w"]

    first, second = run_workers(cluster, body, num_workers=2, consistency="asp")
    assert first.equal(second)
    assert not first.equal(START["w"])


def test_what_a_table_refuses(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(ps.ConfigurationRefused, match="no parameters"):
            worker.table({}, optimizer=ONE)
        with pytest.raises(ps.ConfigurationRefused, match="'h' has dtype bfloat16"):
            worker.table({"h": torch.zeros(3, dtype=torch.bfloat16)}, optimizer=ONE)

    one_worker(cluster, body)


def test_tables_that_differ_are_refused_naming_the_first_difference(cluster: Cluster):
    """The one that comes second is refused; the other waits for it."""

    def bring(worker: ps.Worker) -> None:
        worker.table({"w": torch.zeros(3 + worker.rank)}, optimizer=ONE)

    assert "shape of parameter 'w'" in refused(cluster, bring).message
