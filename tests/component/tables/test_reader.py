"""Readers: cuts are exact while workers push, and whoever reads holds nobody up for long."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch

import ps_server.coordinator.readers
import ps_server.coordinator.state_store
import ps_server.shard.table.cuts
import ps_worker as ps
from ps_server.shard.job import ShardJob
from ps_wire.errors import JobUnknown, TableMismatch
from tests.component.interrupting import interrupted_at, sgd
from tests.component.models import Mlp, loss_of
from tests.component.readers import reader_of
from tests.component.reference import assert_same, seeded
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S, until

SMALL = ps.BucketOptions(bucket_bytes=8192, first_bucket_bytes=4096, partition_bytes=4096)
SIZE, SLOTS, STEPS = 12_000, 100, 40  # elements; of them, each partition has all slots: worker * 50 + step


class Holder(torch.nn.Module):
    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((size,), -7.0))


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
            table.pull().result(LIMIT_S)
            if step == STEPS // 2:
                assert reading.in_the_middle.wait(LIMIT_S)
        worker.finish()

    try:
        run_workers(cluster, body, num_workers=2, consistency=consistency, job=job)
    finally:
        reading.stop.set()
        if started.is_set():
            reading.thread.join(LIMIT_S)
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
        with reader_of(cluster, job) as reader:
            with pytest.raises(JobUnknown, match="has no table 0"):
                reader.read(model)
            table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
            table.push({"w": torch.full((SIZE,), -3.0)}).result(LIMIT_S)
            cut = reader.read(model)
            assert torch.equal(model.w, torch.full((SIZE,), 3.0))
            assert (cut.version, cut.spread, cut.clocks, cut.buffers) == (1, 0, {0: 1}, "none")
            table.push({"w": torch.full((SIZE,), -1.0)}).result(LIMIT_S)
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
        table.push({"w": torch.full((SIZE,), -1.0)}).result(LIMIT_S)
        worker.finish()

    run_workers(cluster, go_on, job=job)
    with reader_of(cluster, job) as reader:
        cut = reader.read(suspended)  # ended by now
    assert torch.equal(suspended.w, torch.full((SIZE,), 5.0))
    assert cut.version == 3


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
    monkeypatch.setattr(ps_server.coordinator.readers, "CUT_LIMIT_S", 0.2)
    job = fresh_name()
    begun, given_up, read = threading.Barrier(2, timeout=LIMIT_S), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        if worker.rank == 0:
            table.push({"w": torch.full((SIZE,), -2.0)}).result(LIMIT_S)
            begun.wait()
            with reader_of(cluster, job) as reader:
                with pytest.raises(ps.CutAborted, match="read later"):
                    reader.read(Holder(), limit_s=0.1)
                given_up.set()
                table.pull().result(LIMIT_S)
                model = Holder()
                assert reader.read(model).clocks == {0: 1, 1: 1}
                assert torch.equal(model.w, torch.full((SIZE,), 2.0))
                read.set()
        else:
            begun.wait()
            assert given_up.wait(LIMIT_S)
            table.push({"w": torch.full((SIZE,), -2.0)}).result(LIMIT_S)
            assert read.wait(LIMIT_S)
        worker.finish()

    run_workers(cluster, body, num_workers=2, job=job)


def test_numbers_that_make_no_sense_are_refused_at_once(cluster: Cluster):
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        with reader_of(cluster, job) as reader:
            for given in ({"table": -1}, {"limit_s": 0.0}, {"limit_s": float("nan")}):
                with pytest.raises(ps.UsageError, match=r"table >= 0 and a limit_s > 0"):
                    reader.read(Holder(), **given)
            assert reader.read(Holder(), limit_s=float("inf")).clocks == {0: 0}

    run_workers(cluster, body, job=job)


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
            table.push({"w": torch.full((SIZE,), -2.0)}).result(LIMIT_S)
            reader = reader_of(cluster, job)
            thread = threading.Thread(target=reads, args=(reader,), daemon=True)
            thread.start()
            until(lambda: all(cell.cut._cut._limits for cell in cells))
            reader._service.close()
            until(lambda: all(cell.cut._cut.idle for cell in cells))
            thread.join(LIMIT_S)
            assert not thread.is_alive()
            reader.leave()
            gone.set()
        else:
            assert gone.wait(LIMIT_S)
            table.push({"w": torch.full((SIZE,), -2.0)}).result(LIMIT_S)
        assert table.pull().result(LIMIT_S).version == 1
        worker.finish()

    run_workers(cluster, body, num_workers=2, job=job)


def entries_of(cluster: Cluster, job: str) -> list[ShardJob]:
    """What each shard holds of the job at this moment."""
    return [entry for server in cluster.shards for entry in server.shard.jobs() if entry.name == job]


@pytest.fixture
def _long_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut that nobody ends is there for long: whoever reads sooner has not waited for its limit."""
    monkeypatch.setattr(ps_server.coordinator.readers, "CUT_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(ps_server.shard.table.cuts, "HOLD_LIMIT_S", LIMIT_S)


@pytest.mark.usefixtures("_long_cuts")
@pytest.mark.parametrize("first", [0, 1])
def test_wherever_ctrl_c_lands_in_a_read_the_next_one_reads(cluster: Cluster, first: int):
    """At once: the cut that was broken off has ended before."""
    job = fresh_name()

    def body(worker: ps.Worker) -> int:
        model = seeded(Mlp)
        optimizer: Any = worker.wrap(sgd(model), model)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        line, interrupted = first, True
        with reader_of(cluster, job) as reader:
            while interrupted:
                read = seeded(Mlp, 1)
                interrupted = interrupted_at(line, lambda read=read: reader.read(read))
                assert reader.read(read, limit_s=LIMIT_S / 2).version == 1
                assert_same(read, model)
                line += 2
        worker.finish()
        return line

    (lines,) = run_workers(cluster, body, job=job)
    assert lines > 100


@pytest.mark.usefixtures("_long_cuts")
def test_after_ctrl_c_in_a_read_another_table_can_be_read(cluster: Cluster):
    """One that the reader has not asked for yet: the coordinator takes no question within a cut."""
    job = fresh_name()

    def body(worker: ps.Worker) -> int:
        models = [seeded(Mlp), seeded(Holder)]
        for model in models:
            worker.wrap(sgd(model), model)
        line, interrupted = 0, True
        while interrupted:
            with reader_of(cluster, job) as reader:
                read = seeded(Mlp, 1)
                interrupted = interrupted_at(
                    line, lambda reader=reader, read=read: reader.read(read), inside="_try_cut"
                )
                reader.read(Holder(), table=1, limit_s=LIMIT_S / 2)
            line += 1
        worker.finish()
        return line

    (lines,) = run_workers(cluster, body, job=job)
    assert lines > 10


@pytest.mark.parametrize("inside", ["_join", "leave"])
def test_a_reader_that_is_interrupted_as_it_connects_says_so(cluster: Cluster, inside: str):
    """Each line there: no other error takes the place of Ctrl-C's."""
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        worker.wrap(sgd(model), model)
        line, interrupted = 0, True
        while interrupted:
            interrupted = interrupted_at(line, lambda: reader_of(cluster, job).leave(), inside=inside)
            line += 1
        worker.finish()

    run_workers(cluster, body, job=job)


def test_whoever_has_left_is_told_so(cluster: Cluster):
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0))
        reader = reader_of(cluster, job)
        assert reader.read(Holder()).clocks == {0: 0}
        reader.leave()
        reader.leave()
        with pytest.raises(ps.UsageError, match="has left"):
            reader.read(Holder())
        until(lambda: [set(entry.known) for entry in entries_of(cluster, job)] == [{0}] * 2)
        left = entries_of(cluster, job)
        kept = [({key[0] for key in it.sessions.live}, {key[0] for key in it.tokens.by_rank}) for it in left]
        assert kept == [({0}, {0})] * 2

    run_workers(cluster, body, job=job)


def test_a_reader_alone_has_nobody_to_read_from(monkeypatch: Any):
    monkeypatch.delenv("PS_SERVERS", raising=False)
    with pytest.raises(ps.UsageError, match="a reader needs servers"):
        ps.connect(role="reader")
    monkeypatch.setenv("PS_ROLE", "writer")
    with pytest.raises(ps.UsageError, match=r"PS_ROLE.*'writer'"):
        ps.connect()


def test_a_reader_whose_coordinator_is_gone_has_lost_its_connection(loop_thread):
    """Whichever notices first, the stream to the coordinator or a data connection."""
    made = Cluster(loop_thread, 1)
    job = fresh_name()
    try:
        with ps.connect(servers=made.servers, job=job, num_workers=1, retry_limit=0.1) as worker:
            worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0))
            with reader_of(made, job) as reader:
                reader.read(Holder())
                made.kill(0)
                until(lambda: not reader._thread.is_alive(), "the stream has ended")
                with pytest.raises(ps.ConnectionLost):
                    reader.read(Holder())
    finally:
        made.close()
