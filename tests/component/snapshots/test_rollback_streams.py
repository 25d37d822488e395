"""Streams of shards that break around a rollback, and processes that come and go: no job is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import ps_worker as ps
from ps_server.coordinator import coordinator
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.following import FollowerStream
from ps_wire.access.access import OPEN
from ps_wire.access.channel import dial
from ps_wire.errors import MemoryLimitExceeded, ServerNotReady, SnapshotUnusable
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_worker.model.model_table import pack
from tests.component.holding import Slow
from tests.component.saving import save
from tests.component.service import Cluster, fresh_name, together
from tests.component.snapshots.one_table import step, table_of
from tests.inside import link_of
from tests.until import LIMIT_S, until


def end_stream(cluster: Cluster) -> FollowerStream:
    """The stream of shard 1, which is about to end."""
    stream = cluster.coordinator._fleet._registered[1]
    cluster._loop.loop.call_soon_threadsafe(stream.outbox.put_nowait, None)
    return stream


def break_stream(cluster: Cluster) -> None:
    """The stream of shard 1 ends; it has followed again on return."""
    before, shards = end_stream(cluster), cluster.coordinator._fleet
    until(lambda: shards._registered.get(1) not in (None, before), "it follows again")


@contextmanager
def two_jobs(cluster: Cluster, folder: Path) -> Iterator[tuple[list[str], list[ps.Table], str]]:
    """Two jobs of one step each, by name and table, and a snapshot of the first."""
    names = [fresh_name(), fresh_name()]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(ps.connect(servers=cluster.servers, job=name, num_workers=1))
            for name in names
        ]
        tables = [table_of(worker) for worker in workers]
        for table in tables:
            step(table, 0)
        yield names, tables, save(cluster, str(folder), names[0], {0: pack({})})


def jobs(cluster: Cluster) -> list[list[str]]:
    return [[job.name for job in it.shard.jobs()] for it in cluster.shards]


def rolled_back(cluster: Cluster, folder, job: str, table: ps.Table) -> None:
    """A step, a snapshot, and a shard that dies."""
    step(table, 0)
    save(cluster, str(folder), job, {0: pack({})})
    cluster.kill(1)
    cluster.start_again(1)
    with pytest.raises(ps.RolledBack):
        step(table, 0)


def test_a_stream_that_breaks_after_a_rollback_loses_nothing(durable, tmp_path):
    """The shard is of the generation that it was restored to."""
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        rolled_back(durable, tmp_path / "snapshots", job, table)
        step(table, 0)
        break_stream(durable)
        step(table, 0)
        assert table.step == 3
        assert jobs(durable) == [[job], [job]]
        assert durable.coordinator.runners[job].events.counts["lose"] == 1


def test_a_rolling_restart_of_shard_0_after_a_rollback_loses_nothing(durable, tmp_path):
    """Shard 1 has the generation that shard 0 hands on."""
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        rolled_back(durable, tmp_path / "snapshots", job, table)
        step(table, 0)
        durable.stop(0)
        durable.start_again(0)
        step(table, 0)
        assert table.step == 3
        assert jobs(durable) == [[job], [job]]


def test_a_job_goes_on_when_another_one_was_restored_and_a_stream_broke(durable, tmp_path):
    """What a shard holds of other jobs is no other than before."""
    folder = tmp_path / "snapshots"
    with two_jobs(durable, folder) as (names, tables, snapshot):
        with dial(durable.servers.split(",")[0], OPEN) as channel:
            request = pb.RestoreRequest(job=names[0], snapshot=snapshot)
            CoordinatorStub(channel).Restore(request, timeout=LIMIT_S)
        break_stream(durable)
        step(tables[1], 0)
        assert tables[1].step == 2
        with pytest.raises(ps.RolledBack):
            step(tables[0], 0)
        assert [sorted(held) for held in jobs(durable)] == [sorted(names)] * 2


@pytest.mark.parametrize("how", ["its stream breaks", "it is restarted"])
def test_a_shard_that_cannot_use_the_snapshot_of_one_job_keeps_what_it_holds_of_others(
    durable, tmp_path, how
):
    """A restore that it has refused is no reason to take it for a process that was left behind."""
    folder = tmp_path / "snapshots"
    with two_jobs(durable, folder) as (names, tables, snapshot):
        damaged = folder / names[0] / snapshot / "shard-1-of-2.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:-8])
        with pytest.raises(SnapshotUnusable):
            durable.go_back(names[0], snapshot)
        if how == "it is restarted":
            durable.stop(1)
            durable.start_again(1)
        else:
            break_stream(durable)
        step(tables[1], 0)
        assert tables[1].step == 2
        assert durable.coordinator.runners[names[1]].events.counts["lose"] == 0
        assert jobs(durable) == [[names[1]], [names[1]]]


def test_a_stream_that_breaks_while_one_job_goes_back_costs_no_other_job_a_step(
    durable, tmp_path, monkeypatch
):
    """The order comes again to the shard, which has carried it out meanwhile."""
    folder = tmp_path / "snapshots"
    with two_jobs(durable, folder) as (names, tables, snapshot):
        slow = Slow(durable.shards[1].shard, "open_part", lambda *_: True, monkeypatch)

        def meanwhile() -> None:
            assert slow.there.wait(LIMIT_S)
            before = end_stream(durable)
            until(lambda: durable.coordinator._fleet._registered.get(1) is not before, "its stream has ended")
            slow.go.set()

        together([meanwhile, lambda: durable.go_back(names[0], snapshot)])
        until(lambda: 1 in durable.coordinator._fleet._registered, "it follows again")
        step(tables[1], 0)
        assert tables[1].step == 2
        with pytest.raises(ps.RolledBack):
            step(tables[0], 0)
        assert durable.coordinator.runners[names[1]].events.counts["lose"] == 0


def test_jobs_go_back_beside_each_other(durable, tmp_path, monkeypatch):
    """What one's snapshot takes, or where it lies, holds up nobody who comes to another one."""
    slow, other = fresh_name(), fresh_name()
    for job in (slow, other):
        with ps.connect(servers=durable.servers, job=job, num_workers=1, worker=0) as worker:
            step(table_of(worker), 0)
            save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
            worker.finish()
    durable.kill(0)
    durable.start_again(0)
    held = Slow(durable.shards[0].shard, "open_part", lambda job, *_: job == slow, monkeypatch)

    def train(job: str) -> int:
        with ps.connect(servers=durable.servers, job=job, num_workers=1, worker=0) as worker:
            table = table_of(worker)
            step(table, 0)
            return table.step

    def meanwhile() -> int:
        assert held.there.wait(LIMIT_S)
        try:
            return train(other)
        finally:
            held.go.set()

    assert together([lambda: train(slow), meanwhile]) == [2, 2]


