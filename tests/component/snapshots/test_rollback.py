"""Servers that lose what they held: all go back to the last snapshot, together, and training goes on."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import torch

import ps_worker as ps
from ps_server.coordinator import recovery
from ps_server.shard import hand_off, hand_off_file
from ps_server.shard.hand_off_file import HandOffFile
from ps_server.shard.job import ShardJob
from ps_server.shard.transport.session import Session
from ps_wire.access.access import OPEN
from ps_wire.access.channel import dial
from ps_wire.errors import JobUnknown, SnapshotFailed
from ps_wire.snapshot import store as snapshot_store
from ps_wire.snapshot.manifest import MANIFEST
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub
from ps_worker.model.model_table import pack
from tests.component.saving import save
from tests.component.service import Cluster, fresh_name, together
from tests.component.snapshots.one_table import step, table_of
from tests.inside import link_of
from tests.taking import Taking
from tests.until import LIMIT_S, until


@pytest.mark.parametrize(("lost", "clip_grad_norm"), [(0, None), (1, None), (0, 100.0), (1, 100.0)])
def test_all_go_back_to_the_snapshot_together_and_go_on_bit_exactly(durable, tmp_path, lost, clip_grad_norm):
    """Whichever server dies: workers are told the step, and end with the weights of a run without deaths."""
    job, saved_at, dies_at, steps = fresh_name(), 3, 5, 8
    meet = threading.Barrier(2, timeout=LIMIT_S)

    def train(rank, name, *, faults):
        seen, saved = [], not faults
        with ps.connect(servers=durable.servers, job=name, num_workers=2, worker=rank) as worker:
            table = table_of(worker, clip_grad_norm)
            while table.step < steps:
                if not saved and table.step == saved_at:
                    if meet.wait() == 0:
                        save(durable, str(tmp_path / "snapshots"), job, dict.fromkeys(range(2), pack({})))
                    saved = meet.wait() >= 0
                if faults and table.step == dies_at and not seen and meet.wait() == 0:
                    durable.kill(lost)
                    durable.start_again(lost)
                try:
                    values = step(table, rank)
                except ps.RolledBack as error:
                    seen.append((error.step, table.step))
            worker.finish()
            return values, seen, link_of(worker).presence.joined.incarnation

    whole = together([lambda rank=rank: train(rank, "whole", faults=False) for rank in range(2)])
    found = together([lambda rank=rank: train(rank, job, faults=True) for rank in range(2)])
    for (expected, _, _), (values, seen, incarnation) in zip(whole, found, strict=True):
        assert seen == [(saved_at, saved_at)]
        assert torch.equal(values, expected)
        assert incarnation > 1 << 32


@pytest.fixture
def aged(tmp_path: Path) -> None:
    """The state directory of shard 0 has seen almost as many starts and rollbacks as 16 bits count."""
    (tmp_path / "state-0").mkdir()
    (tmp_path / "state-0" / "generation-65533").write_text("65533")


def test_a_service_goes_on_past_65535_generations(aged, durable, tmp_path):
    """Servers start, a job goes back twice and goes on; incarnations only grow, on workers and in frames."""
    job, incarnations = fresh_name(), []
    with ps.connect(servers=durable.servers, job=job, num_workers=1, worker=0) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        for lost in (1, 0):
            incarnations.append(link_of(worker).incarnation)
            durable.kill(lost)
            durable.start_again(lost)
            with pytest.raises(ps.RolledBack):
                step(table, 0)
            assert table.step == 1
        step(table, 0)
        incarnations.append(link_of(worker).incarnation)
        worker.finish()
    assert incarnations[0] == 1
    assert 65_535 << 32 < incarnations[1] < incarnations[2]


class Faults:
    """Takes a snapshot of a job that runs, and has a server die some steps after it is there."""

    def __init__(self, cluster: Cluster, job: str, *, takes_at: int, lost: int) -> None:
        self._cluster, self._job, self._takes_at, self._lost = cluster, job, takes_at, lost
        self._taking: Taking | None = None
        self._left = 3  # steps until it dies

    def at_step(self, step: int) -> None:
        """By one worker, before each step."""
        if step == self._takes_at and self._taking is None:
            self._taking = Taking(self._cluster.servers.split(",")[0], self._job)
            self._taking.wait_fixed()
        if self._taking is None or step < self._takes_at + 3 or not self._left:
            return
        self._taking.wait()
        self._left -= 1
        if self._left == 0:
            self._cluster.kill(self._lost)
            self._cluster.start_again(self._lost)


EPOCHS, SAMPLES = 3, 240


def train(worker: ps.Worker, faults: Faults | None) -> list[torch.Tensor]:
    """A training script: no line of it is about rollbacks."""
    drawn = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(6, 3)
    torch.nn.init.constant_(model.weight, 0.1)
    torch.nn.init.zeros_(model.bias)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
    worker.register_state("scheduler", scheduler)
    loader = worker.loader(torch.utils.data.TensorDataset(drawn), batch_size=4)
    for _ in worker.epochs(EPOCHS):
        for (x,) in loader:
            model(x).square().mean().backward()
            if faults is not None and worker.rank == 0:
                faults.at_step(worker.step)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    worker.finish()
    assert (link_of(worker).incarnation > 1 << 32) == (faults is not None)
    assert scheduler.last_epoch == worker.step == EPOCHS * SAMPLES // 8
    return [it.detach().clone() for it in model.parameters()]


@pytest.mark.parametrize("told", [False, True])
def test_a_training_loop_rewinds_epochs_loader_and_scheduler(durable, told):
    """By itself, to the weights of a run without deaths; who wants to be told is."""
    job, heard = fresh_name(), [[], []]

    def run(name, faults, rank):
        settings = {"on_rollback": heard[rank].append} if told else {}
        settings |= {"servers": durable.servers, "job": name, "num_workers": 2, "worker": rank}
        with ps.connect(**settings) as worker:
            return train(worker, faults)

    faults = Faults(durable, job, takes_at=35, lost=1)
    found = together([lambda rank=rank: run(job, faults, rank) for rank in range(2)])
    assert heard[0] == heard[1]
    assert len(heard[0]) == told
    undisturbed = fresh_name()
    whole = together([lambda rank=rank: run(undisturbed, None, rank) for rank in range(2)])
    for ours, theirs in zip(found, whole, strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_without_durability_a_lost_shard_ends_the_job_and_says_so(loop_thread):
    cluster = Cluster(loop_thread, 2)
    try:
        with ps.connect(servers=cluster.servers, job=fresh_name(), num_workers=1) as worker:
            table = table_of(worker)
            step(table, 0)
            cluster.kill(1)
            cluster.start_again(1)
            with pytest.raises(JobUnknown, match=r"--durability none.*start the job again.*--snapshot-dir"):
                step(table, 0)
    finally:
        cluster.close()


def test_a_snapshot_that_cannot_be_used_gives_way_to_the_one_before(durable, tmp_path, caplog):
    """It is said; no shard goes on from the one and another from the other."""
    caplog.set_level(logging.INFO, logger="ps_server")
    job, folder = fresh_name(), tmp_path / "snapshots"
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        for _ in range(2):
            step(table, 0)
            newest = save(durable, str(folder), job, {0: pack({})})
        file = folder / job / newest / "shard-1-of-2.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
        durable.kill(0)
        durable.start_again(0)
        with pytest.raises(ps.RolledBack) as error:
            step(table, 0)
        assert error.value.step == table.step == 1
        versions = [
            {cell.machine.version for cell in it.shard.table(job, 0).cells()} for it in durable.shards
        ]
        assert versions == [{1}, {1}]
    assert f"snapshot {newest} cannot be used" in caplog.text
    assert re.search(f"job {job}: event=restore snapshot=(?!{newest})[\\w-]+ step=1\n", caplog.text)


def test_a_hand_off_of_the_coordinator_that_cannot_be_used_has_jobs_go_back(durable, tmp_path, caplog):
    """It is said loudly, and is as if the coordinator had been killed: the file is used up."""
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        step(table, 0)
        durable.stop(0)
        damage(hand_off.file_of(tmp_path / "state-0", 0))
        durable.start_again(0)
        with pytest.raises(ps.RolledBack) as error:
            step(table, 0)
        assert error.value.step == table.step == 1
        step(table, 0)
        assert table.step == 2
    assert "CANNOT BE USED" in caplog.text


def damage(path: Path) -> None:
    """What the shard has handed off stays whole; what the coordinator has does not."""
    file = HandOffFile(path)
    facts = file.facts
    facts["more"]["rooms"][0]["shares"] = {"epochs": [[0]]}
    tensors = {name: file[name].clone() for name in file}
    path.write_bytes(b"".join(hand_off_file.encode(tensors, facts)))


def test_a_snapshot_that_is_damaged_after_it_was_used_gives_way_to_the_one_before(durable, tmp_path, caplog):
    """Files are compared each time: what was whole at the first death need not be at the second."""
    job, folder = fresh_name(), tmp_path / "snapshots"
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        for _ in range(2):
            step(table, 0)
            newest = save(durable, str(folder), job, {0: pack({})})
        for expected in (2, 1):
            step(table, 0)
            durable.kill(1)
            durable.start_again(1)
            with pytest.raises(ps.RolledBack) as error:
                step(table, 0)
            assert error.value.step == table.step == expected
            file = folder / job / newest / "shard-0-of-2.safetensors"  # of a process that lives on
            whole = file.read_bytes()
            file.write_bytes(whole[:-4] + bytes(4 * [1]))
        step(table, 0)
        assert table.step == 2
    assert f"snapshot {newest} cannot be used" in caplog.text
    assert "its checksum differs" in caplog.text


def test_a_job_waits_for_storage_that_does_not_answer_and_then_goes_back(
    durable, tmp_path, monkeypatch, caplog
):
    """It is not lost for that, and does not begin anew."""
    job, failed, manifest = fresh_name(), [], SnapshotStore.manifest

    def broken(self: SnapshotStore, *which: str) -> object:
        if len(failed) < 2:
            failed.append(which)
            raise SnapshotFailed("cannot read it: Stale file handle")
        return manifest(self, *which)

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        step(table, 0)
        monkeypatch.setattr(recovery, "LIST_AGAIN_S", 0.05)
        monkeypatch.setattr(SnapshotStore, "manifest", broken)
        durable.kill(1)
        durable.start_again(1)
        with pytest.raises(ps.RolledBack) as error:
            step(table, 0)
        assert error.value.step == table.step == 1
        step(table, 0)
    assert len(failed) == 2
    assert "cannot go back: cannot read it: Stale file handle; trying again" in caplog.text


def test_no_snapshot_of_one_job_does_anything_to_another(durable, tmp_path):
    """Sent with the name of another job in it, or copied to its folder: neither is taken."""
    victim, evil, folder = fresh_name(), fresh_name(), tmp_path / "snapshots"
    with ps.connect(servers=durable.servers, job=victim, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        name = save(durable, str(folder), victim, {0: pack({})})
        step(table, 0)
        text = SnapshotStore(str(folder)).manifest(victim, name).text().encode()
        for address in durable.servers.split(","):
            with dial(address, OPEN) as channel, pytest.raises(grpc.RpcError, match="is of job"):
                put_snapshot(ShardStub(channel), evil, name, text)
        shutil.copytree(folder / victim, folder / evil, dirs_exist_ok=True)
        with dial(durable.servers.split(",")[0], OPEN) as channel, pytest.raises(grpc.RpcError, match=evil):
            CoordinatorStub(channel).Restore(pb.RestoreRequest(job=evil, snapshot=name), timeout=LIMIT_S)
        step(table, 0)
        assert table.step == 3


def test_nobody_fills_the_disk_with_snapshots_that_are_brought(durable, tmp_path, monkeypatch):
    """The last part of it is for the servers' own; nothing stays of what was refused."""
    monkeypatch.setattr(snapshot_store, "KEPT_FREE", 1.1)
    folder = tmp_path / "snapshots"
    with (
        dial(durable.servers.split(",")[0], OPEN) as channel,
        pytest.raises(grpc.RpcError, match="make room"),
    ):
        put_snapshot(ShardStub(channel), "j", "00000001-aaaaaaaa", b"x")
    assert [path for path in folder.rglob("*") if path.is_file() and ".state" not in str(path)] == []


