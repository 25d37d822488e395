"""Whose memory it is: gradients that have left, and weights between two steps, under injected delays.

Delays are events: what is held back comes when the test lets it, so nothing depends on time.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.frames import frame as wire
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of
from tests.until import LIMIT_S

EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)


def sgd(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kind)


class Held:
    """Stands between an exchange and its connections: keeps frames of some kinds until `release`."""

    def __init__(self, worker: ps.Worker, optimizer: Any) -> None:
        self.exchange = exchange_of(optimizer)
        self.kinds: set[wire.Kind] = set()
        self.sent: list[tuple[wire.Frame, bytes]] = []
        self.waits = threading.Event()
        self.asked = threading.Event()
        self._lock = threading.Lock()
        self._kept: list[Any] = []
        self._exchange_take = self.exchange.receive
        self._exchange_wait = self.exchange.in_flight.wait_free
        self._connections = list(self.exchange._connections)
        self.exchange.receive = self._take
        self.exchange.in_flight.wait_free = self._wait_free
        self.exchange.connect([_Out(self, connection) for connection in self._connections])

    def _take(self, frame: wire.Frame) -> None:
        self._pass(frame, lambda: self._exchange_take(frame))

    def _wait_free(self, partitions: Any = None) -> None:
        wanted = None if partitions is None else list(partitions)
        if self.exchange.in_flight.unacked():
            self.waits.set()
        self._exchange_wait(wanted)

    def out(self, frame: wire.Frame, connection: Any) -> None:
        if frame.kind is wire.Kind.PUSH:
            self.sent.append((frame, digest(frame.payload)))
        self._pass(frame, lambda: connection.send(frame))

    def _pass(self, frame: wire.Frame, go: Any) -> None:
        with self._lock:
            if frame.kind in self.kinds:
                self._kept.append(go)
                if frame.kind is wire.Kind.PULL:
                    self.asked.set()
                return
        go()

    def hold(self, *kinds: wire.Kind) -> None:
        with self._lock:
            self.kinds = set(kinds)

    def release(self) -> None:
        with self._lock:
            self.kinds = set()
            kept, self._kept = self._kept, []
        for go in kept:
            go()


class _Out:
    def __init__(self, held: Held, connection: Any) -> None:
        self._held = held
        self._connection = connection

    def send(self, *frames: wire.Frame) -> None:
        for frame in frames:
            self._held.out(frame, self._connection)


def digest(payload: Any) -> bytes:
    return hashlib.sha256(payload).digest()


def in_thread(body: Any) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        torch.set_num_threads(1)
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_gradients_of_a_script_never_lie_in_the_region(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=True)
        regions = [
            (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
            for tensor in exchange_of(optimizer).gradients.tensors
        ]
        for step in range(3):
            loss_of(model, 0, step).backward()
            for parameter in model.parameters():
                at = parameter.grad.data_ptr()
                assert not any(start <= at < end for start, end in regions)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    run_workers(cluster, body)


@pytest.mark.parametrize("overlap", [True, False])
def test_what_was_pushed_never_changes_before_its_ack(cluster: Cluster, overlap: bool):
    """ACKs are late; the script zeroes its gradients and runs the next backward at once."""
    model = seeded(Mlp)

    def script(rank: int, mine: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(2):
            loss_of(mine, rank, step).backward()
            optimizer.step()
            mine.zero_grad(set_to_none=False)

    expected = alone(script, model, sgd)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(sgd(model), model, overlap=overlap, buckets=EACH)
        held = Held(worker, optimizer)
        held.hold(wire.Kind.ACK, wire.Kind.FREE)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        first = list(held.sent)
        assert len(exchange_of(optimizer).in_flight.unacked()) == len(first) > 0
        model.zero_grad(set_to_none=False)
        for parameter in model.parameters():
            parameter.grad.fill_(123.0)
            parameter.grad.zero_()

        def next_step() -> None:
            loss_of(model, 0, 1).backward()
            optimizer.step()

        held.waits.clear()
        thread, errors = in_thread(next_step)
        assert held.waits.wait(LIMIT_S)
        assert thread.is_alive()
        assert len(held.sent) == len(first)
        assert all(digest(frame.payload) == sent for frame, sent in first)
        held.release()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert not errors
        worker.finish()

    run_workers(cluster, body)
    assert_same(model, expected)


def test_a_reset_before_the_ack_sends_the_same_bytes_again(cluster: Cluster):
    """Pushes left, the connection breaks, gradients change meanwhile: what is replayed is what was pushed."""
    model = seeded(Mlp)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(sgd(model), model, overlap=False, buckets=EACH)
        held = Held(worker, optimizer)
        held.hold(wire.Kind.ACK, wire.Kind.FREE)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        model.zero_grad(set_to_none=False)
        again = [frame for shard in range(2) for frame in exchange_of(optimizer).replay(shard)]
        pushes = {frame.partition: digest(frame.payload) for frame in again if frame.kind is wire.Kind.PUSH}
        assert pushes == {frame.partition: sent for frame, sent in held.sent}
        held.release()
        worker.finish()

    run_workers(cluster, body)


def test_nothing_leaves_before_the_connection_takes_it_with_other_bytes(cluster: Cluster):
    """Pushes are held on their way out while backward goes on; each goes with the bytes of its push."""
    model = seeded(Mlp)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(sgd(model), model, overlap=True, buckets=EACH)
        held = Held(worker, optimizer)
        held.hold(wire.Kind.PUSH, wire.Kind.PULL)
        loss_of(model, 0, 0).backward()
        thread, errors = in_thread(optimizer.step)
        assert held.asked.wait(LIMIT_S)
        assert len(held.sent) == exchange_of(optimizer).plan.num_partitions
        assert all(digest(frame.payload) == sent for frame, sent in held.sent)
        held.release()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert not errors

    run_workers(cluster, body)


@pytest.mark.parametrize("consistency", ["ssp:3", "asp"])
def test_nothing_writes_weights_between_two_steps(cluster: Cluster, consistency: str):
    """Another worker goes on pushing; a script's weights are still until its own next step."""
    models = [seeded(Mlp) for _ in range(2)]
    stepped, pushed = threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model)
        if worker.rank:
            assert stepped.wait(LIMIT_S)
            for step in range(3):
                loss_of(model, 1, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            pushed.set()
            return
        loss_of(model, 0, 0).backward()
        optimizer.step()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        versions = list(exchange_of(optimizer).in_flight.versions)
        stepped.set()
        assert pushed.wait(LIMIT_S)
        assert versions == exchange_of(optimizer).in_flight.versions
        for parameter, was in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, was)
        optimizer.zero_grad()
        loss_of(model, 0, 1).backward()
        optimizer.step()
        assert min(exchange_of(optimizer).in_flight.versions) == 5

    run_workers(cluster, body, num_workers=2, consistency=consistency)


def test_an_answer_that_comes_twice_is_not_written_again(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        exchange = exchange_of(optimizer)
        answers: list[wire.Frame] = []
        take = exchange.receive

        def noting(frame: wire.Frame) -> None:
            answers.append(frame)
            take(frame)

        exchange.receive = noting
        loss_of(model, 0, 0).backward()
        optimizer.step()
        late = [frame for frame in answers if frame.kind is wire.Kind.PULLED]
        assert {frame.partition for frame in late} == set(range(exchange.plan.num_partitions))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7.0)
        for frame in late:
            take(frame)
        assert all(bool((parameter == 7.0).all()) for parameter in model.parameters())

    run_workers(cluster, body)


def test_backward_through_a_graph_older_than_the_weights_raises_as_in_torch(cluster: Cluster):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        old = loss_of(model, rank, 0)
        loss_of(model, rank, 1).backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            old.backward()
        optimizer.zero_grad()

    alone(script, seeded(Mlp), sgd, fused=False)  # torch's fused kernels do not say that they write

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        script(0, model, worker.wrap(sgd(model), model))

    run_workers(cluster, body)