def test_a_worker_that_joined_after_the_snapshot_comes_back_with_the_others(durable, tmp_path):
    """A coordinator that was started again does not know it, wherever it asks first."""
    job = fresh_name()
    joined = {"servers": durable.servers, "job": job, "num_workers": "1:2", "consistency": "asp"}
    with ps.connect(worker=0, **joined) as one:
        table = table_of(one)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        with ps.connect(worker=1, **joined) as other:
            late = table_of(other)
            step(late, 1)
            durable.kill(0)
            durable.start_again(0)
            with pytest.raises(ps.RolledBack):
                link_of(other).presence.membership.calls.get_state("what nobody has put")
            for it, rank in ((table, 0), (late, 1)):
                with pytest.raises(ps.RolledBack):
                    step(it, rank)
                step(it, rank)


def test_a_member_that_goes_while_a_shard_is_away_waits_for_the_shard_however_long_that_is(
    durable, tmp_path, monkeypatch
):
    """It has no limit of its own: training goes on when the shard is back."""
    monkeypatch.setattr(Fleet.wait_complete, "__defaults__", (0.05,))  # of whoever does not say another
    job = fresh_name()
    joined = {"servers": durable.servers, "job": job, "num_workers": 2}

    def begin(rank: int) -> tuple[ps.Worker, ps.Table]:
        worker = ps.connect(worker=rank, **joined)
        table = table_of(worker)
        step(table, rank)
        return worker, table

    (one, table), (other, _) = together([lambda: begin(0), lambda: begin(1)])
    save(durable, str(tmp_path / "snapshots"), job, {0: pack({}), 1: pack({})})
    durable.kill(1)
    until(lambda: not durable.coordinator._fleet._complete.is_set(), "the shard is missed")
    room = durable.begin_eviction(job, 1)
    assert not threading.Event().wait(0.3)  # several of the limits above
    assert room.job.phase.broken is None
    link_of(other).presence.membership.abandon()
    durable.start_again(1)
    until(lambda: room.events.counts["rollback"], "the job goes back")
    with pytest.raises(ps.RolledBack):
        step(table, 0)
    step(table, 0)
    one.leave()


