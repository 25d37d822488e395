"""Over tcp, under bsp, weights of a bucket come while backward is still busy with the layers before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.frames import frame as wire
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, seeded
from tests.component.scripts import sgd
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of
from tests.until import until

EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)  # every parameter is a bucket
WIDE = 700
STEPS = 6
Look = Callable[[int, int], None]


class Watched:
    """A model over tcp of which a test looks at each gradient before it leaves."""

    def __init__(self, worker: ps.Worker, look: Look) -> None:
        self.worker, self.step = worker, 0
        self.model = seeded(lambda: Mlp(WIDE))
        self.parameters = list(self.model.parameters())
        for place, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: look(self.step, place))
        self.optimizer = worker.wrap(sgd(self.model), self.model, overlap=True, buckets=EACH)
        self.exchange = exchange_of(self.optimizer)

    def train(self, steps: range) -> None:
        for self.step in steps:
            loss_of(self.model, self.worker.rank, self.step).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def wait_acked(self) -> None:
        until(lambda: self.exchange.in_flight.wait_acked(limit_s=0.0))


def expected(steps: range, num_workers: int = 1) -> torch.nn.Module:
    assert num_workers == 1

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in steps:
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    return alone(script, seeded(lambda: Mlp(WIDE)), sgd)


def test_weights_of_layers_that_backward_is_done_with_come_before_it_is_over(cluster: Cluster):
    """Parameters show those of the step until it is: whoever reads one in a hook reads what its graph has."""
    seen: list[int] = []

    def body(worker: ps.Worker) -> None:
        def look(step: int, place: int) -> None:
            watched.wait_acked()
            if place == 0:  # the last one that backward comes to
                until(lambda: max(watched.exchange.in_flight.versions) == step + 1)
                assert min(watched.exchange.in_flight.versions) == step
                assert all(map(torch.equal, watched.parameters, before))
                assert worker.stats().spread == 0
                seen.append(step)

        watched = Watched(worker, look)
        for step in range(STEPS):
            worker.synchronize()
            before = [parameter.detach().clone() for parameter in watched.parameters]
            watched.train(range(step, step + 1))
        worker.synchronize()
        assert_same(watched.model, expected(range(STEPS)))

    run_workers(cluster, body, carrier="tcp")
    assert seen == list(range(STEPS))


def test_nothing_is_asked_ahead_while_pushes_are_on_their_way(cluster: Cluster):
    """The link has enough to do: weights would hold them up."""
    asked: list[int] = []

    def body(worker: ps.Worker) -> None:
        watched = Watched(worker, lambda _step, _place: None)
        take, kept = watched.exchange.receive, []

        def late(frame: wire.Frame) -> None:
            if frame.kind is wire.Kind.ACK and watched.optimizer.sends:
                kept.append(frame)
            else:
                take(frame)

        ahead = watched.exchange.in_flight.ask_ahead
        watched.exchange.in_flight.ask_ahead = lambda *args: asked.append(1) or ahead(*args)
        watched.exchange.receive = late
        loss_of(watched.model, 0, 0).backward()
        watched.exchange.receive = take
        for frame in kept:
            take(frame)
        watched.optimizer.step()
        worker.synchronize()
        assert_same(watched.model, expected(range(1)))

    run_workers(cluster, body, carrier="tcp")
    assert not asked


@pytest.mark.parametrize("carrier", ["shm", "uds"])
def test_on_one_host_weights_have_one_place_or_are_mapped(cluster: Cluster, carrier: str):
    def body(worker: ps.Worker) -> None:
        watched = Watched(worker, lambda _step, _place: watched.wait_acked())
        asked: list[int] = []
        watched.exchange.in_flight.ask_ahead = lambda *_: asked.append(1)
        watched.train(range(2))
        worker.synchronize()
        assert not asked
        assert watched.exchange.memory.apart == watched.exchange.memory.mapped

    run_workers(cluster, body, carrier=carrier)


def test_a_step_that_is_given_up_after_weights_were_asked_for_ahead_is_settled(cluster: Cluster):
    """What has left counts, the rest abstains, and the next steps go on with whole weights."""

    def body(worker: ps.Worker) -> None:
        def look(step: int, place: int) -> None:
            watched.wait_acked()
            if (step, place) == (1, 0):
                until(lambda: max(watched.exchange.in_flight.versions) == 2)
                raise ArithmeticError

        watched = Watched(worker, look)
        watched.train(range(1))
        with pytest.raises(ArithmeticError):
            watched.train(range(1, 2))
        watched.optimizer.abandon()
        assert set(watched.exchange.in_flight.versions) == {2}
        assert all(map(torch.equal, watched.parameters, watched.exchange.weights.views))
        watched.train(range(2, 4))
        worker.synchronize()
        assert set(watched.exchange.in_flight.versions) == {4}

    run_workers(cluster, body, carrier="tcp")


@pytest.mark.parametrize("place", range(4))
def test_what_a_script_writes_into_weights_that_came_ahead_is_found_out(cluster: Cluster, place: int):
    """Within as many steps as there are parts that are looked at in turn, where no version counter tells."""

    def body(worker: ps.Worker) -> None:
        watched = Watched(worker, lambda _step, _place: watched.wait_acked())
        watched.train(range(2))

        def write_and_train() -> None:
            for step in range(2, 200):
                worker.synchronize()
                watched.parameters[place].data.add_(1.0)
                watched.train(range(step, step + 1))

        with pytest.raises(ps.WeightsChanged):
            write_and_train()

    run_workers(cluster, body, carrier="tcp")
