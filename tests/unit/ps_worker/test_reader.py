"""Readers: cuts are exact while workers push, and whoever reads holds nobody up for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ps_server.cut_table
import ps_server.readers
import ps_worker as ps
from ps_server.gate import gate_of
from ps_server.shard_table import ShardTable
from ps_wire import frame as wire
from ps_wire.consistency import ASP
from ps_wire.errors import JobUnknown, StrangerRefused, TableMismatch
from ps_wire.table import OptimizerSpec, ParameterSpec, TableSpec

from .service import Cluster, fresh_name, run_workers

SMALL = ps.BucketOptions(bucket_bytes=8192, first_bucket_bytes=4096, partition_bytes=4096)
SIZE, SLOTS, STEPS = 12_000, 100, 40  # elements; of them, each partition has all slots: worker * 50 + step


class Holder(torch.nn.Module):
    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((size,), -7.0))


class Normed(torch.nn.Module):
    """With a buffer, and a parameter without an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(10))
        self.fixed = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("steps", torch.zeros(1))


def reader_of(cluster: Cluster, job: str) -> ps.Reader:
    return ps.connect(role="reader", servers=cluster.servers, job=job)


def one_hot(worker: int, step: int, scale: float) -> torch.Tensor:
    hot = torch.zeros(SIZE // SLOTS, SLOTS)
    hot[:, worker * (SLOTS // 2) + step] = -scale
    return hot.view(-1)


def seen(model: Holder) -> dict[int, set[int]]:
    """Worker -> the steps that are in the weights; each of them is there once, everywhere."""
    rows = model.w.detach().view(-1, SLOTS)
    assert all(torch.equal(row, rows[0]) for row in rows), "the partitions differ"
    assert set(rows[0].tolist()) <= {0.0, 1.0}
    slots = rows[0].nonzero().flatten().tolist()
    half = SLOTS // 2
    return {worker: {slot % half for slot in slots if slot // half == worker} for worker in (0, 1)}


class Reading:
    """Two readers in a thread that read until told to stop."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.cuts: list[tuple[ps.Cut, dict[int, set[int]]]] = []
        self.in_the_middle = threading.Event()
        self.stop = threading.Event()
        self._cluster, self._job = cluster, job
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with reader_of(self._cluster, self._job) as first, reader_of(self._cluster, self._job) as second:
            while not self.stop.is_set():
                for reader in (first, second):
                    model = Holder()
                    cut = reader.read(model)
                    self.cuts.append((cut, seen(model)))
                    if any(cut.clocks.values()):
                        self.in_the_middle.set()


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_cut_holds_exactly_the_steps_below_its_clocks(cluster: Cluster, consistency: str):
    """Two readers read all the time while two workers push: updates are one-hot at (worker, step)."""
    job, started = fresh_name(), threading.Event()
    reading = Reading(cluster, job)

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        if worker.rank == 0:
            reading.thread.start()
            started.set()
        for step in range(STEPS):
            table.push({"w": one_hot(worker.rank, step, 2.0 if consistency == "bsp" else 1.0)})
            table.pull().result(20)
            if step == STEPS // 2:
                assert reading.in_the_middle.wait(20)
        worker.finish()

    try:
        run_workers(cluster, body, num_workers=2, consistency=consistency, job=job)
    finally:
        reading.stop.set()
        if started.is_set():
            reading.thread.join(20)
    assert not reading.thread.is_alive()
    assert len(reading.cuts) > 1
    for cut, steps in reading.cuts:
        assert all(steps[worker] == set(range(clock)) for worker, clock in cut.clocks.items()), (cut, steps)
        assert cut.spread == 0 or len(cut.clocks) < 2  # somebody has left: not everywhere at once
        assert consistency != "bsp" or len(set(cut.clocks.values())) <= 1


def test_a_reader_comes_at_any_time(cluster: Cluster):
    """It is no worker: it does not count, needs no number, and does not hold the job open."""
    job, model = fresh_name(), Holder()
    with pytest.raises(JobUnknown, match="no job"):
        reader_of(cluster, job)

    def body(worker: ps.Worker) -> None:
        with reader_of(cluster, job) as reader, pytest.raises(JobUnknown, match="has no table 0"):
            reader.read(model)
        with reader_of(cluster, job) as reader:
            table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
            table.push({"w": torch.full((SIZE,), -3.0)}).result(10)
            cut = reader.read(model)
            assert torch.equal(model.w, torch.full((SIZE,), 3.0))
            assert (cut.version, cut.spread, cut.clocks, cut.buffers_step) == (1, 0, {0: 1}, None)
            table.push({"w": torch.full((SIZE,), -1.0)}).result(10)
            reader.read(model)
            assert torch.equal(model.w, torch.full((SIZE,), 4.0))

    run_workers(cluster, body, job=job)  # leaves without finishing: suspended
    suspended = Holder()
    with reader_of(cluster, job) as reader:
        cut = reader.read(suspended)
    assert torch.equal(suspended.w, torch.full((SIZE,), 4.0))
    assert (cut.version, cut.clocks) == (2, {})

    def go_on(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        table.push({"w": torch.full((SIZE,), -1.0)}).result(10)
        worker.finish()

    run_workers(cluster, go_on, job=job)
    with reader_of(cluster, job) as reader:
        cut = reader.read(suspended)  # ended by now
    assert torch.equal(suspended.w, torch.full((SIZE,), 5.0))
    assert cut.version == 3


def test_buffers_are_those_of_a_live_worker_at_its_next_step(cluster: Cluster):
    job, mine = fresh_name(), Normed()
    read: list[tuple[ps.Cut, Normed]] = []

    def reads() -> None:
        with reader_of(cluster, job) as reader:
            model = Normed()
            read.append((reader.read(model), model))

    def body(worker: ps.Worker) -> None:
        with torch.no_grad():
            mine.fixed.fill_(5.0)
        optimizer = worker.wrap(torch.optim.SGD([mine.w], lr=0.1), mine)
        thread = threading.Thread(target=reads, daemon=True)
        thread.start()
        while not read:
            mine.steps += 1
            mine.w.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        thread.join(10)
        worker.finish()

    run_workers(cluster, body, job=job)
    (cut, model) = read[0]
    assert cut.buffers_step
    assert model.steps.item() == cut.buffers_step
    assert torch.equal(model.fixed, torch.full((3,), 5.0))
    with reader_of(cluster, job) as reader:
        reader.read(model)
    assert torch.equal(model.steps, mine.steps)  # the final ones
    assert torch.equal(model.w, mine.w)


def test_another_model_is_refused_and_nothing_is_loaded(cluster: Cluster):
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0))
        with reader_of(cluster, job) as reader:
            other = Holder(3)
            with pytest.raises(TableMismatch, match=r"'w' is float32 \[12000\] there; .* has float32 \[3\]"):
                reader.read(other)
            assert torch.equal(other.w, torch.full((3,), -7.0))
            with pytest.raises(TableMismatch, match="no such parameter"):
                reader.read(torch.nn.Linear(2, 2))
            assert reader.read(Holder()).clocks == {0: 0}

    run_workers(cluster, body, job=job)


def test_a_cut_that_does_not_come_about_is_given_up_and_the_job_goes_on(cluster: Cluster, monkeypatch: Any):
    """One BSP worker has begun a step and the other has not: the cut would be behind it."""
    monkeypatch.setattr(ps_server.readers, "CUT_LIMIT_S", 0.2)
    job = fresh_name()
    begun, given_up, read = threading.Barrier(2, timeout=10), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        if worker.rank == 0:
            table.push({"w": torch.full((SIZE,), -2.0)}).result(10)
            begun.wait()
            with reader_of(cluster, job) as reader:
                with pytest.raises(ps.CutAborted, match="read later"):
                    reader.read(Holder(), limit_s=0.1)
                given_up.set()
                table.pull().result(10)
                model = Holder()
                assert reader.read(model).clocks == {0: 1, 1: 1}
                assert torch.equal(model.w, torch.full((SIZE,), 2.0))
                read.set()
        else:
            begun.wait()
            assert given_up.wait(10)
            table.push({"w": torch.full((SIZE,), -2.0)}).result(10)
            assert read.wait(10)
        worker.finish()

    run_workers(cluster, body, num_workers=2, job=job)


def test_a_reader_that_vanishes_during_its_cut_holds_nobody_up(cluster: Cluster):
    """Its stream ends, and with it the hold, long before any limit."""
    job = fresh_name()
    gone = threading.Event()

    def reads(reader: ps.Reader) -> None:
        with contextlib.suppress(ps.PsError):
            reader.read(Holder(), limit_s=60)

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        cells = [cell for server in cluster.shards for cell in server.shard.table(job, 0).cells()]
        if worker.rank == 0:
            table.push({"w": torch.full((SIZE,), -2.0)}).result(10)
            reader = reader_of(cluster, job)
            thread = threading.Thread(target=reads, args=(reader,), daemon=True)
            thread.start()
            wait_until(lambda: all(cell.cut._cut._limits for cell in cells))
            reader._service.close()
            wait_until(lambda: all(cell.cut._cut.idle for cell in cells))
            thread.join(10)
            assert not thread.is_alive()
            reader.leave()
            gone.set()
        else:
            assert gone.wait(20)
            table.push({"w": torch.full((SIZE,), -2.0)}).result(10)
        assert table.pull().result(10).version == 1
        worker.finish()

    run_workers(cluster, body, num_workers=2, job=job)


def wait_until(true: Callable[[], bool], limit_s: float = 5.0) -> None:
    until_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_reader_alone_has_nobody_to_read_from(monkeypatch: Any):
    monkeypatch.delenv("PS_SERVERS", raising=False)
    with pytest.raises(ps.UsageError, match="a reader needs servers"):
        ps.connect(role="reader")
    monkeypatch.setenv("PS_ROLE", "writer")
    with pytest.raises(ps.UsageError, match=r"PS_ROLE.*'writer'"):
        ps.connect()


class Outlet:
    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []
        self.came = threading.Event()

    def send(self, message: bytes) -> None:
        self.frames.append(wire.decode(message))
        self.came.set()


def one_table() -> ShardTable:
    parameter = ParameterSpec(name="w", shape=(1024,), dtype="float32", group=0, device=0)
    spec = TableSpec(
        number=0, parameters=(parameter,), optimizer=ps.SGD(lr=1.0).spec(), buckets=ps.BucketOptions()
    )
    assert isinstance(spec.optimizer, OptimizerSpec)
    table = ShardTable(job="j", spec=spec, num_shards=1, shard=0, gate=gate_of(ASP()))
    load = wire.Frame(kind=wire.Kind.LOAD, payload=bytes(4096))
    table.receive(load, Outlet(), member=True)
    table.started = True
    table.join(0, 1, 0)
    return table


def test_a_shard_without_a_coordinator_gives_a_cut_up_by_itself(monkeypatch: Any):
    monkeypatch.setattr(ps_server.cut_table, "CUT_LIMIT_S", 0.1)
    table, outlet = one_table(), Outlet()
    assert table.cut.hold((wire.FIRST_READER, 1)) == {0: 0}
    push = wire.Frame(kind=wire.Kind.PUSH, worker=0, incarnation=1, payload=bytes(4096))
    table.receive(push, outlet, member=True)
    assert not outlet.frames
    assert outlet.came.wait(5)
    assert [frame.kind for frame in outlet.frames] == [wire.Kind.ACK]


def test_a_push_that_is_refused_after_a_hold_says_so():
    """Nobody waits for an answer that does not come."""
    table, outlet = one_table(), Outlet()
    table.cut.hold((wire.FIRST_READER, 1))
    push = wire.Frame(kind=wire.Kind.PUSH, worker=0, incarnation=1, step=3, payload=bytes(4096))
    table.receive(push, outlet, member=True)
    table.cut.end((wire.FIRST_READER, 1))
    assert [frame.kind for frame in outlet.frames] == [wire.Kind.REFUSE]


def test_a_reader_does_nothing_but_read():
    table, outlet = one_table(), Outlet()
    for kind in (wire.Kind.PUSH, wire.Kind.HYPER, wire.Kind.LOAD):
        with pytest.raises(StrangerRefused, match="a reader only reads"):
            table.receive(
                wire.Frame(kind=kind, worker=wire.FIRST_READER, incarnation=1), outlet, member=False
            )
