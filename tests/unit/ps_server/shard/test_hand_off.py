"""A shard hands what it holds to the process after it: all of it, once, to the same shard."""

from __future__ import annotations

import dataclasses
import errno
import os
import struct
import sys
from pathlib import Path

import pytest
import torch

from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.recovery import floor_of
from ps_server.shard import hand_off
from ps_server.shard.hand_off import Inherited
from ps_server.shard.hand_off_file import HandOffFile
from ps_server.shard.restoring import restore
from ps_server.shard.shard import Shard
from ps_wire.errors import ConfigurationRefused, SnapshotCorrupt
from ps_wire.frames import frame as wire
from ps_wire.snapshot import tensors as snapshot_tensors
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from tests.unit.ps_server.tables import Kept

NUMEL = 3000
SPEC = TableSpec(
    number=0,
    parameters=(ParameterSpec(name="w", shape=(NUMEL,)),),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.5), ("momentum", 0.9)),))),
    buckets=BucketOptions(partition_bytes=4096),
)
PLAN = Plan(SPEC, 1)
INHERITED = Inherited(boot=b"boot", coordinator=3, more={"done": [[7, "x"]]})


class Held:
    """A shard with a job of two workers, and what they are answered."""

    def __init__(self, shard: Shard | None = None, job: str = "j") -> None:
        self.job = job
        self.outlet = Kept()
        self.shard = shard or Shard(index=0, num_shards=1, memory_limit_bytes=None)
        if shard is None:
            for worker in (0, 1):
                self.shard.members.admit(
                    job=self.job,
                    consistency_text="bsp",
                    num_workers=2,
                    worker=worker,
                    incarnation=1,
                    clocks={},
                    reader=False,
                )
            self.shard.open_table(self.job, SPEC, 5)
            for partition in map(PLAN.partition, range(PLAN.num_partitions)):
                self.send(wire.Kind.LOAD, partition=partition.index, payload=bytes(partition.numel * 4))
            self.shard.start_table(self.job, 0)

    def send(self, kind: wire.Kind, **fields) -> None:
        frame = wire.Frame(kind=kind, **{"incarnation": 1, **fields})
        self.shard.table(self.job, 0).receive(frame, self.outlet, member=True)

    def push(self, worker: int, step: int, partitions=range(PLAN.num_partitions)) -> None:
        for index in partitions:
            values = torch.full((PLAN.partition(index).numel,), 1.0 + worker + step + index)
            self.send(
                wire.Kind.PUSH, worker=worker, step=step, partition=index, payload=values.numpy().tobytes()
            )

    def weights(self) -> list[torch.Tensor]:
        return [cell.values.now.clone() for cell in self.shard.table(self.job, 0).cells()]

    def pulled(self, worker: int, step: int) -> set[int]:
        """Versions that a pull is answered with, by now."""
        self.outlet.take()
        meta = struct.pack(f"<{PLAN.num_partitions}I", *range(PLAN.num_partitions))
        self.send(wire.Kind.PULL, worker=worker, step=step, meta=meta)
        return {frame.version for frame in self.outlet.take() if frame.kind is wire.Kind.PULLED}


def successor(folder, index=0, num_shards=1) -> tuple[Shard, Inherited | None]:
    shard = Shard(index=index, num_shards=num_shards, memory_limit_bytes=None)
    found = hand_off.find(folder, shard)
    if found is None:
        return shard, None
    found.use_up()
    return shard, found.inherited


