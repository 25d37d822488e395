"""However a worker's block ends, it leaves: the others go on and the process can join again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator.jobs.job import MAX_REFUSED
from ps_wire.errors import JobMismatch, ProtocolMismatch, TableMismatch, WorkerNumberTaken
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_worker.membership import membership
from ps_worker.process.exit_reason import MAX_CHARACTERS, reason_of
from tests.component.interrupting import interrupted_at
from tests.component.models import Mlp, loss_of
from tests.component.reference import seeded
from tests.component.scripts import sgd, train
from tests.component.service import (
    LIMIT_S,
    Cluster,
    LoopThread,
    fresh_name,
    run_workers,
    threads_of_workers,
    together,
)
from tests.inside import link_of, tables_of
from tests.until import until


class _SaysNothingError(Exception):
    def __str__(self) -> str:
        raise ValueError("in __str__")


ENDS = {
    "a lone surrogate": (ValueError("no caf\udce9"), r"left: ValueError: no caf\udce9"),
    "a __str__ that raises": (_SaysNothingError(), "left: _SaysNothingError"),
    "megabytes": (ValueError("much " * 4_000_000), "left: ValueError: much much"),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_an_exception_says_the_worker_leaves_and_the_others_go_on(cluster: Cluster, end: str):
    """They are told what of it can travel."""
    error, told = ENDS[end]
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if "left: " in text:
            heard.set()

    def body(worker: ps.Worker) -> int:
        link_of(worker).presence.membership._log = say if worker.rank == 0 else print
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        train(worker.rank, model, optimizer, range(1))
        if worker.rank == 1:
            with pytest.raises(type(error)), worker:
                raise error
            return 1
        assert heard.wait(LIMIT_S)
        train(worker.rank, model, optimizer, range(1, 3))
        worker.finish()
        return worker.step

    assert run_workers(cluster, body, num_workers=2) == [3, 1]
    assert told in next(text for text in said if "left: " in text)


def test_what_others_are_told_of_an_end():
    assert reason_of(None) == ""
    assert reason_of(SystemExit()) == reason_of(SystemExit(0)) == ""
    assert reason_of(SystemExit(3)) == "SystemExit: 3"
    assert reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(reason_of(ValueError("\udce9" * 4000))) == MAX_CHARACTERS


def test_ctrl_c_while_leave_settles_a_step_leaves_nonetheless(cluster: Cluster):
    """The second of two; the other worker waits for this one's step, and gets it."""
    begun = threading.Barrier(2, timeout=LIMIT_S)

    def body(worker: ps.Worker) -> int:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=True)
        train(worker.rank, model, optimizer, range(1))
        begun.wait()
        if worker.rank == 0:
            loss_of(model, 0, 1).backward()
            assert interrupted_at(0, worker.leave, inside="release")
            return 1
        train(worker.rank, model, optimizer, range(1, 3))
        worker.finish()
        return worker.step

    assert run_workers(cluster, body, num_workers=2) == [1, 3]


@pytest.mark.parametrize("first", range(6))
def test_wherever_ctrl_c_lands_in_leave_a_second_leave_leaves(cluster: Cluster, first: int):
    """Then the number is free, and no thread is left."""
    job, model = fresh_name(), seeded(Mlp)
    interrupted, point = True, first
    while interrupted:
        before = threads_of_workers()
        worker = ps.connect(servers=cluster.servers, job=job, worker=0)
        optimizer: Any = worker.wrap(sgd(model), model, overlap=True)
        loss_of(model, 0, 0).backward()
        interrupted = interrupted_at(point, worker.leave)
        worker.leave()
        assert tables_of(optimizer)[0]._buckets[0]._handles == []
        until(lambda before=before: threads_of_workers() <= before, "no thread is left")
        model.zero_grad()
        point += 6
    assert point > 60


def test_what_is_called_after_leave_says_so(cluster: Cluster):
    """Whether there was a table or not; a finish after a finish is none."""
    for tables in range(2):
        model = seeded(Mlp)
        with ps.connect(servers=cluster.servers, job=fresh_name()) as worker:
            for _ in range(tables):
                worker.wrap(sgd(model), model)
        for call in (worker.stats, worker.finish):
            with pytest.raises(ps.UsageError, match="has left job"):
                call()
    with ps.connect(servers=cluster.servers, job=fresh_name()) as worker:
        worker.wrap(sgd(model), model)
        worker.finish()
    worker.finish()


