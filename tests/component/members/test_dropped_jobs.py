"""Jobs that a person drops: everybody hears it by name, and the name begins anew."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_lab.jobs import calls as job_calls
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator import readers
from ps_wire.access.access import OPEN
from ps_wire.errors import (
    JobDropped,
    JobInUse,
    JobMismatch,
    JobUnknown,
    MemoryLimitExceeded,
    SnapshotFailed,
    TableMismatch,
)
from ps_wire.snapshot.store import DROPPED, MARK, SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from tests.component.service import Cluster, fresh_name, status_of
from tests.inside import link_of
from tests.until import LIMIT_S, until

SIZE = 3000


def connect(cluster: Cluster, job: str, **settings):
    return ps.connect(servers=cluster.servers, job=job, retry_limit=LIMIT_S, **settings)


def table_of(worker: ps.Worker, start: float = 0.0, size: int = SIZE) -> ps.Table:
    return worker.table({"w": torch.full((size,), start)}, optimizer=ps.SGD(lr=1.0))


def step(table: ps.Table) -> float:
    table.push({"w": torch.ones(SIZE)}).result(LIMIT_S)
    return float(table.pull().result(LIMIT_S).values["w"][0])


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Without an end."""
    while True:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def run_to_the_end(cluster: Cluster, job: str, start: float = 0.0) -> float:
    """One step from these weights; what they are then."""
    with connect(cluster, job) as worker:
        assert not worker.ended
        value = step(table_of(worker, start))
        worker.finish()
    return value


def drop(cluster: Cluster, job: str, *, force: bool = False) -> pb.DropReply:
    return job_calls.drop(cluster.servers.split(",")[0], job, OPEN, force=force)


def take(cluster: Cluster, job: str) -> None:
    list(snapshot_calls.take(cluster.servers.split(",")[0], job, OPEN))


def held_bytes(cluster: Cluster, job: str) -> int:
    entries = [entry for server in cluster.shards for entry in server.shard.jobs() if entry.name == job]
    return sum(entry.memory_bytes for entry in entries)


# -- what becomes of the name ------------------------------------------------------------------------------


def test_the_name_of_a_job_that_was_dropped_begins_anew(cluster):
    """With other weights, another model and another number of workers; shards hold nothing of the old one."""
    job = fresh_name()
    assert run_to_the_end(cluster, job) == -1
    assert held_bytes(cluster, job) > 0
    dropped = drop(cluster, job)
    assert (dropped.state, dropped.tables, list(dropped.workers), dropped.snapshots) == ("ended", 1, [], 0)
    assert held_bytes(cluster, job) == 0
    assert status_of(cluster).job(job) is None
    with connect(cluster, job, consistency="asp", num_workers="1:2") as worker:
        assert not worker.ended
        assert step(table_of(worker, 5.0)) == 4
        worker.finish()


def test_a_suspended_job_is_dropped_too(cluster):
    """Else the next run of the name would go on with it."""
    job = fresh_name()
    with connect(cluster, job) as worker:
        step(table_of(worker))
    until(lambda: status_of(cluster).job(job).state == "suspended")
    assert drop(cluster, job).state == "suspended"
    assert run_to_the_end(cluster, job, 7.0) == 6


def test_a_job_that_is_not_there_cannot_be_dropped(cluster):
    with pytest.raises(JobUnknown, match="there is no job 'no-such-job' to drop"):
        drop(cluster, "no-such-job")


def test_a_job_that_goes_by_itself_while_it_is_dropped_is_gone(cluster, monkeypatch):
    """One that has trained nothing goes with its last worker; its name begins anew all the same."""
    job = fresh_name()
    worker = connect(cluster, job)

    def leave(_: str) -> int:
        worker.leave()
        until(lambda: job not in cluster.coordinator.runners, "it has gone")
        return 0

    monkeypatch.setattr(cluster.coordinator._drops, "_mark", leave)
    dropped = drop(cluster, job, force=True)
    assert (dropped.tables, list(dropped.workers)) == (0, [])
    assert run_to_the_end(cluster, job, 5.0) == 4