@pytest.mark.parametrize("mapped", [False, True])
def test_the_successor_goes_on_to_the_bit(tmp_path, mapped):
    """With what was staged, momentum, clocks, and both halves of the weights where workers map them."""
    held, reference = Held(), Held()
    for it in (held, reference):
        if mapped:
            it.shard.table("j", 0).halves()
        it.push(0, 0)
        it.push(1, 0)
        it.push(0, 1)
        it.push(1, 1, partitions=[0])
    before = [cell.values._weights.other for cell in held.shard.table("j", 0).cells()]
    held.shard.generation = 4
    hand_off.write(tmp_path, held.shard, INHERITED)
    shard, inherited = successor(tmp_path)
    assert (inherited.boot, shard.generation, inherited.coordinator) == (b"boot", 4, 3)
    assert inherited.more == INHERITED.more
    went_on = Held(shard)
    others = [cell.values._weights.other for cell in shard.table("j", 0).cells()]
    assert not mapped or all(map(torch.equal, others, before))
    for it in (went_on, reference):
        it.push(0, 1)  # again: its acknowledgement may have been lost
        it.push(1, 1)
        it.push(1, 2)
        it.push(0, 2)
    assert all(map(torch.equal, went_on.weights(), reference.weights()))
    assert went_on.pulled(0, 3) == {3}
    ledger = shard.table("j", 0).ledger(0)
    assert ledger.applied == 3 * PLAN.num_partitions
    assert ledger.duplicates == PLAN.num_partitions


@pytest.mark.parametrize("name", ["more", "job"])
def test_jobs_of_any_name_are_handed_off_beside_what_is_passed_on(tmp_path, name):
    """Tensors of the one are not taken for the other's."""
    held = Held(job=name)
    passed_on = {"other/0": torch.ones(3, dtype=torch.uint8), f"{name}/0": torch.zeros(2)}
    hand_off.write(tmp_path, held.shard, dataclasses.replace(INHERITED, tensors=passed_on))
    shard, inherited = successor(tmp_path)
    assert inherited.tensors.keys() == passed_on.keys()
    assert all(torch.equal(inherited.tensors[key], it) for key, it in passed_on.items())
    cells = shard.table(name, 0).cells(), held.shard.table(name, 0).cells()
    assert all(torch.equal(ours.values.now, theirs.values.now) for ours, theirs in zip(*cells, strict=True))


def admit(shard: Shard, job: str, spec: TableSpec) -> None:
    """A job with this table, of one worker."""
    shard.members.admit(
        job=job, consistency_text="bsp", num_workers=1, worker=0, incarnation=1, clocks={}, reader=False
    )
    shard.open_table(job, spec, 7)


def test_a_job_with_names_that_no_header_takes_costs_no_other_job_what_it_has(tmp_path, monkeypatch):
    """Names and facts of all jobs together have no limit: who may open tables would end the others' jobs."""
    monkeypatch.setattr(snapshot_tensors, "MAX_HEADER_BYTES", 4096)
    held = Held()
    names = [f"{number:03}{'x' * 200}" for number in range(50)]
    parameters = tuple(ParameterSpec(name=name, shape=(3,)) for name in names)
    admit(held.shard, "other", dataclasses.replace(SPEC, parameters=parameters))
    hand_off.write(tmp_path, held.shard, INHERITED)
    shard, _ = successor(tmp_path)
    assert all(map(torch.equal, Held(shard).weights(), held.weights()))
    assert [it.name for it in shard.table("other", 0).spec.parameters] == names


def test_what_is_handed_off_is_looked_through_once_and_not_for_each_partition(tmp_path):
    """A table may have 32,768 of them on a shard."""
    count = 100
    held = Held()
    parameters = tuple(ParameterSpec(name=f"w{number}", shape=(1,)) for number in range(count))
    small = BucketOptions(bucket_bytes=1, first_bucket_bytes=1, partition_bytes=4096)
    admit(held.shard, "other", dataclasses.replace(SPEC, parameters=parameters, buckets=small))
    hand_off.write(tmp_path, held.shard, INHERITED)
    names = 0

    def profile(_frame: object, event: str, called: object) -> None:
        nonlocal names
        names += event == "c_call" and getattr(called, "__name__", "") == "startswith"

    sys.setprofile(profile)
    try:
        shard, _ = successor(tmp_path)
    finally:
        sys.setprofile(None)
    assert len(shard.table("other", 0).cells()) == count
    assert names < 20 * count


def test_a_hand_off_is_used_once(tmp_path):
    """Who comes later begins with nothing."""
    hand_off.write(tmp_path, Held().shard, INHERITED)
    assert successor(tmp_path)[1] is not None
    shard, inherited = successor(tmp_path)
    assert inherited is None
    assert not shard.jobs()


