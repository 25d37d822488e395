"""A bug in what a service or a worker does beside calls: it is logged; and it begins again, or is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator.snapshots.policy import SnapshotPolicy
from ps_server.shard.partition.cell import Cell
from ps_server.shard.table.step_closer import StepCloser
from ps_wire.errors import InternalError
from ps_wire.process import watched
from ps_wire.v1 import coordinator_pb2 as pb
from tests.component.service import Cluster, LoopThread, fresh_name, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S, until

ONE = ps.SGD(lr=1.0)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins again does so after a moment."""
    monkeypatch.setattr(watched, "AGAIN_S", 0.01)


def on_loop(cluster: Cluster, call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return call()

    return cluster._loop.start(run()).result(LIMIT_S)


def pushed(worker: ps.Worker, table: ps.Table) -> None:
    table.push({"w": torch.ones(30)}).result(LIMIT_S)
    table.pull().result(LIMIT_S)


def test_leases_and_periodic_snapshots_go_on_after_a_bug(
    loop_thread: LoopThread, tmp_path: Path, caplog: pytest.LogCaptureFixture, soon: None
):
    """And other jobs have them while one cannot be looked at."""
    options = {"snapshot_dir": str(tmp_path), "snapshots": SnapshotPolicy(every_steps=1)}
    cluster, name = Cluster(loop_thread, 1, options=options), fresh_name()

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ONE)
        rooms: dict[str, Any] = cluster.coordinator.runners
        room = rooms[name]
        on_loop(cluster, lambda: (rooms.pop(name), rooms.update({"broken": None, name: room})))
        for what in ("looking at leases", "periodic snapshots"):
            line = f"bug: {what} ended; it begins again in 0.01 s"
            until(lambda line=line: caplog.messages.count(line) > 1, line)

        def taken() -> bool:
            pushed(worker, table)
            return bool(list(tmp_path.rglob("manifest.json")))

        until(taken, "a snapshot is taken")
        member = room.job.roster.members[0]
        on_loop(cluster, lambda: room.leases.grant(0, member.incarnation, 1e-3, 0.0))
        until(lambda: not member.present, "its lease is over")
        on_loop(cluster, lambda: rooms.pop("broken"))

    run_workers(cluster, body, job=name)
    cluster.close()


def test_a_bug_in_an_order_is_the_error_of_who_waits_for_it(
    one_shard: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The job's task goes on to what comes next; before, nothing of the job was carried out any more."""

    async def order(*_: Any, **__: Any) -> Any:
        raise KeyError("a bug")

    def body(worker: ps.Worker) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(one_shard.coordinator._fleet, "order", order)
            with pytest.raises(InternalError, match="a bug"):
                worker.table({"w": torch.zeros(30)}, optimizer=ONE)

    run_workers(one_shard, body)
    assert any(line.startswith("bug in order open_table of job") for line in caplog.messages)
    run_workers(one_shard, lambda worker: pushed(worker, worker.table({"w": torch.zeros(30)}, optimizer=ONE)))


def test_a_bug_while_a_worker_is_heard_is_said_to_it(
    one_shard: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its messages are read no more: it ends by name, and does not wait until its lease is over."""

    def make_table(*_: Any) -> None:
        raise KeyError("a bug")

    def body(worker: ps.Worker) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(one_shard.coordinator._late_joins, "make_table", make_table)
            with pytest.raises(InternalError, match="a bug"):
                worker.table({"w": torch.zeros(30)}, optimizer=ONE)

    name = fresh_name()
    run_workers(one_shard, body, job=name)
    assert f"bug: reading the stream of worker 0 of job {name} ended" in caplog.messages


@pytest.mark.parametrize("thread", ["ps-shard-0", "ps-member"])
def test_a_bug_on_a_thread_of_a_worker_ends_its_waits_by_name(
    one_shard: Cluster, thread: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Which it did in silence where the bug was not in taking a frame."""

    def bug(*_: Any) -> None:
        raise KeyError("a bug")

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ONE)
        (connection,) = table._exchange._connections
        with monkeypatch.context() as patch:
            if thread == "ps-shard-0":
                patch.setattr(connection, "_pause", bug)
                connection._call.cancel()
            else:
                stream: Any = link_of(worker).presence.membership._stream
                patch.setattr(stream, "_on_reply", bug)
                room = one_shard.coordinator.runners[name]
                mailbox = room.mailboxes[0, link_of(worker).incarnation]
                on_loop(one_shard, lambda: mailbox.put(pb.MemberReply(let_go=pb.LetGo(number=1))))
            until(lambda: f"bug: {thread} ended" in caplog.messages, "it is logged")
            if thread == "ps-member":  # which is told to the exchanges once it is logged
                until(lambda: link_of(worker).exchanges.failure is not None, "it is told")
            with pytest.raises(InternalError, match="a bug"):
                table.push({"w": torch.ones(30)}).result(LIMIT_S)

    name = fresh_name()
    run_workers(one_shard, body, job=name)


@pytest.mark.parametrize("where", ["a clipped step", "what follows from a step"])
def test_a_bug_while_steps_of_all_shards_are_closed_is_told_to_who_waits(
    cluster: Cluster, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Nobody answers the order to close a step, and none waits for what follows from one."""
    broken = threading.Event()
    owner: Any = Cell if where == "a clipped step" else StepCloser
    name = "_apply" if where == "a clipped step" else "_close_clipped"
    works = getattr(owner, name)

    def breaks(*given: Any) -> Any:
        if broken.is_set() and threading.current_thread().name == "ps-apply":  # nobody's frame is taken there
            raise KeyError("a bug")
        return works(*given)

    monkeypatch.setattr(owner, name, breaks)

    def body(worker: ps.Worker) -> None:
        table = worker.table(
            {"w": torch.zeros(5000)},
            optimizer=ONE,
            buckets=ps.BucketOptions(partition_bytes=4096),
            clip_grad_norm=1.0,
        )
        table.push({"w": torch.ones(5000)})
        table.pull().result(LIMIT_S)
        broken.set()
        table.push({"w": torch.ones(5000)})
        try:
            with pytest.raises(InternalError, match="a bug"):
                table.pull().result(LIMIT_S)
        finally:
            broken.clear()

    run_workers(cluster, body)
    until(lambda: "bug while closing a step" in caplog.messages, "it is logged")


def test_connections_are_accepted_after_a_bug(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soon: None
):
    """The thread that accepts begins again: who came in between waited in the listener's queue."""
    cluster = Cluster(loop_thread, 1)
    sockets: Any = cluster.shards[0].sockets
    accept, bugs = sockets._accept, threading.Event()

    def once(listener: Any) -> None:
        if not bugs.is_set():
            bugs.set()
            raise KeyError("a bug")
        accept(listener)

    monkeypatch.setattr(sockets, "_accept", once)
    table = {"w": torch.zeros(30)}
    run_workers(cluster, lambda worker: pushed(worker, worker.table(table, optimizer=ONE)), carrier="uds")
    assert "bug: ps-accept ended; it begins again in 0.01 s" in caplog.messages
    cluster.close()
