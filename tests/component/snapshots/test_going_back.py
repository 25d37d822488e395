"""Which snapshots jobs go back to: none of what was undone; and which jobs do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator import recovery
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.recovery import REFUSED_S, Recovery
from ps_server.coordinator.snapshots.attempt import SnapshotAttempt
from ps_server.coordinator.state_store import CAPTURED
from ps_wire.access.access import OPEN
from ps_wire.errors import Fenced, JobFull, MemoryLimitExceeded, PsError, SnapshotFailed
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from tests.component.holding import storage_that_hangs
from tests.component.service import Cluster, fresh_name, status_of
from tests.component.snapshots.one_table import step, table_of
from tests.until import LIMIT_S, until


@pytest.fixture
def num_durable() -> int:
    return 1


def begin_to_take(cluster: Cluster, job: str) -> tuple[threading.Thread, list[PsError]]:
    """A thread that takes a snapshot, and why there is none once it has ended."""
    errors: list[PsError] = []

    def take():
        try:
            list(snapshot_calls.take(cluster.servers, job, OPEN))
        except PsError as error:
            errors.append(error)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread, errors


def take_while_training(cluster: Cluster, job: str) -> PsError | None:
    """A snapshot of a job that trains meanwhile; why there is none."""
    with ps.connect(servers=cluster.servers, job=job, num_workers=1, lease=25) as worker:
        table = table_of(worker)
        step(table, 0)
        thread, errors = begin_to_take(cluster, job)
        while thread.is_alive():
            step(table, 0)
            thread.join(0.01)
    return errors[0] if errors else None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_snapshot_of_a_history_that_was_undone_while_it_was_completed_does_not_stay(
    durable, monkeypatch, when
):
    """Whether its manifest was about to be written, or was there: the next rollback would go to it."""
    job, describe, complete = fresh_name(), SnapshotAttempt._describe, SnapshotStore.complete
    takings = durable.coordinator._scheduler

    def described(self, *args, **kwargs):
        if when == "before":
            takings.goes_back(job)
        return describe(self, *args, **kwargs)

    def completed(self, *args):
        complete(self, *args)
        undone = threading.Event()
        durable._loop.loop.call_soon_threadsafe(lambda: (takings.goes_back(job), undone.set()))
        assert undone.wait(LIMIT_S)

    monkeypatch.setattr(SnapshotAttempt, "_describe", described)
    if when == "after":
        monkeypatch.setattr(SnapshotStore, "complete", completed)
    error = take_while_training(durable, job)
    assert isinstance(error, SnapshotFailed)
    assert "goes back to a snapshot" in error.message
    assert durable.shards[0].shard.snapshots.store.names(job) == []


def test_a_coordinator_that_is_fenced_completes_no_snapshot(request, tmp_path, monkeypatch):
    """It may not have noticed yet that another one was started on its state directory."""
    job, describe = fresh_name(), SnapshotAttempt._describe
    monkeypatch.setattr("ps_server.coordinator.coordinator.LOOK_S", 3600.0)  # before it begins to look
    durable = request.getfixturevalue("durable")

    def described(self, *args, **kwargs):
        Generations(tmp_path / "state")
        return describe(self, *args, **kwargs)

    monkeypatch.setattr(SnapshotAttempt, "_describe", described)
    error = take_while_training(durable, job)
    assert isinstance(error, Fenced)
    assert durable.shards[0].shard.snapshots.store.names(job) == []


def test_a_snapshot_says_the_leases_of_workers(durable):
    """A coordinator that knows nobody gives them back."""
    job = fresh_name()
    assert take_while_training(durable, job) is None
    store = durable.shards[0].shard.snapshots.store
    assert store.manifest(job, store.names(job)[0]).workers[0].lease_s == 25.0
    saved = next(iter(durable.coordinator._recovery._snapshots.saved(job)))
    assert saved.workers == {0: 25.0}


def test_a_snapshot_is_written_while_all_that_waits_for_other_storage_waits(durable):
    """Of another job, say, or of what the server looks for by itself: each has threads of its own."""
    with storage_that_hangs(durable):
        assert take_while_training(durable, fresh_name()) is None


def test_a_job_that_nobody_comes_to_is_not_restored(durable, monkeypatch):
    """Be it an ended one: a coordinator that was started again holds what somebody trains or reads."""
    wanted, other = fresh_name(), fresh_name()
    for job in (wanted, other):
        assert take_while_training(durable, job) is None
    durable.kill(0)
    durable.start_again(0)
    restored = durable.shards[0].shard
    with ps.connect(servers=durable.servers, job=wanted, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        assert table.step > 1
        assert [job.name for job in restored.jobs()] == [wanted]
    monkeypatch.setattr(recovery, "MAX_JOBS", 1)
    with pytest.raises(JobFull):
        ps.connect(servers=durable.servers, job=other, num_workers=1)
    assert [job.name for job in restored.jobs()] == [wanted]


def test_a_job_none_of_whose_snapshots_can_be_read_leaves_nothing_on_shards(durable):
    """Though some of its parts could; it begins anew."""
    job = fresh_name()
    assert take_while_training(durable, job) is None
    store = durable.shards[0].shard.snapshots.store
    durable.kill(0)
    for name in store.names(job):
        with Path(store.where(job, name, "shard-0-of-1.safetensors")).open("r+b") as file:
            file.truncate(100)
    durable.start_again(0)
    coordinator = durable.coordinator
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        assert durable.shards[0].shard.jobs()[0].tables == {}
        table = table_of(worker)
        step(table, 0)
        assert table.step == 1
        assert list(coordinator.runners) == [job]


def too_large(cluster: Cluster, job: str) -> tuple[str, Recovery]:
    """The snapshot of a job for which the servers that have come back have no memory; and who knows that."""
    assert take_while_training(cluster, job) is None
    (name,) = cluster.shards[0].shard.snapshots.store.names(job)
    cluster.kill(0)
    cluster._options["memory_limit_bytes"] = 1000
    cluster.start_again(0)
    return name, cluster.coordinator._recovery


def watch_drops(monkeypatch: pytest.MonkeyPatch, at_drop: Callable[[], None]) -> None:
    """Calls that before shards are told to forget a job."""
    order_each = Fleet.order_each

    async def watch(fleet: Fleet, order: pb.Order, **how: Any) -> list[pb.OrderDone]:
        if order.HasField("drop_job"):
            at_drop()
        return await order_each(fleet, order, **how)

    monkeypatch.setattr(Fleet, "order_each", watch)


def test_a_snapshot_that_does_not_fit_into_the_memory_limit_is_kept_and_its_job_refused_by_name(
    durable, monkeypatch
):
    """Each time that somebody comes: nobody begins the job anew, and with more memory it goes on.

    It is refused when the shards have forgotten it, so that it sleeps for whoever heard that.
    """
    job, now_s, refused = fresh_name(), [1e6], []
    name, tried = too_large(durable, job)
    monkeypatch.setattr(tried, "_clock", lambda: now_s[0])
    watch_drops(monkeypatch, lambda: refused.append(job in tried._refused))
    for later_s in (0.0, REFUSED_S, 0.0):  # it is tried, tried again, and not
        now_s[0] += later_s
        with pytest.raises(MemoryLimitExceeded, match=f"{name}, which is kept.*larger --memory-limit"):
            ps.connect(servers=durable.servers, job=job, num_workers=1)
        assert tried.absent == {job: "asleep"}
    assert refused == [False, False]
    assert durable.shards[0].shard.jobs() == ()
    durable.kill(0)
    durable._options["memory_limit_bytes"] = None
    durable.start_again(0)
    assert durable.shards[0].shard.snapshots.store.names(job) == [name]
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        assert table.step > 1


def test_a_job_that_does_not_fit_is_tried_again_where_a_shard_comes_back_before_it_is_refused(
    durable, monkeypatch
):
    """It may have come with more memory: nobody is refused for what was before."""
    job, refused = fresh_name(), []
    _, tried = too_large(durable, job)

    def comes_back() -> None:
        refused.append(job in tried._refused)
        if len(refused) == 1:
            tried.lost(0)

    watch_drops(monkeypatch, comes_back)
    with pytest.raises(MemoryLimitExceeded):
        ps.connect(servers=durable.servers, job=job, num_workers=1)
    assert refused == [False, False]


def test_a_job_that_is_told_to_go_back_to_what_does_not_fit_ends_with_the_reason(durable):
    """Its worker and the person hear it; no older snapshot is gone back to, and the job can go on later."""
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        shard = durable.shards[0].shard
        for _ in "12":
            step(table, 0)
            thread, errors = begin_to_take(durable, job)
            while thread.is_alive():
                step(table, 0)
                thread.join(0.01)
            assert not errors
        names = shard.snapshots.store.names(job)
        shard._budget = replace(shard._budget, limit_bytes=1000)
        with pytest.raises(MemoryLimitExceeded, match=f"{max(names)}, which is kept"):
            durable.go_back(job, max(names))
        with pytest.raises(MemoryLimitExceeded, match="which is kept"):
            deque(iter(lambda: step(table, 0), None), maxlen=0)  # until it hears of it
    assert shard.snapshots.store.names(job) == names


def test_a_job_that_sleeps_is_seen_until_somebody_comes_to_it(durable):
    """A coordinator that was started again knows of it what its snapshots' folder is called."""
    job = fresh_name()
    assert take_while_training(durable, job) is None
    durable.kill(0)
    durable.start_again(0)
    seen = lambda: status_of(durable).job(job)  # noqa: E731
    until(seen, "the coordinator has looked into the folder")
    assert seen().state == "asleep"
    with ps.connect(servers=durable.servers, job=job, num_workers=1, lease=25) as worker:
        table_of(worker)
        assert seen().state == "running"