def test_who_comes_to_an_ended_job_otherwise_is_told_the_ways_out(cluster):
    """The default name is spent by one run: another model, or consistency, is refused with the remedy."""
    job = fresh_name()
    run_to_the_end(cluster, job)
    remedy = f"has ended: to train again, take another --job, or drop this one: ps-lab job drop {job}"
    with pytest.raises(JobMismatch, match=remedy):
        connect(cluster, job, consistency="asp")
    with connect(cluster, job) as late, pytest.raises(TableMismatch, match=remedy):
        table_of(late, size=7)


# -- who is in it ------------------------------------------------------------------------------------------


def test_a_job_with_live_workers_is_refused_and_goes_on(cluster):
    job = fresh_name()
    with connect(cluster, job) as worker:
        table = table_of(worker)
        with pytest.raises(JobInUse, match=r"worker 0 \(host .*, pid \d+\).*--force") as refused:
            drop(cluster, job)
        assert refused.value.exit_code == 78
        assert step(table) == -1
        worker.finish()


def test_workers_and_readers_of_a_job_that_is_dropped_by_force_hear_why(cluster):
    """Whatever they do next; and the name begins anew before they have gone."""
    job = fresh_name()
    with (
        connect(cluster, job) as worker,
        ps.connect(role="reader", servers=cluster.servers, job=job) as reader,
    ):
        model = torch.nn.Linear(2, 2)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        reader.read(torch.nn.Linear(2, 2))
        dropped = drop(cluster, job, force=True)
        assert (len(dropped.workers), dropped.readers) == (1, 1)
        with pytest.raises(JobDropped, match=f"job {job} was dropped"):
            reader.read(torch.nn.Linear(2, 2))
        assert run_to_the_end(cluster, job, 3.0) == 2
        with pytest.raises(JobDropped, match=f"job {job} was dropped"):
            steps(model, optimizer)


def test_a_reader_that_waits_for_a_cut_of_a_job_that_is_dropped_hears_why(cluster, monkeypatch):
    """It waits for buffers, which come at the end of a step, and there is none."""
    job, why = fresh_name(), []
    state = readers._Reader._state

    async def asked(self, table):
        asking.set()
        await state(self, table)

    monkeypatch.setattr(readers._Reader, "_state", asked)
    monkeypatch.setattr(readers, "LIVE_LIMIT_S", 0.2)  # so long it waits at once; then it asks again

    def read() -> None:
        with ps.connect(role="reader", servers=cluster.servers, job=job) as reader:
            try:
                reader.read(torch.nn.BatchNorm1d(2), limit_s=LIMIT_S)
            except ps.PsError as error:
                why.append(error)

    asking = threading.Event()
    with connect(cluster, job) as worker:
        model = torch.nn.BatchNorm1d(2)
        worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        assert asking.wait(LIMIT_S)
        drop(cluster, job, force=True)
        reading.join(LIMIT_S)
        assert [type(error) for error in why] == [JobDropped]


def test_the_next_job_of_the_name_knows_nobody_of_the_one_before(cluster):
    """Incarnations go on, so that a worker that hung meanwhile is no worker of the next job."""
    job = fresh_name()
    with connect(cluster, job) as old:
        before = link_of(old).presence.joined.incarnation
        drop(cluster, job, force=True)
        with connect(cluster, job) as new:
            assert link_of(new).presence.joined.incarnation > before
            assert cluster.coordinator._drops.over(job, before) is not None
            assert cluster.coordinator._drops.over(job, before + 1) is None
        with pytest.raises(JobDropped):
            old.barrier()