def test_a_server_that_is_stopped_waits_for_no_worker_and_none_of_them_for_its_word(loop_thread: LoopThread):
    """Nobody carries out any more what workers say, so their streams end at once, whatever the grace."""
    cluster = Cluster(loop_thread, 1)
    cluster.shards[0]._grace_s = 1e6
    with ps.connect(servers=cluster.servers, job=fresh_name(), retry_limit=0.1) as worker:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        cluster.stop(0)
        with pytest.raises(ps.ConnectionLost) as gone:
            train(0, model, optimizer, range(2))
    assert gone.value.exit_code == 69
    assert cluster.servers in gone.value.message


def test_a_refused_worker_is_told_to_those_who_wait_for_it_and_not_for_ever(one_shard, caplog, monkeypatch):
    """Another number of workers, a number that is taken, another release: who it was and why."""
    job = fresh_name()

    def join(**settings):
        return ps.connect(servers=one_shard.servers, job=job, **{"num_workers": 2} | settings)

    with caplog.at_level("INFO"), join(worker=0):
        with pytest.raises(JobMismatch):
            join(worker=1, num_workers=3)
        until(lambda: ") was refused: JobMismatch: number of workers" in caplog.text, "the other is told")
        with pytest.raises(WorkerNumberTaken):
            join(worker=0)
        until(lambda: ") was refused: WorkerNumberTaken: " in caplog.text, "the other is told")
        with monkeypatch.context() as release:
            release.setattr(membership, "PROTOCOL", PROTOCOL + 1)
            with pytest.raises(ProtocolMismatch):
                join(worker=1)
        until(lambda: ") was refused: ProtocolMismatch: the other end" in caplog.text, "the other is told")
        for _ in range(MAX_REFUSED):
            with pytest.raises(JobMismatch):
                join(worker=1, num_workers=3)
    told = [line for line in caplog.text.splitlines() if ") was refused: " in line]
    assert 2 <= len(told) <= MAX_REFUSED


def test_a_worker_whose_stream_ends_as_it_hears_that_it_is_refused_is_out(
    one_shard: Cluster, loop_thread: LoopThread
):
    """Its number is free again; before, it was held by nobody for ever, and nobody could take it."""
    job = fresh_name()
    wanted = spec_pb2.Job(name=job, consistency="bsp", num_workers=1, nonfinite="error")
    join = pb.Join(protocol=PROTOCOL, job=wanted, worker=0, host="h", pid=1, lease_s=LIMIT_S)

    async def messages() -> AsyncIterator[pb.MemberRequest]:
        yield pb.MemberRequest(join=join)
        yield pb.MemberRequest(number=1, make_table=pb.MakeTable(table=spec_pb2.Table(number=0)))
        await asyncio.Event().wait()

    async def refused() -> None:
        stream = one_shard.coordinator._members.serve(messages())
        async for reply in stream:
            if reply.WhichOneof("kind") == "refused":
                break
        await stream.aclose()  # as gRPC does where the other end has gone

    loop_thread.start(refused()).result(LIMIT_S)
    with ps.connect(servers=one_shard.servers, job=job, num_workers=1, worker=0) as worker:
        worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))


def test_a_worker_that_is_refused_for_its_model_is_told_to_those_who_wait_for_it(one_shard, caplog):
    """It has joined already, and its stream ends with the refusal."""
    job = fresh_name()

    def table(rank: int, columns: int) -> None:
        with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
            worker.table({"w": torch.zeros(columns)}, optimizer=ps.SGD(lr=1.0))

    def other() -> None:
        until(lambda: "waiting for worker 1" in caplog.text, "worker 0 has made its table")
        with pytest.raises(TableMismatch):
            table(1, 4)
        until(lambda: ") was refused: TableMismatch: table 0" in caplog.text, "the other is told")
        table(1, 3)

    with caplog.at_level("INFO"):
        together([lambda: table(0, 3), other], LIMIT_S)