def test_a_coordinator_that_is_stopped_while_a_snapshot_is_taken_gives_it_up_without_a_word(durable, caplog):
    """Nothing has gone wrong; what was written of it has no manifest, and the older ones stay."""
    job, takings = fresh_name(), durable.coordinator._scheduler

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        taking, errors = begin_to_take(durable, job)
        until(lambda: job in takings._attempts and takings._attempts[job]._members, "the worker is asked")
        durable.stop(0)
        taking.join(LIMIT_S)
        durable.start_again(0)
        step(table, 0)
        worker.finish()
    assert errors
    assert "NO SNAPSHOT" not in caplog.text
    assert "bug" not in caplog.text
    assert durable.shards[0].shard.snapshots.store.names(job) == []


def test_what_a_worker_captures_for_a_cut_that_was_given_up_is_not_written(durable):
    """Its word is late: what there was of the snapshot has been deleted."""
    job, takings = fresh_name(), durable.coordinator._scheduler

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        step(table_of(worker), 0)
        thread, errors = begin_to_take(durable, job)
        until(lambda: job in takings._attempts and takings._attempts[job]._members, "the worker is asked")
        taking = takings._attempts[job]
        (member,) = taking._members.values()
        durable._loop.loop.call_soon_threadsafe(takings.goes_back, job)
        thread.join(LIMIT_S)

        async def captured():
            taking._states.put(job, f"{CAPTURED}/0", b"state")
            taking.captured(member, pb.CutCaptured(number=taking._number))

        durable._loop.start(captured()).result(LIMIT_S)
        worker.finish()
    assert errors
    assert taking._writes == {}