def test_who_comes_while_a_job_is_dropped_begins_the_next_one(durable, monkeypatch):
    """It is told to come again, and does, until the job is gone from all shards."""
    job, marking, marked = fresh_name(), threading.Event(), threading.Event()
    run_to_the_end(durable, job)
    take(durable, job)
    mark, come = SnapshotStore.drop, type(durable.coordinator._drops).check

    def slowly(self, name):
        marking.set()
        assert marked.wait(LIMIT_S)
        mark(self, name)

    def checked(self, name):
        try:
            come(self, name)
        except ps.PsError:
            marked.set()
            raise

    monkeypatch.setattr(SnapshotStore, "drop", slowly)
    monkeypatch.setattr(type(durable.coordinator._drops), "check", checked)
    dropping = threading.Thread(target=drop, args=(durable, job), daemon=True)
    dropping.start()
    assert marking.wait(LIMIT_S)
    assert run_to_the_end(durable, job, 9.0) == 8
    dropping.join(LIMIT_S)


# -- its snapshots -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_the_snapshots_of_a_dropped_job_stay_and_it_does_not_go_on_from_them(durable, tmp_path, restarts):
    """Nor after a new start of the servers; a person may bring one back."""
    job, folder = fresh_name(), str(tmp_path / "snapshots")
    run_to_the_end(durable, job)
    take(durable, job)
    store = SnapshotStore(folder)
    (name,) = store.names(job)
    dropped = drop(durable, job)
    assert (dropped.snapshots, dropped.where) == (1, f"{folder}/{job}")
    assert store.names(job) == [name]
    if restarts:
        durable.kill(0)
        durable.start_again(0)
        until(lambda: durable.coordinator._recovery._listed, "jobs with snapshots are known")
        assert job not in durable.coordinator._recovery.absent
    assert run_to_the_end(durable, job, 5.0) == 4
    drop(durable, job)
    list(snapshot_calls.restore(durable.servers.split(","), store, job, name, OPEN))
    assert status_of(durable).job(job).state == "ended"


def test_a_job_that_could_not_go_back_is_dropped_as_one_that_sleeps(durable):
    """Its snapshot does not fit; the next job of the name begins anew."""
    job = fresh_name()
    run_to_the_end(durable, job)
    take(durable, job)
    durable.kill(0)
    durable._options["memory_limit_bytes"] = 1000
    durable.start_again(0)
    with pytest.raises(MemoryLimitExceeded):
        connect(durable, job)
    assert durable.coordinator._recovery.absent == {job: "asleep"}
    assert drop(durable, job).state == "asleep"
    assert durable.coordinator._recovery.absent == {}
    with connect(durable, job):
        assert list(durable.coordinator.runners) == [job]


def test_a_job_that_lost_a_shard_does_not_go_back_to_what_was_dropped(durable):
    """The next job of the name has no snapshot yet: its workers hear that it is lost, as without any."""
    job = fresh_name()
    run_to_the_end(durable, job)
    take(durable, job)
    drop(durable, job)
    with connect(durable, job) as worker:
        table = table_of(worker, 5.0)
        assert step(table) == 4
        durable.kill(1)
        durable.start_again(1)
        with pytest.raises(JobUnknown, match="no snapshot"):
            [step(table) for _ in itertools.count()]


def test_a_sleeping_job_is_dropped(durable):
    """Servers were started again, and nobody has come to it."""
    job = fresh_name()
    run_to_the_end(durable, job)
    take(durable, job)
    durable.kill(0)
    durable.start_again(0)
    until(lambda: all(durable.coordinator._fleet.addresses), "all shards are registered")
    until(lambda: status_of(durable).job(job) is not None)
    assert drop(durable, job).state == "asleep"
    assert status_of(durable).job(job) is None
    assert run_to_the_end(durable, job, 5.0) == 4


def test_a_job_whose_snapshots_cannot_be_marked_is_not_dropped(durable, tmp_path):
    """It would go on from them after the next new start, and nobody would know."""
    job = fresh_name()
    run_to_the_end(durable, job)
    take(durable, job)
    (Path(tmp_path) / "snapshots" / DROPPED).write_text("in the way")
    with pytest.raises(SnapshotFailed, match=MARK):
        drop(durable, job)
    with connect(durable, job) as late:
        assert late.ended
