"""Streams of shards that break around a rollback, and processes that come and go: no job is lost."""

from __future__ import annotations

import threading

import pytest

import ps_worker as ps
from ps_server.coordinator.fleet.fleet import Fleet
from ps_wire.access.access import OPEN
from ps_wire.access.channel import dial
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_worker.model.model_table import pack
from tests.component.saving import save
from tests.component.service import Cluster, fresh_name, together
from tests.component.snapshots.one_table import step, table_of
from tests.inside import link_of
from tests.until import LIMIT_S, until


def break_stream(cluster: Cluster, *, misses_a_rollback: bool = False) -> None:
    """The stream of shard 1 ends; it has followed again on return."""
    shards = cluster.coordinator._fleet
    before = shards._registered[1]

    def end() -> None:
        if misses_a_rollback:  # of another job: the shard has not heard of it yet
            shards.raise_generation()
        before.outbox.put_nowait(None)

    cluster._loop.loop.call_soon_threadsafe(end)
    until(lambda: shards._registered.get(1) not in (None, before), "it follows again")


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
    """A restoration of one job raises the generation of all that a shard holds."""
    folder, names = tmp_path / "snapshots", [fresh_name(), fresh_name()]
    with (
        ps.connect(servers=durable.servers, job=names[0], num_workers=1) as one,
        ps.connect(servers=durable.servers, job=names[1], num_workers=1) as other,
    ):
        tables = [table_of(one), table_of(other)]
        for table in tables:
            step(table, 0)
        snapshot = save(durable, str(folder), names[0], {0: pack({})})
        with dial(durable.servers.split(",")[0], OPEN) as channel:
            request = pb.RestoreRequest(job=names[0], snapshot=snapshot)
            CoordinatorStub(channel).Restore(request, timeout=LIMIT_S)
        break_stream(durable)
        step(tables[1], 0)
        assert tables[1].step == 2
        with pytest.raises(ps.RolledBack):
            step(tables[0], 0)
        assert [sorted(held) for held in jobs(durable)] == [sorted(names)] * 2


def test_a_shard_that_missed_a_rollback_of_one_job_has_the_others_go_back(durable, tmp_path, caplog):
    """What it holds of them is void, too: it is said, and none of them is lost unnoticed."""
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        step(table, 0)
        with caplog.at_level("INFO", logger="ps_server"):
            break_stream(durable, misses_a_rollback=True)
            counts = durable.coordinator.runners[job].events.counts
            until(lambda: counts["rollback"], "the job goes back")
            with pytest.raises(ps.RolledBack) as error:
                step(table, 0)
        assert error.value.step == table.step == 1
        step(table, 0)
        assert jobs(durable) == [[job], [job]]
        assert counts["lose"] == 1
    assert f"job {job}: event=lose shard=1" in caplog.text


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
