"""Snapshots of jobs that run: they hold what the job had at one cut, and training goes on meanwhile."""

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import safetensors.torch
import torch

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_lab.snapshots import snapshots
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.snapshots.policy import SnapshotPolicy
from ps_wire.access.access import OPEN
from ps_wire.errors import ConfigurationRefused, JobUnknown, PsError
from ps_wire.snapshot import writing as snapshot_writing
from ps_wire.snapshot.manifest import Manifest
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.snapshot.tensors import TensorFile
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.membership.snapshot_promise import Put
from tests.component.service import Cluster, fresh_name, run_workers, together
from tests.inside import link_of
from tests.taking import Taking
from tests.until import LIMIT_S, until

STEPS = 6
WAIT_S = LIMIT_S
TOO_EARLY_S = 0.5  # in which a manifest would be written that waits for nobody
SIZES = ps.BucketOptions(bucket_bytes=1 << 16, first_bucket_bytes=1 << 12, partition_bytes=1 << 12)


@pytest.fixture(params=[1, 2], ids=["1 shard", "2 shards"])
def cluster(request, loop_thread, tmp_path):
    made = Cluster(loop_thread, request.param, options={"snapshot_dir": str(tmp_path / "snapshots")})
    yield made
    made.close()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Linear(40, 60)
        self.b = torch.nn.Linear(60, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        return self.b(torch.relu(self.a(x)))


@dataclass
class History:
    """What a worker had at the beginning of each step."""

    weights: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)