def test_a_part_that_takes_long_to_read_is_read_once(durable, tmp_path, monkeypatch):
    """However long that is: given again it would be read behind itself, and so on without an end."""
    job, read = fresh_name(), []
    shard = durable.shards[1].shard
    open_part = shard.open_part

    def slowly(*asked):
        read.append(asked)
        threading.Event().wait(1.0)
        return open_part(*asked)

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        snapshot = save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        monkeypatch.setattr(shard, "open_part", slowly)
        durable.go_back(job, snapshot)
        with pytest.raises(ps.RolledBack):
            step(table, 0)
    assert len(read) == 1


def test_what_did_not_fit_into_a_shard_that_has_come_back_meanwhile_is_tried_again(
    durable, tmp_path, monkeypatch
):
    """It may have more memory now: nobody hears that the job does not fit."""
    job, tried = fresh_name(), []
    shard, recovery = durable.shards[0].shard, durable.coordinator._recovery
    open_part = shard.open_part

    def full_once(*asked):
        tried.append(asked)
        if len(tried) > 1:
            return open_part(*asked)
        lost = threading.Event()
        durable._loop.loop.call_soon_threadsafe(lambda: (recovery.lost(1), lost.set()))
        assert lost.wait(LIMIT_S)
        raise MemoryLimitExceeded("it does not fit")

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        snapshot = save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        monkeypatch.setattr(shard, "open_part", full_once)
        durable.go_back(job, snapshot)
        with pytest.raises(ps.RolledBack):
            step(table, 0)
        step(table, 0)
        assert table.step == 2
    assert len(tried) == 2


def test_a_shard_that_comes_back_empty_while_shard_0_stops_is_let_in_by_the_next_one(
    durable, tmp_path, monkeypatch
):
    """Else the job would be handed over as if that shard still held its part, and nobody would go back."""
    monkeypatch.setattr(coordinator, "DRAIN_LIMIT_S", 2.0)
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        durable.kill(1)
        durable.begin_eviction(job, 0)  # its orders wait for the shard
        stopping = threading.Thread(target=durable.stop, args=(0,))
        stopping.start()
        until(lambda: durable.coordinator._fleet._keeps_places, "shard 0 is about to hand over")
        durable.shards[1], durable._runs[1] = durable._start(1)  # it serves once it is let in
        stopping.join(LIMIT_S)
        durable.start_again(0)
        durable._wait(1)
        with pytest.raises(ps.RolledBack):
            step(table, 0)
        step(table, 0)
        assert table.step == 2
        assert jobs(durable) == [[job], [job]]


def test_while_shard_0_is_about_to_hand_over_no_job_begins_to_go_back(durable, tmp_path, monkeypatch):
    """A person who asks for it is told to come again, and the job is handed over as it is."""
    job = fresh_name()
    drops = durable.coordinator._drops
    settle, there, go = drops.settle, threading.Event(), threading.Event()

    async def slowly():
        there.set()
        await asyncio.to_thread(go.wait, LIMIT_S)
        await settle()

    monkeypatch.setattr(drops, "settle", slowly)
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        snapshot = save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        stopping = threading.Thread(target=durable.stop, args=(0,))
        stopping.start()
        assert there.wait(LIMIT_S)
        with pytest.raises(ServerNotReady, match="come again to the one after it"):
            durable.go_back(job, snapshot)
        go.set()
        stopping.join(LIMIT_S)
        durable.start_again(0)
        step(table, 0)
        assert table.step == 2
