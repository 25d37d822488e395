"""A data connection that breaks is made again, and every push counts exactly once (law 13)."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
import torch

import ps_server.process.server
import ps_worker as ps
import ps_worker.membership.membership
from ps_server.shard.transport.session import Session
from ps_wire.errors import InternalError, ServerNotReady
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Carrier, Message
from ps_worker.process.farewell import UNHURRIED
from ps_worker.transport.connection import Connection, refusal
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, seeded
from tests.component.service import Cluster, LoopThread, figures, fresh_name, partitions, run_workers
from tests.inside import link_of
from tests.silence import fall_silent, linux
from tests.until import LIMIT_S

SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)
STEPS = 8


def sgd(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kind)


class Breaking:
    """Cuts a connection while its frames are being sent, at random ones of a seed; and counts the cuts."""

    def __init__(self, worker: ps.Worker, seed: int, *, kinds: set[wire.Kind], one_in: int) -> None:
        self.cuts = 0
        self._random = random.Random(seed)
        self._kinds = kinds
        self._one_in = one_in
        exchange = link_of(worker).exchanges[0]
        exchange.connect([_Cut(self, connection) for connection in exchange._connections])

    def sent(self, frame: wire.Frame, connection: Any) -> None:
        if frame.kind in self._kinds and self._random.randrange(self._one_in) == 0:
            self.cuts += 1
            connection._call.cancel()


class _Cut:
    def __init__(self, breaking: Breaking, connection: Any) -> None:
        self._breaking = breaking
        self._connection = connection

    def send(self, *frames: wire.Frame) -> None:
        for frame in frames:
            self._connection.send(frame)
            self._breaking.sent(frame, self._connection)


@pytest.mark.parametrize("kind", [wire.Kind.PUSH, wire.Kind.PULL, wire.Kind.HYPER])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_after_resets_the_weights_are_those_of_a_quiet_run(
    cluster: Cluster, num_workers: int, kind: wire.Kind
):
    job = fresh_name()
    model = seeded(Mlp)

    def script(rank: int, mine: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            loss_of(mine, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    expected = alone(script, model, sgd, num_workers=num_workers)
    models = [seeded(Mlp) for _ in range(num_workers)]
    cuts: list[int] = []

    def body(worker: ps.Worker) -> None:
        mine = models[worker.rank]
        optimizer = worker.wrap(sgd(mine), mine, buckets=SMALL)
        breaking = Breaking(worker, worker.rank, kinds={kind}, one_in=6)
        script(worker.rank, mine, optimizer)
        worker.finish()
        cuts.append(breaking.cuts)

    run_workers(cluster, body, num_workers=num_workers, job=job)
    assert sum(cuts) > 0
    for mine in models:
        assert_same(mine, expected)
    for worker in range(num_workers):
        counts = figures(cluster, job, worker)
        assert counts["applied"] == counts["received"] == STEPS * partitions(cluster, job)


def test_under_asp_each_push_is_applied_once(cluster: Cluster):
    """Every update adds one to one element: the weights count what was applied."""
    job = fresh_name()
    cuts: list[int] = []

    def body(worker: ps.Worker) -> torch.Tensor:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        breaking = Breaking(worker, worker.rank, kinds={wire.Kind.PUSH}, one_in=4)
        hot = torch.zeros(3000)
        hot[worker.rank :: 2] = -1.0
        for _ in range(STEPS):
            table.push({"w": hot})
            table.pull().result(LIMIT_S)
        worker.finish()
        cuts.append(breaking.cuts)
        return table.pull().result(LIMIT_S).values["w"]

    for values in run_workers(cluster, body, num_workers=2, consistency="asp", job=job):
        assert torch.equal(values, torch.full((3000,), float(STEPS)))
    assert sum(cuts) > 0


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_push_whose_ack_was_lost_is_sent_again_and_counts_once(cluster: Cluster, consistency: str):
    """Each step, the first ACK never reaches the worker, for its connection breaks."""
    job = fresh_name()

    def body(worker: ps.Worker) -> torch.Tensor:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        exchange = table._exchange
        take, lost = exchange.receive, set()

        def loses(frame: wire.Frame) -> None:
            if frame.kind is wire.Kind.ACK and frame.step not in lost:
                lost.add(frame.step)
                shard = exchange.partitions[frame.partition].shard
                link_of(worker).presence.connections[shard]._call.cancel()
                return
            take(frame)

        exchange.receive = loses
        for step in range(4):
            table.push({"w": torch.full((3000,), -1.0)}).result(LIMIT_S)
            assert table.pull().result(LIMIT_S).version == step + 1
        return table.pull().result(LIMIT_S).values["w"]

    (values,) = run_workers(cluster, body, consistency=consistency, job=job)
    assert torch.equal(values, torch.full((3000,), 4.0))
    counts = figures(cluster, job, 0)
    assert counts["applied"] == counts["received"] == 4 * partitions(cluster, job)
    assert counts["duplicates"] >= 4


def test_a_connection_that_waits_at_the_gate_is_made_again(cluster: Cluster):
    """A pull that has not been answered yet is asked again."""
    waiting = threading.Event()

    def body(worker: ps.Worker) -> int:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        if worker.rank:
            assert waiting.wait(LIMIT_S)
            table.push({"w": torch.ones(3000)}).result(LIMIT_S)
            return table.pull().result(LIMIT_S).version
        table.push({"w": torch.ones(3000)}).result(LIMIT_S)
        pulled = table.pull()
        for connection in link_of(worker).presence.connections:
            connection._call.cancel()
        waiting.set()
        return pulled.result(LIMIT_S).version

    assert run_workers(cluster, body, num_workers=2) == [1, 1]


def is_connected_to(it: socket.socket, address: Any) -> bool:
    """What is closed just now is connected to nobody."""
    with suppress(OSError):
        return it.family == socket.AF_INET and it.getpeername() == address
    return False


@linux
@pytest.mark.parametrize("side", ["worker", "shard"])
def test_where_packets_vanish_the_connection_is_made_again(one_shard: Cluster, side: str):
    """TCP gives the peer up with ETIMEDOUT, which Python raises as TimeoutError: no bug, no limit."""
    (shard,) = one_shard.shards
    refused = shard.shard.refused_frames

    def body(worker: ps.Worker) -> int:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.ones(30)}).result(LIMIT_S)
        (connection,) = link_of(worker).presence.connections
        before = connection._call
        if side == "worker":
            fall_silent(before._peer._socket)
        else:
            theirs = before._peer._socket.getsockname()
            (peer,) = [
                it._peer._socket
                for it in shard.sockets._connections.copy()
                if is_connected_to(it._peer._socket, theirs)
            ]
            fall_silent(peer)
        for _ in range(3):
            table.push({"w": torch.ones(30)}).result(LIMIT_S)
            table.pull().result(LIMIT_S)
        assert connection._call is not before
        return table.step

    assert run_workers(one_shard, body, carrier="tcp") == [4]
    assert shard.shard.refused_frames == refused


def test_a_refused_frame_ends_every_wait_with_the_shards_error(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        table._taken = 5  # not its clock
        with pytest.raises(ps.PsError, match="worker 0 pushes step 5; its clock here is 0"):
            table.push({"w": torch.ones(30)}).result(LIMIT_S)
        with pytest.raises(ps.PsError, match="its clock here is 0"):
            table.pull()

    run_workers(cluster, body)


def test_a_bug_on_the_receiving_thread_ends_every_wait(cluster: Cluster):
    """Whatever goes wrong there, nobody waits for ever."""

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))

        def breaks(_: Any) -> None:
            raise ZeroDivisionError("made by the test")

        table._exchange.in_flight.answered = breaks
        table._exchange.push(table._exchange.partitions[:1], step=0, weight=1.0, present=[[True]])
        done = threading.Event()
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                table._exchange.in_flight.wait_acked()
            except ps.PsError as error:
                caught.append(error)
            done.set()

        threading.Thread(target=wait, daemon=True).start()
        assert done.wait(LIMIT_S)
        assert "ZeroDivisionError: made by the test" in str(caught[0])

    run_workers(cluster, body)


@pytest.mark.parametrize("carrier", ["shm", "uds", "tcp"])
def test_a_bug_on_the_sending_thread_ends_every_wait(one_shard: Cluster, carrier: str):
    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        (connection,) = table._exchange._connections
        connection.send(wire.Frame(kind=wire.Kind.PULL, step=-1, meta=bytes(4)))  # cannot be encoded
        with pytest.raises(InternalError, match="sending"):
            table.pull().result(LIMIT_S)

    run_workers(one_shard, body, carrier=carrier)


def test_the_retry_limit_ends_with_connection_lost(loop_thread: LoopThread, monkeypatch: Any):
    """A shard that is gone is named with its address; the limit is the one that was set, not longer."""
    monkeypatch.setattr(ps_server.process.server, "GRACE_S", 0.05)
    monkeypatch.setattr(
        ps_worker.membership.membership, "LEAVE_LIMIT_S", 0.2
    )  # the shard that is gone cannot agree
    two = Cluster(loop_thread, 2)

    def body(worker: ps.Worker) -> float:
        table = worker.table({"w": torch.zeros(30_000)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.ones(30_000)}).result(LIMIT_S)
        two.stop(1)
        started_s = time.monotonic()
        with pytest.raises(ps.ConnectionLost, match=r"shard 1 at 127\.0\.0\.1:\d+ is gone since 0\.3 s"):
            table.push({"w": torch.ones(30_000)}).result(LIMIT_S)
        taken_s = time.monotonic() - started_s
        with pytest.raises(ps.ConnectionLost):
            table.pull()
        return taken_s

    try:
        (taken_s,) = run_workers(two, body, retry_limit=0.3)
        assert taken_s < 25  # the default is 30 s
    finally:
        two.close()


def test_leaving_at_once_does_not_wait(cluster: Cluster, monkeypatch: Any):
    """Also where the connections are not live yet: the drain limit is for those who do not answer."""
    monkeypatch.setattr(Connection.close, "__defaults__", (LIMIT_S, UNHURRIED))
    monkeypatch.setattr(ps_worker.membership.membership, "LEAVE_LIMIT_S", LIMIT_S)

    def body(worker: ps.Worker) -> None:
        started_s = time.monotonic()
        worker.leave()
        assert time.monotonic() - started_s < LIMIT_S / 2

    for _ in range(5):
        run_workers(cluster, body)


@pytest.mark.parametrize("carrier", list(Carrier))
def test_a_hello_that_is_refused_for_now_is_said_again(carrier: str, monkeypatch: Any, one_shard: Cluster):
    """A shard says so of a worker that is about to be evicted; then it has more to say."""
    shard = one_shard.shards[0].shard

    def refuses(*_args: object) -> None:
        monkeypatch.delattr(shard, "replace_session")
        raise ServerNotReady("for now")

    monkeypatch.setattr(shard, "replace_session", refuses, raising=False)
    with ps.connect(servers=one_shard.servers, job=fresh_name(), num_workers=1, carrier=carrier) as worker:
        table = worker.table({"w": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.ones(10)}).result(LIMIT_S)
        worker.finish()
    assert "replace_session" not in vars(shard)


def test_a_refusal_carries_its_class():
    frame = wire.Frame(kind=wire.Kind.REFUSE)
    assert "without saying why" in refusal(frame).message


class Outlet:
    """Keeps what a shard sends on one connection."""

    sent_bytes = queued_bytes = 0

    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []

    def send(self, message: Message) -> None:
        self.frames.append(wire.decode(message.encoded()))

    def of(self, kind: wire.Kind) -> list[wire.Frame]:
        return [frame for frame in self.frames if frame.kind is kind]

    def write_along(self, *_: object) -> bool:
        return False

    def wait_room(self) -> None:
        pass

    def sever(self) -> None:
        raise AssertionError


def test_what_an_old_connection_still_holds_does_not_take_answers_away(one_shard: Cluster):
    """A shard's thread for a broken connection has frames left when the new one has replayed them already.

    The answer of the gate must come on the new connection: the old one is gone.
    """
    job = fresh_name()
    server = one_shard.shards[0]

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        if worker.rank:
            go.wait(LIMIT_S)
            table.push({"w": torch.ones(30)})
            table.pull().result(LIMIT_S)  # answered after those who asked before
            pushed.set()
            return
        old, new = Outlet(), Outlet()
        sessions = [Session(server.shard, outlet, token_bytes=16) for outlet in (old, new)]
        payload = torch.ones(table._exchange.partitions[0].numel).numpy().tobytes()
        push = wire.Frame(kind=wire.Kind.PUSH, worker=0, incarnation=1, payload=payload)
        pull = wire.Frame(kind=wire.Kind.PULL, step=1, worker=0, incarnation=1, meta=bytes(4))
        for session in sessions:
            token = server.shard.make_token(job, 0, 1)
            hello = wire.Frame(kind=wire.Kind.HELLO, worker=0, incarnation=1, meta=token + job.encode())
            assert session.receive(hello)
        sessions[1].receive(push)
        sessions[1].receive(pull)
        sessions[0].receive(push)  # late, and a duplicate
        sessions[0].closed()
        go.set()
        assert pushed.wait(LIMIT_S)
        assert new.of(wire.Kind.PULLED)
        assert not old.of(wire.Kind.PULLED)
        sessions[1].closed()

    go, pushed = threading.Event(), threading.Event()
    run_workers(one_shard, body, num_workers=2, job=job)