def take(cluster: Cluster, job: str) -> pb.SnapshotProgress:
    return list(snapshot_calls.take(cluster.servers.split(",")[0], job, OPEN))[-1]


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_snapshot_holds_one_cut_of_a_job_that_goes_on(cluster, tmp_path, consistency):
    job = fresh_name()
    store = cluster.shards[0].shard.snapshots.store
    histories: list[History] = [History(), History()]
    taken = threading.Event()
    results = []

    def body(worker: ps.Worker) -> int:
        net = Net()
        optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9), net, buckets=SIZES)
        taking = None
        step = 0
        while step < STEPS or not taken.is_set():
            histories[worker.rank].weights[step] = {
                name: value.detach().clone() for name, value in net.named_parameters()
            }
            generator = torch.Generator().manual_seed(1000 * worker.rank + step)
            loss = net(torch.randn(4, 40, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if worker.rank == 0 and step == 2:
                taking = threading.Thread(target=lambda: (results.append(take(cluster, job)), taken.set()))
                taking.start()
        if taking is not None:
            taking.join()
        return step

    steps = run_workers(cluster, body, num_workers=2, consistency=consistency, job=job)
    (name,) = store.names(job)
    manifest = store.verify(job, name)
    assert results[0].phase == "done"
    assert results[0].snapshot == store.where(job, name)
    clocks = manifest.clocks[0]
    assert set(clocks) == {0, 1}
    assert clocks[0] >= 2
    assert all(clocks[worker] <= steps[worker] for worker in (0, 1))
    assert manifest.counters[0]["unequal"] == 0
    assert manifest.counters[0]["applied"] == manifest.counters[0]["partitions"] * sum(clocks.values())
    for worker in (0, 1):
        with store.local(job, name, f"worker-{worker}.safetensors") as path:
            assert TensorFile(path, "").get("0/seen").item() == clocks[worker]
    if consistency == "bsp":
        assert len(set(clocks.values())) == 1
        snapshots.export(store, job, name, tmp_path / "model.safetensors")
        exported = safetensors.torch.load_file(tmp_path / "model.safetensors")
        assert exported.keys() == Net().state_dict().keys()
        for key, value in histories[0].weights[clocks[0]].items():
            assert torch.equal(exported[key], value)


@pytest.fixture
def alone(loop_thread, tmp_path):
    """One shard, with a snapshot every three steps, of which two are kept."""
    options = {
        "snapshot_dir": str(tmp_path / "snapshots"),
        "snapshots": SnapshotPolicy(every_steps=3, keep=2),
    }
    made = Cluster(loop_thread, 1, options=options)
    yield made
    made.close()


def trained(worker: ps.Worker, over: Callable[[int], bool], before: Callable[[], None] = lambda: None) -> int:
    """Steps until then, with a loader and dropout."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5))
    optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=0.01), net)
    loader = worker.loader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
    step = 0
    while True:
        for (batch,) in loader:
            before()
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
            step += 1
            if over(step):
                return step


def test_snapshots_are_taken_every_so_many_steps_and_the_last_ones_kept(alone):
    job = fresh_name()
    store = alone.shards[0].shard.snapshots.store
    seen: set[str] = set()
    deadline_s = time.monotonic() + LIMIT_S

    def over(_step: int) -> bool:
        seen.update(store.names(job))
        assert time.monotonic() < deadline_s
        return len(seen) >= 4 and len(store.names(job)) == 2

    run_workers(alone, lambda worker: trained(worker, over), job=job)
    until(lambda: job not in alone.coordinator._scheduler._attempts, "the one under way is over")
    kept = store.names(job)
    seen.update(kept)
    assert kept == sorted(seen)[-len(kept) :]
    steps = [store.verify(job, name).step for name in kept]
    assert steps == sorted(steps)


def test_none_is_taken_before_so_many_steps_have_been(loop_thread, tmp_path, monkeypatch):
    options = {"snapshot_dir": str(tmp_path), "snapshots": SnapshotPolicy(every_steps=1000)}
    cluster, begun, new_name = (
        Cluster(loop_thread, 1, options=options),
        threading.Event(),
        SnapshotStore.new_name,
    )

    def named(*whose: object) -> str:
        begun.set()
        return new_name(*whose)

    monkeypatch.setattr(SnapshotStore, "new_name", named)
    too_early: list[bool] = []

    def over(step: int) -> bool:
        if step == 2:
            too_early.append(begun.wait(TOO_EARLY_S))
        return step == 4

    run_workers(cluster, lambda worker: trained(worker, over))
    cluster.close()
    assert too_early == [False]


@pytest.mark.parametrize("when", [{"every_steps": 4}, {"every_s": 0.2}], ids=["steps", "time"])
def test_snapshots_go_on_when_the_fastest_worker_has_left(loop_thread, tmp_path, when):
    """What those who are left do counts, though they are far behind."""
    options = {"snapshot_dir": str(tmp_path), "snapshots": SnapshotPolicy(keep=100, **when)}
    cluster, job, gone = Cluster(loop_thread, 1, options=options), fresh_name(), threading.Event()
    store = cluster.shards[0].shard.snapshots.store

    def train(rank: int) -> int:
        with ps.connect(
            servers=cluster.servers, job=job, num_workers=2, worker=rank, consistency="asp"
        ) as worker:
            table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=0.1))

            def step() -> None:
                table.push({"w": torch.ones(3)})
                table.pull().result(WAIT_S)

            def taken() -> bool:
                at = phase(cluster, job)
                if not at or "to reach the cut" in at:  # else no step is waited for, however long it takes
                    step()
                return len(set(store.names(job)) - before) >= 2  # one may have been under way

            for _ in range(1 + 300 * rank):
                step()
            if not rank:
                assert gone.wait(WAIT_S)
                before = set(store.names(job))
                until(taken, "snapshots are taken", pause_s=0.05)
                assert table.step < 300
        if rank:
            gone.set()
        return 0

    try:
        together([lambda: train(0), lambda: train(1)])
    finally:
        cluster.close()


def test_a_full_disk_costs_the_snapshot_and_nothing_else(alone, monkeypatch, caplog):
    job = fresh_name()
    store = alone.shards[0].shard.snapshots.store
    refused = threading.Event()
    new_name, begun = SnapshotStore.new_name, [""]
    given_up: list[str] = []

    def named(of: SnapshotStore, whose: str) -> str:
        begun.append(new_name(of, whose))
        return begun[-1]

    def full(_file: object, _part: object) -> None:
        given_up.append(begun[-1])
        refused.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SnapshotStore, "new_name", named)
    write_all = snapshot_writing._write_all
    failed_at: list[int] = []

    def over(step: int) -> bool:
        if not failed_at and store.names(job):
            monkeypatch.setattr(snapshot_writing, "_write_all", full)
            failed_at.append(step)
        if refused.is_set() and "NO SNAPSHOT" in caplog.text:
            assert not Path(store.where(job, given_up[0])).exists()
            monkeypatch.setattr(snapshot_writing, "_write_all", write_all)
            return True
        return False

    run_workers(alone, lambda worker: trained(worker, over), job=job)
    assert "No space left on device" in caplog.text
    kept = store.names(job)
    assert kept
    assert store.verify(job, kept[0]).step > 0


def test_servers_without_a_place_for_snapshots_say_so(one_shard):
    job = fresh_name()
    taken: list[PsError] = []

    def body(worker: ps.Worker) -> None:
        trained(worker, lambda step: step == 2)
        with pytest.raises(ConfigurationRefused, match="--snapshot-dir") as caught:
            take(one_shard, job)
        taken.append(caught.value)

    run_workers(one_shard, body, job=job)
    assert taken
    with pytest.raises(JobUnknown):
        take(one_shard, "nothing")


@pytest.fixture
def completed(monkeypatch) -> threading.Event:
    """Set where a manifest is about to be written."""
    event, complete = threading.Event(), SnapshotStore.complete

    def completing(store: SnapshotStore, *what: object) -> None:
        event.set()
        complete(store, *what)

    monkeypatch.setattr(SnapshotStore, "complete", completing)
    return event


def written_late(monkeypatch, completed: threading.Event) -> None:
    write = SnapshotStore.write

    def writing(store: SnapshotStore, job: str, name: str, file: str, parts: object) -> object:
        if file.startswith("worker-1"):
            completed.wait(TOO_EARLY_S)
        return write(store, job, name, file, parts)

    monkeypatch.setattr(SnapshotStore, "write", writing)


def captured_late(worker: ps.Worker, completed: threading.Event) -> None:
    capture = link_of(worker).promise
    prepare = capture.prepare

    def preparing(number: int, put: Put) -> dict[int, int]:
        def putting(number: int, blob: bytes) -> None:
            completed.wait(TOO_EARLY_S)
            put(number, blob)

        return prepare(number, putting)

    capture.prepare = preparing


@pytest.mark.parametrize("late", ["capture", "write"])
def test_the_manifest_comes_when_all_workers_states_are_there(cluster, monkeypatch, completed, late):
    """One that is long on its way, or long in being written, is waited for: it is part of the snapshot."""
    job, begun, taken = fresh_name(), threading.Event(), threading.Event()
    if late == "write":
        written_late(monkeypatch, completed)

    def body(worker: ps.Worker) -> None:
        if late == "capture" and worker.rank == 1:
            captured_late(worker, completed)
        begun.set()
        trained(worker, lambda step: step >= 3 and taken.is_set())

    def snapshot() -> None:
        assert begun.wait(WAIT_S)
        until(lambda: job in cluster.coordinator.runners and cluster.coordinator.runners[job].job.num_started)
        take(cluster, job)
        taken.set()

    def one(rank: int) -> None:
        with ps.connect(servers=cluster.servers, job=job, worker=rank, num_workers=2) as worker:
            body(worker)

    together([lambda: one(0), lambda: one(1), snapshot])
    store = cluster.shards[0].shard.snapshots.store
    manifest = store.verify(job, store.names(job)[-1])
    assert set(manifest.workers) == {0, 1}
    assert {"worker-0.safetensors", "worker-1.safetensors"} <= {record.name for record in manifest.files}


def test_workers_go_on_when_all_shards_know_the_cut(cluster, monkeypatch):
    """Else a push from beyond the cut may reach a shard before the cut does."""
    job, told, begun = fresh_name(), threading.Event(), threading.Barrier(3)
    last = cluster.shards[-1].shard.snapshots
    save, store = last.save, cluster.shards[0].shard.snapshots.store
    too_early: list[bool] = []

    def learning(*cut: object) -> None:
        too_early.append(told.wait(TOO_EARLY_S))
        save(*cut)

    monkeypatch.setattr(last, "save", learning)

    def one(rank: int) -> None:
        with ps.connect(servers=cluster.servers, job=job, worker=rank, num_workers=2) as worker:
            arm = link_of(worker).promise.arm

            def armed(number: int, steps: dict[int, int]) -> None:
                told.set()
                arm(number, steps)

            link_of(worker).promise.arm = armed

            def over(step: int) -> bool:
                if step == 2:
                    begun.wait(WAIT_S)
                return bool(store.names(job))

            trained(worker, over)

    def watch() -> None:
        begun.wait(WAIT_S)
        take(cluster, job)

    together([lambda: one(0), lambda: one(1), watch])
    assert too_early == [False]


def stuck(cluster: Cluster, job: str, act: Callable[[threading.Event], None], **settings: str) -> Manifest:
    """A cut that waits for worker 1, which goes on when the event is set, at the latest after the cut."""
    begun = threading.Barrier(2)
    go_on = threading.Event()

    def body(worker: ps.Worker) -> None:
        def before() -> None:
            if worker.rank == 1 and worker.step == 2:
                begun.wait(WAIT_S)
                assert go_on.wait(WAIT_S)

        trained(worker, lambda step: step >= 3 and done.is_set(), before)

    def watch() -> None:
        begun.wait(WAIT_S)
        taking = threading.Thread(target=take, args=(cluster, job))
        taking.start()
        until(lambda: "to reach the cut" in phase(cluster, job))
        act(go_on)
        taking.join(WAIT_S)
        go_on.set()
        done.set()

    def one(rank: int) -> None:
        with ps.connect(servers=cluster.servers, job=job, worker=rank, **settings) as worker:
            body(worker)

    done = threading.Event()
    together([lambda: one(0), lambda: one(1), watch])
    store = cluster.shards[0].shard.snapshots.store
    return store.verify(job, store.names(job)[-1])


def phase(cluster: Cluster, job: str) -> str:
    taking = cluster.coordinator._scheduler._attempts.get(job)
    return "" if taking is None else taking.progress.phase


def test_a_worker_that_is_evicted_during_the_cut_is_left_out(cluster):
    job = fresh_name()

    def evict(_go_on: threading.Event) -> None:
        member = cluster.coordinator.runners[job].job.roster.members[1]
        cluster.evict(job, 1)
        no_more = cluster.coordinator._leases.gone  # as when its lease is over
        cluster._loop.loop.call_soon_threadsafe(no_more, job, member)

    manifest = stuck(cluster, job, evict, num_workers="2")
    assert set(manifest.workers) == set(manifest.clocks[0]) == {0}


@pytest.mark.parametrize("late", [0, 1], ids=["of the other one", "of its own"])
def test_no_sample_is_used_in_a_snapshot_by_a_step_that_it_does_not_have(cluster, monkeypatch, late):
    """A worker takes steps beyond the cut, and leaves before all states have come of what was at the cut."""
    job, scheduler, batch, leaves_at = fresh_name(), cluster.coordinator._scheduler, 4, 6
    store, captured, left = cluster.shards[0].shard.snapshots.store, scheduler.captured, threading.Event()

    def comes_late(name, member, message):
        if member.worker == late and not left.is_set():
            held.append((name, member, message))
        else:
            captured(name, member, message)

    held: list[tuple[str, Member, pb.CutCaptured]] = []
    monkeypatch.setattr(scheduler, "captured", comes_late)

    def body(rank: int) -> None:
        with ps.connect(servers=cluster.servers, job=job, num_workers=2, worker=rank) as worker:
            net = torch.nn.Linear(4, 1)
            optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=0.01), net)
            loader = worker.loader(torch.utils.data.TensorDataset(torch.zeros(100_000, 4)), batch_size=batch)
            taking = None
            for step, (x,) in enumerate(loader):
                if (rank, step) == (0, 2):
                    taking = Taking(cluster.servers.split(",")[0], job)
                    taking.wait_fixed()
                if (rank, step) == (1, leaves_at):
                    until(lambda: bool(held))
                    worker.leave("it is gone")
                    left.set()
                    for message in held:
                        cluster._loop.loop.call_soon_threadsafe(captured, *message)
                    return
                net(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if store.names(job):
                    break
            taking.wait()

    together([lambda: body(0), lambda: body(1)])
    manifest = store.verify(job, store.names(job)[-1])
    assert set(manifest.workers) == {0}
    taken = manifest.step + min(manifest.step, leaves_at)  # under bsp, by both
    assert sum(share.used for share in manifest.shares) == batch * taken


def test_a_worker_that_joins_during_the_cut_is_in_the_snapshot(cluster):
    job = fresh_name()
    store = cluster.shards[0].shard.snapshots.store
    settings = {"num_workers": "2:3", "consistency": "asp"}

    def join(go_on: threading.Event) -> None:
        def third() -> None:
            with ps.connect(servers=cluster.servers, job=job, worker=2, **settings) as worker:
                trained(worker, lambda _: bool(store.names(job)))

        before = cluster.coordinator._scheduler._attempts[job]
        joining = threading.Thread(target=third, daemon=True)
        joining.start()
        until(lambda: cluster.coordinator._scheduler._attempts.get(job) is not before)
        go_on.set()
        joining.join(WAIT_S)

    manifest = stuck(cluster, job, join, **settings)
    assert set(manifest.workers) == {0, 1, 2}


def test_the_last_snapshot_of_a_job_is_of_its_end(alone, tmp_path):
    job = fresh_name()
    store = alone.shards[0].shard.snapshots.store
    final: dict[str, torch.Tensor] = {}

    def body(worker: ps.Worker) -> None:
        net = Net()
        optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=1e-3), net)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(2, 40)).square().mean().backward()
            optimizer.step()
        worker.finish()
        final.update({name: value.clone() for name, value in net.state_dict().items()})
        until(lambda: any(found.manifest and found.manifest.ended for found in snapshots.find(store, job)))

    run_workers(alone, body, job=job)
    name = store.names(job)[-1]
    manifest = store.verify(job, name)
    assert (manifest.ended, manifest.step, dict(manifest.workers)) == (True, 4, {})
    snapshots.export(store, job, name, tmp_path / "model.safetensors")
    exported = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert exported.keys() == final.keys()
    assert all(torch.equal(exported[key], final[key]) for key in final)


def test_workers_that_leave_in_order_while_a_snapshot_is_written_are_in_it(cluster, monkeypatch):
    """Else it would be one of step 0, and the newest: the job would begin anew from it."""
    job, leave, left = fresh_name(), threading.Event(), threading.Event()
    write = SnapshotStore.write

    def held(store, of, name, file, parts):
        if file.startswith("shard-"):
            assert left.wait(WAIT_S)
        return write(store, of, name, file, parts)

    monkeypatch.setattr(SnapshotStore, "write", held)
    begun = threading.Barrier(3)

    def one(rank: int) -> int:
        def over(step: int) -> bool:
            if step == 2:
                begun.wait(WAIT_S)
            return leave.is_set()

        with ps.connect(servers=cluster.servers, job=job, worker=rank, num_workers=2) as worker:
            return trained(worker, over)

    def watch() -> int:
        begun.wait(WAIT_S)
        taken: list[int] = []
        taking = threading.Thread(target=lambda: taken.append(take(cluster, job).step))
        taking.start()
        until(lambda: phase(cluster, job) == "writing")
        leave.set()
        roster = cluster.coordinator.runners[job].job.roster
        until(lambda: not roster.present(), "both have left")
        left.set()
        taking.join(WAIT_S)
        return taken[0]

    *steps, taken = together([lambda: one(0), lambda: one(1), watch])
    store = cluster.shards[0].shard.snapshots.store
    (name,) = store.names(job)
    manifest = store.verify(job, name)
    assert set(manifest.workers) == set(manifest.clocks[0]) == {0, 1}
    assert 2 <= manifest.step == taken <= min(steps)