def test_until_it_is_used_up_whoever_looks_finds_it(tmp_path):
    """A start that fails has changed nothing; who comes too late is not to serve with what another serves."""
    hand_off.write(tmp_path, Held().shard, INHERITED)
    first, second = (
        hand_off.find(tmp_path, Shard(index=0, num_shards=1, memory_limit_bytes=None)) for _ in "12"
    )
    assert first.inherited.boot == second.inherited.boot
    first.use_up()
    with pytest.raises(ConfigurationRefused, match="another process has taken the hand-off"):
        second.use_up()
    hand_off.write(tmp_path, Held().shard, INHERITED)  # of the first one, which has served
    with pytest.raises(ConfigurationRefused, match="another process has taken the hand-off"):
        second.use_up()
    assert successor(tmp_path)[1] is not None


def test_that_a_hand_off_is_used_up_outlives_a_loss_of_power(tmp_path, monkeypatch):
    """Its folder is synced once it has its other name, and before anything can change."""
    synced = []
    hand_off.write(tmp_path, Held().shard, INHERITED)
    file = hand_off.file_of(tmp_path, 0)
    monkeypatch.setattr(os, "fsync", lambda it: synced.append((os.fstat(it).st_ino, file.exists())))
    hand_off.find(tmp_path, Shard(index=0, num_shards=1, memory_limit_bytes=None)).use_up()
    assert synced == [(tmp_path.stat().st_ino, False)]


