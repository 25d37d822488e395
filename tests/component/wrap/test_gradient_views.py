"""`wrap(..., gradient_as_bucket_view=True)`: gradients lie in the memory that is pushed."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.frames import frame as wire
from ps_wire.sockets.frame_socket import FrameSocket
from tests.component.arriving import PAGES, Model, adam, train
from tests.component.last_moment import LastMoment
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, check, seeded
from tests.component.scripts import sgd
from tests.component.service import Cluster, run_workers
from tests.inside import arrival_of, exchange_of
from tests.until import LIMIT_S

EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)  # every parameter is a bucket
VIEWS = {"gradient_as_bucket_view": True, "buckets": EACH}
OVERLAP = pytest.mark.parametrize("overlap", ["auto", True, False])


def pushed_from(optimizer: Any) -> list[int]:
    """Where the memory of each parameter's gradient begins that shards are sent, or read."""
    exchange = exchange_of(optimizer)
    return [view.data_ptr() for view in exchange.gradients.views]


@OVERLAP
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("width", [37, 700], ids=["weights are copied", "weights are mapped"])
def test_training_is_that_of_plain_torch_to_the_bit(
    cluster: Cluster, overlap: Any, set_to_none: bool, width: int
):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(4):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

    check(cluster, script, seeded(lambda: Mlp(width)), sgd, num_workers=2, overlap=overlap, **VIEWS)


@OVERLAP
@pytest.mark.parametrize("set_to_none", [True, False])
def test_after_a_step_gradients_lie_where_they_were_pushed_from(
    cluster: Cluster, overlap: Any, set_to_none: bool
):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=overlap, **VIEWS)
        for step in range(3):
            loss_of(model, 0, step).backward()
            made = [parameter.grad.data_ptr() for parameter in model.parameters()]
            optimizer.step()
            assert [parameter.grad.data_ptr() for parameter in model.parameters()] == pushed_from(optimizer)
            if step and not set_to_none:
                assert made == pushed_from(optimizer)  # backward wrote there: nothing was copied
            optimizer.zero_grad(set_to_none=set_to_none)

    run_workers(cluster, body)


@pytest.mark.parametrize("overlap", ["auto", False])
def test_gradients_of_the_first_step_go_bucket_by_bucket(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, overlap: Any
):
    """They lie in flat memory from then on: a model never has all of them twice."""
    gone: list[list[bool]] = []

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=overlap, **VIEWS)
        exchange, made = exchange_of(optimizer), []
        push = exchange.push

        def looked(*args: Any, **kwargs: Any) -> None:
            gone.append([it() is None for it in made])
            push(*args, **kwargs)

        monkeypatch.setattr(exchange, "push", looked)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda it: made.append(weakref.ref(it.grad)))
        loss_of(model, 0, 0).backward()
        optimizer.step()

    run_workers(cluster, body)
    count = len(list(Mlp().parameters()))
    assert [sum(it) for it in gone] == list(range(1, count + 1))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulated_and_clipped_gradients_are_exact_without_overlap(cluster: Cluster, set_to_none: bool):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(4):
            loss_of(model, rank, step).backward()
            loss_of(model, rank, 10 + step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

    check(cluster, script, seeded(Mlp), sgd, num_workers=2, overlap=False, **VIEWS)


@pytest.mark.parametrize("carrier", ["shm", "uds"])
@pytest.mark.parametrize("whose", ["model", "optimizer"])
def test_zeros_are_not_written_over_gradients_that_shards_have_not_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, carrier: str, whose: str
):
    """They take those of step 3 only when the worker waits for weights; its `step()` returns after that."""
    begun, waits = threading.Event(), threading.Event()
    place = FrameSocket._place

    def late(head: wire.Header, landing: Any) -> memoryview:
        if head.kind is wire.Kind.PUSH and head.frame().step == 3:
            assert waits.wait(LIMIT_S)
        return place(head, landing)

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            if step == 3:
                begun.set()
            optimizer.step()
            if step == 3:
                (model if whose == "model" else optimizer).zero_grad(set_to_none=False)

    model = seeded(lambda: Mlp(700))
    expected = alone(script, model, sgd)
    begun.clear()
    monkeypatch.setattr(FrameSocket, "_place", staticmethod(late))

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(sgd(model), model, overlap=True, **VIEWS)
        exchange = exchange_of(optimizer)
        wait_pulled = exchange.wait_pulled

        def waiting(*what: Any) -> None:
            if begun.is_set():
                waits.set()
            wait_pulled(*what)

        exchange.wait_pulled = waiting
        script(0, model, optimizer)
        worker.finish()

    run_workers(cluster, body, carrier=carrier)
    assert_same(model, expected)


def test_over_tcp_a_step_returns_before_weights_are_here_and_after_gradients_are_given_back(
    cluster: Cluster,
):
    """Who acknowledges a push that travelled does not read the gradient any more."""
    acks: list[wire.Frame] = []
    came = threading.Event()

    def body(worker: ps.Worker) -> None:
        model = seeded(Model)
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=PAGES, gradient_as_bucket_view=True)
        exchange = exchange_of(optimizer)
        train(model, optimizer, range(2))
        worker.synchronize()
        exchange.in_flight.wait_free()  # weights may be here before the last ACK is
        LastMoment(exchange, lambda _partition, step: step == 3)
        take, wait_free, kept = exchange.receive, exchange.in_flight.wait_free, threading.Lock()

        def late(frame: wire.Frame) -> None:
            with kept:
                if frame.kind is wire.Kind.ACK and exchange.in_flight.wait_free is waiting:
                    acks.append(frame)
                    came.set()
                    return
            take(frame)

        def waiting(partitions: Any = None) -> None:
            if partitions is None:  # else of a bucket, before the next gradients are copied
                assert came.wait(LIMIT_S)
                with kept:
                    exchange.in_flight.wait_free = wait_free
                for frame in acks:
                    take(frame)
            wait_free(partitions)

        exchange.receive, exchange.in_flight.wait_free = late, waiting
        train(model, optimizer, [2])
        assert exchange.in_flight.all_free
        assert arrival_of(optimizer).under_way
        optimizer.zero_grad(set_to_none=False)
        train(model, optimizer, [3])
        worker.synchronize()
        assert_same(model, alone(lambda _, plain, steps: train(plain, steps, range(4)), seeded(Model), adam))

    run_workers(cluster, body, carrier="tcp")


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_gradient_that_is_written_to_once_it_has_left_is_an_error(cluster: Cluster, steps_before: int):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=True, **VIEWS)
        for step in range(steps_before):
            loss_of(model, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        loss_of(model, 0, steps_before).backward()
        model.first.weight.grad.mul_(0.5)
        with pytest.raises(ps.GradientChanged, match=r"first\.weight"):
            optimizer.step()

    run_workers(cluster, body)


def test_a_write_past_autograd_to_a_gradient_that_has_left_is_not_found(cluster: Cluster):
    """There is no second copy to compare with: each element is of the gradient before or after it."""

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, overlap=True, **VIEWS)
        before = model.first.bias.detach().clone()
        loss_of(model, 0, 0).backward()
        gradient = model.first.bias.grad.clone()
        model.first.bias.grad.data.mul_(2.0)
        optimizer.step()
        after = model.first.bias.detach()
        assert ((after == before - gradient) | (after == before - 2.0 * gradient)).all()

    run_workers(cluster, body)