def put_snapshot(stub: ShardStub, job: str, snapshot: str, manifest: bytes) -> None:
    digest = hashlib.sha256(manifest).hexdigest()
    file = shard_pb2.SnapshotFile(job=job, snapshot=snapshot, name=MANIFEST, sha256=digest)
    chunks = [shard_pb2.SnapshotChunk(file=file), shard_pb2.SnapshotChunk(data=manifest)]
    stub.PutSnapshot(iter(chunks), timeout=LIMIT_S)


def train_until_it_is_known(train: Callable[[], None]) -> None:
    """A step may end before its worker hears that a server was lost."""
    for _ in range(1000):
        train()


def test_a_reader_is_over_after_a_rollback_and_another_one_reads_what_the_job_has_then(durable, tmp_path):
    job = fresh_name()
    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        model = torch.nn.Linear(20, 20)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)

        def train() -> None:
            model(torch.ones(1, 20)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        train()
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        with ps.connect(role="reader", servers=durable.servers, job=job) as reader:
            read = torch.nn.Linear(20, 20)
            train()
            reader.read(read)
            durable.kill(1)
            durable.start_again(1)
            with pytest.raises(ps.RolledBack):
                train_until_it_is_known(train)
            with pytest.raises(ps.RolledBack):
                reader.read(read)
        with ps.connect(role="reader", servers=durable.servers, job=job) as reader:
            reader.read(read)
            assert torch.equal(read.weight, model.weight)


def test_when_a_job_goes_back_no_frame_finds_its_shards_without_it(durable, tmp_path, monkeypatch):
    """Who trains at full speed meanwhile would be refused, and end with an error, in place of going back."""
    job, retire, known = fresh_name(), ShardJob.retire, []

    def retires(entry):
        known.append(durable.shards[0].shard._jobs.by_name.get(entry.name) is entry)
        retire(entry)

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        monkeypatch.setattr(ShardJob, "retire", retires)
        durable.kill(1)
        durable.start_again(1)
        with pytest.raises(ps.RolledBack):
            until(lambda: step(table, 0) is None, "it goes back")
    assert known == [True, False]


def test_who_is_connected_to_a_shard_that_goes_back_is_cut_off(durable, tmp_path, monkeypatch):
    """Also who hangs, and hears nothing else: its frames would find the tables of before, and keep them."""
    job, cut, gone = fresh_name(), Session.sever, []

    def cuts(session):
        gone.append(session)
        cut(session)

    with ps.connect(servers=durable.servers, job=job, num_workers=1) as worker:
        table = table_of(worker)
        step(table, 0)
        save(durable, str(tmp_path / "snapshots"), job, {0: pack({})})
        connected = durable.shards[0].shard._jobs.by_name[job].sessions.every()
        monkeypatch.setattr(Session, "sever", cuts)
        durable.kill(1)
        durable.start_again(1)
        with pytest.raises(ps.RolledBack):
            until(lambda: step(table, 0) is None, "it goes back")
    assert connected
    assert all(any(it is session for it in gone) for session in connected)