def test_a_hand_off_that_cannot_be_set_aside_durably_is_there_for_the_next_start(tmp_path, monkeypatch):
    """This process does not serve, so what was handed off is still what the shard is."""
    hand_off.write(tmp_path, Held().shard, INHERITED)
    found = hand_off.find(tmp_path, Shard(index=0, num_shards=1, memory_limit_bytes=None))

    def failing(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(ConfigurationRefused, match=r"Input/output error; .* for the next start$"):
            found.use_up()
    assert successor(tmp_path)[1] is not None


def test_where_its_name_cannot_be_given_back_the_remedy_is_named(tmp_path, monkeypatch):
    hand_off.write(tmp_path, Held().shard, INHERITED)
    found = hand_off.find(tmp_path, Shard(index=0, num_shards=1, memory_limit_bytes=None))
    rename, renamed = Path.rename, []

    def once(self, target):
        if renamed:
            raise OSError(30, "Read-only file system")
        renamed.append(target)
        return rename(self, target)

    def failing(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", once)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(ConfigurationRefused, match=r"Read-only file system.*: rename .*\.used to it"):
        found.use_up()


def test_a_hand_off_is_written_where_folders_above_may_not_be_opened(tmp_path, monkeypatch):
    """Else all that the shard holds would be lost for the sake of a name that others have made."""
    opened = os.open

    def guarded(path, *rest):
        if path == tmp_path.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", guarded)
    hand_off.write(tmp_path, Held().shard, INHERITED)
    assert successor(tmp_path)[1] is not None


def test_what_does_not_fit_into_the_memory_limit_is_kept_for_a_start_with_a_larger_one(tmp_path):
    """As after an upgrade to a release that has a limit where nobody says one: no job is lost by that."""
    held = Held()
    held.push(0, 0)
    hand_off.write(tmp_path, held.shard, INHERITED)
    with pytest.raises(ConfigurationRefused, match=r"is kept, and does not fit here.*larger --memory-limit"):
        hand_off.find(tmp_path, Shard(index=0, num_shards=1, memory_limit_bytes=1000))
    shard, inherited = successor(tmp_path)
    assert inherited.boot == INHERITED.boot
    assert [entry.name for entry in shard.jobs()] == ["j"]


@pytest.mark.parametrize(("index", "num_shards"), [(1, 2), (0, 2)])
def test_a_hand_off_is_for_one_shard_only(tmp_path, index, num_shards):
    hand_off.write(tmp_path, Held().shard, INHERITED)
    mine = hand_off.file_of(tmp_path, 0)
    mine.rename(hand_off.file_of(tmp_path, index))
    shard, inherited = successor(tmp_path, index, num_shards)
    assert inherited is None
    assert not shard.jobs()


def test_a_snapshot_that_cannot_be_read_leaves_what_there_is(tmp_path):
    """It is looked at before anything is removed."""
    held = Held()
    held.push(0, 0)
    held.push(1, 0)
    before = held.weights()

    def damaged(_job, _snapshot, tables):
        assert tables == [SPEC]
        raise SnapshotCorrupt("it is not what was written")

    held.shard.open_part = damaged
    with pytest.raises(SnapshotCorrupt):
        restore(
            held.shard,
            job=Job("j", "bsp", 2).spec,
            tables=[SPEC],
            snapshot="s",
            incarnation=floor_of(9),
            step=3,
        )
    assert all(map(torch.equal, held.weights(), before))


def test_a_hand_off_that_was_cut_off_is_none(tmp_path):
    """What is missing is not made up: the shard counts as lost."""
    hand_off.write(tmp_path, Held().shard, INHERITED)
    path = hand_off.file_of(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-100])
    shard, inherited = successor(tmp_path)
    assert inherited is None
    assert not shard.jobs()


def test_a_fence_without_its_verdict_is_handed_off_with_the_table(tmp_path):
    """No step closes until the verdict comes; then it closes without the worker."""
    held = Held()
    held.push(0, 0)
    held.shard.members.fence(job="j", worker=1, incarnation=1)
    hand_off.write(tmp_path, held.shard, INHERITED)
    went_on = Held(successor(tmp_path)[0])
    assert went_on.pulled(0, 1) == set()
    went_on.shard.members.evict(job="j", worker=1, incarnation=1, limits={0: 0}, membership_epoch=1)
    assert {frame.version for frame in went_on.outlet.take() if frame.kind is wire.Kind.PULLED} == {1}


def facts_and_tensors(path: Path) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """What a hand-off says, and what it holds."""
    file = HandOffFile(path)
    facts = {key: value for key, value in file.facts.items() if key != "format"}
    for job in facts["jobs"]:
        for table in job["tables"]:
            table["flags"].sort()  # by partition and worker: their order says nothing
    return facts, {name: file[name].clone() for name in file}


def test_what_the_release_before_has_handed_off_is_taken_up_and_handed_on_as_it_is(tmp_path):
    """To the key and to the bit. It was written by a server of 2026-11-22: see `data/README.md`."""
    before = Path(__file__).parent / "data"
    shard = Shard(index=0, num_shards=2, memory_limit_bytes=None, submit=[].append)  # no step closes
    found = hand_off.find(before, shard)
    assert found is not None
    assert found.inherited is not None
    hand_off.write(tmp_path, shard, found.inherited)
    said, held = facts_and_tensors(found.path)
    says, holds = facts_and_tensors(hand_off.file_of(tmp_path, 0))
    assert says == said
    assert holds.keys() == held.keys()
    for name, tensor in held.items():
        assert torch.equal(holds[name], tensor), name


def test_what_the_release_before_has_handed_off_goes_on():
    """A late worker is told where it goes on, and a step that was chosen closes."""
    shard = Shard(index=0, num_shards=2, memory_limit_bytes=None)
    assert hand_off.find(Path(__file__).parent / "data", shard) is not None
    assert {cell.machine.version for cell in shard.table("backup", 0).cells()} == {2}
    assert [(late.worker, late.clock) for late in shard.pending()[0].report.late] == [(3, 1)]
    mapped = shard.table("mapped", 0)
    assert mapped.started
    assert mapped.evict(2, 1, 1, 4) == 2
    assert not shard.table("fresh", 0).cells()[0].loaded


def test_a_folder_in_which_nothing_can_be_handed_off_is_refused_at_the_start(tmp_path: Path):
    """Not when the server is stopped, with all that it holds; and the trial leaves nothing behind."""
    hand_off.check_writable(tmp_path / "state", 0)
    assert [*(tmp_path / "state").iterdir()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationRefused, match=r"file/state: Not a directory: .*that it can write to"
    ) as refused:
        hand_off.check_writable(tmp_path / "file" / "state", 0)
    assert refused.value.exit_code == 78


def test_on_a_full_disk_a_server_serves_and_says_so(tmp_path: Path, monkeypatch, caplog):
    """Room may be made while it does."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    hand_off.check_writable(tmp_path, 0)
    assert "No space left on device" in caplog.text
    assert "make room there" in caplog.text
