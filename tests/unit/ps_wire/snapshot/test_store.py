"""A snapshot is complete or does not exist, whatever becomes of its files, and of who writes them."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from ps_wire.errors import (
    SnapshotCorrupt,
    SnapshotFailed,
    SnapshotFormatUnsupported,
    SnapshotMissing,
    UsageError,
)
from ps_wire.snapshot import store as snapshot_store
from ps_wire.snapshot import writing as snapshot_writing
from ps_wire.snapshot.manifest import MANIFEST, Manifest, SavedWorker, parse, shard_file
from ps_wire.snapshot.store import AHEAD, MAX_NUMBER, SnapshotStore, number_of
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import spec_pb2
from tests.until import LIMIT_S

JOB = "j"
SGD = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),)))
TABLE = TableSpec(number=0, parameters=(ParameterSpec(name="w", shape=(3, 2)),), optimizer=SGD)
OF_ONE = "shard-0-of-1.safetensors"


def write(store: SnapshotStore, number: int, *parts: bytes, workers: int = 12) -> str:
    """A snapshot with one file for each part."""
    name = store.new_name(JOB)
    files = tuple(
        store.write(JOB, name, shard_file(place, len(parts)), [part]) for place, part in enumerate(parts)
    )
    manifest = Manifest(
        number=number,
        created="2026-01-01T00:00:00+00:00",
        generation=1,
        job=spec_pb2.Job(name=JOB, consistency="bsp", num_workers=workers, nonfinite="error"),
        num_shards=len(parts),
        tables=(TABLE,),
        clocks={0: {worker: number + worker for worker in range(workers)}},
        files=files,
        workers={worker: SavedWorker(incarnation=1) for worker in range(workers)},
    )
    store.complete(JOB, name, manifest)
    assert store.manifest(JOB, name) == manifest
    return name


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return SnapshotStore(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}")


def damage(store: SnapshotStore, name: str, file: str, change) -> None:
    path = store._path(JOB, name, file)
    before = store._files.cat_file(path)
    store._files.pipe_file(path, change(before))


def test_what_was_written_is_found_again_newest_first(store):
    names = [write(store, number, b"a" * 10, b"b" * number) for number in range(3)]
    assert store.names(JOB) == names
    assert store.jobs() == [JOB]
    assert [name for name, _ in store.newest_first(JOB)] == names[::-1]
    manifest = store.verify(JOB, names[2])
    assert (manifest.step, manifest.total_bytes) == (2 + 11, 12)


def test_a_snapshot_without_a_manifest_does_not_exist(store):
    kept = write(store, 1, b"abc")
    name = store.new_name(JOB)
    store.write(JOB, name, OF_ONE, [b"abc"])
    assert store.names(JOB) == [kept]
    with pytest.raises(SnapshotMissing):
        store.verify(JOB, name)


def test_a_snapshot_in_the_folder_of_another_job_is_none(tmp_path):
    """Copied or renamed: it would bring one job's state, and its name, to another."""
    store = SnapshotStore(str(tmp_path))
    name = write(store, 1, b"abc")
    shutil.copytree(tmp_path / JOB, tmp_path / "other")
    with pytest.raises(SnapshotCorrupt, match=r"is of job 'j', and lies with those of job other: put it"):
        store.verify("other", name)
    (found,) = store.newest_first("other")
    assert isinstance(found[1], SnapshotCorrupt)
    store.verify(JOB, name)


def test_only_the_last_ones_are_kept_and_what_never_became_one_goes(store):
    lost = store.new_name(JOB)
    store.write(JOB, lost, "file-0", [b"abc"])
    names = [write(store, number, b"abc") for number in range(4)]
    under_way = store.new_name(JOB)
    store.write(JOB, under_way, "file-0", [b"abc"])
    assert store.keep_last(JOB, 2, names[-1]) == names[:2]
    assert store._all(JOB) == [*names[2:], under_way]


def test_one_that_is_brought_stays_and_is_the_newest_while_others_are_taken(store):
    before = write(store, 1, b"abc")
    given_up = store.name_to_bring(JOB)
    store.write(JOB, given_up, OF_ONE, [b"abc"])
    brought = store.name_to_bring(JOB)
    assert number_of(brought) == number_of(given_up) + 1
    store.write(JOB, brought, OF_ONE, [b"abc"])
    taken = [before, *(write(store, 1, b"abc") for _ in range(3))]
    assert taken == sorted(taken)
    assert taken[-1] < given_up
    assert store.keep_last(JOB, 1, taken[-1]) == taken[:-1]
    assert store._all(JOB) == [taken[-1], given_up, brought]
    store.complete(JOB, brought, replace(store.manifest(JOB, taken[-1]), number=number_of(brought)))
    assert store.names(JOB) == [taken[-1], brought]
    assert store.keep_last(JOB, 1, taken[-1]) == []  # it was under way when the other one came
    behind = write(store, 1, b"abc")
    assert number_of(behind) == number_of(brought) + 1
    assert store.keep_last(JOB, 1, behind) == [taken[-1], brought]
    assert store._all(JOB) == [behind]  # what was given up has gone


def test_one_that_is_brought_stays_the_newest_behind_one_that_was_given_up_long_ago(store):
    """Each has all the room ahead."""
    write(store, 1, b"abc")
    store.write(JOB, store.name_to_bring(JOB), OF_ONE, [b"abc"])
    taken = write(store, 1, b"abc")
    assert number_of(store.name_to_bring(JOB)) == number_of(taken) + AHEAD


def test_one_that_is_brought_has_its_room_behind_what_the_dropped_job_had(store):
    store.drop(JOB)
    assert number_of(store.name_to_bring(JOB)) == AHEAD
    write(store, 1, b"abc")
    store.write(JOB, given_up := store.name_to_bring(JOB), OF_ONE, [b"abc"])
    store.drop(JOB)
    assert store.dropped(JOB) == number_of(given_up)
    for _ in range(2):  # also where what the mark is of has gone
        assert number_of(store.new_name(JOB)) == store.dropped(JOB) + 1
        assert number_of(store.name_to_bring(JOB)) == store.dropped(JOB) + AHEAD
        store.delete(JOB, given_up)


def test_where_storage_does_not_answer_no_snapshot_counts_as_given_up(tmp_path, monkeypatch):
    store = SnapshotStore(str(tmp_path))
    names = [write(store, number, b"abc") for number in range(3)]
    info = type(store._files).info

    def broken(files, path, **options):
        if str(path).endswith(f"{names[1]}/{MANIFEST}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return info(files, path, **options)

    monkeypatch.setattr(type(store._files), "info", broken)
    for ask in (store.names, store.new_name, lambda job: store.keep_last(job, 1, names[2])):
        with pytest.raises(SnapshotFailed, match=f"cannot look for .*{names[1]}/{MANIFEST}: .*output error"):
            ask(JOB)
    assert store._all(JOB) == names


def test_behind_the_last_number_there_is_no_other(store):
    name = write(store, 1, b"abc")
    last = f"{MAX_NUMBER}-00000000"
    store.complete(JOB, last, store.manifest(JOB, name))
    for named in (store.new_name, store.name_to_bring):
        with pytest.raises(SnapshotFailed, match=f"end at {MAX_NUMBER}, and .*j has come there"):
            named(JOB)
    store.delete(JOB, last)
    assert number_of(store.new_name(JOB)) == 2
    store.complete(JOB, f"{MAX_NUMBER - 1}-00000000", store.manifest(JOB, name))
    assert store.new_name(JOB).startswith(f"{MAX_NUMBER}-")


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (OF_ONE, lambda old: old[:-1], "has 2 bytes, 3 were written"),
        (OF_ONE, lambda old: b"xyz", "its checksum differs"),
        (MANIFEST, lambda old: old[: len(old) // 2], "is no manifest"),
        (MANIFEST, lambda old: old.replace(b'"generation": 1', b'"generation": 2'), "its checksum differs"),
        (MANIFEST, lambda old: b"[1]", "is no manifest"),
    ],
    ids=["truncated", "other bytes", "half a manifest", "changed manifest", "another JSON"],
)
def test_what_was_damaged_is_named_and_so_is_the_valid_one_before(store, file, change, said):
    valid = write(store, 1, b"abc")
    broken = write(store, 2, b"abc")
    damage(store, broken, file, change)
    with pytest.raises(SnapshotCorrupt, match=said) as caught:
        store.verify(JOB, broken)
    assert store.where(JOB, broken, file) in caught.value.message
    assert caught.value.message.endswith(f"{store.where(JOB, valid)} is valid")
    damage(store, valid, OF_ONE, lambda old: b"")
    with pytest.raises(SnapshotCorrupt, match="no older one is valid"):
        store.verify(JOB, broken)


def test_a_missing_file_is_named(store):
    name = write(store, 1, b"abc", b"def")
    store._files.rm(store._path(JOB, name, "shard-1-of-2.safetensors"))
    with pytest.raises(SnapshotCorrupt, match=r"shard-1-of-2\.safetensors is missing"):
        store.verify(JOB, name)


def test_another_format_is_named(store):
    name = write(store, 1, b"abc")
    damage(store, name, MANIFEST, lambda old: old.replace(b'"format": 2', b'"format": 1'))
    with pytest.raises(SnapshotFormatUnsupported, match="has format 1, this release reads format 2"):
        store.verify(JOB, name)


@pytest.mark.parametrize("text", [b"", b"\xff", b"{}", b'{"format": 2}', b'{"format": 2, "manifest": 3}'])
def test_no_text_is_taken_for_a_manifest(text):
    with pytest.raises(SnapshotCorrupt):
        parse(text, "here", JOB)


def test_no_manifest_with_foreign_fields_is_taken(tmp_path):
    store = SnapshotStore(str(tmp_path))
    name = write(store, 1, b"abc")
    whole = json.loads(Path(store._path(JOB, name, MANIFEST)).read_bytes())
    whole["manifest"]["more"] = 1
    with pytest.raises(SnapshotCorrupt):
        parse(json.dumps(whole).encode(), "here", JOB)


def test_a_full_disk_leaves_the_old_snapshot_and_nothing_of_the_new_file(tmp_path, monkeypatch):
    store = SnapshotStore(str(tmp_path))
    kept = write(store, 1, b"abc")

    def full(file, part):
        file.write(part[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshot_writing, "_write_all", full)
    name = store.new_name(JOB)
    with pytest.raises(SnapshotFailed, match="No space left on device"):
        store.write(JOB, name, OF_ONE, [b"abc"])
    assert list(Path(store._path(JOB, name)).iterdir()) == []
    assert store.verify(JOB, kept).number == 1


def test_a_job_has_no_more_snapshots_than_can_be_looked_at(store, monkeypatch):
    """Each is, when the job goes back; one that has begun to be brought is brought to its end."""
    names = [write(store, number, b"abc") for number in range(2)]
    store.check_count(JOB, store.new_name(JOB))
    monkeypatch.setattr(snapshot_store, "MAX_SNAPSHOTS", 2)
    store.check_count(JOB, names[0])
    store.check_count("other", "00000001-aaaaaaaa")
    with pytest.raises(SnapshotFailed, match="has 2 snapshots: no more are brought there"):
        store.check_count(JOB, store.new_name(JOB))


def test_what_could_not_be_read_again_is_not_completed(store):
    """A job has more of something than a snapshot takes: it is said when it is taken."""
    name = write(store, 1, b"abc")
    many = {worker: SavedWorker() for worker in range(5000)}
    job = spec_pb2.Job(name=JOB, consistency="asp", num_workers=5000)
    with pytest.raises(
        SnapshotFailed, match=r"could not be read again: .*workers: expected an object of at most"
    ):
        store.complete(JOB, store.new_name(JOB), replace(store.manifest(JOB, name), workers=many, job=job))
    assert store.names(JOB) == [name]


def test_a_snapshot_outlives_a_loss_of_power(tmp_path, monkeypatch):
    """Each file is durable before it has its name, and its name before the next one; the manifest is last."""
    done: list[tuple[str, int]] = []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        done.append(("rename", path.stat().st_ino))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", lambda it: done.append(("sync", os.fstat(it).st_ino)))
    monkeypatch.setattr(Path, "rename", renamed)
    store = SnapshotStore(str(tmp_path))
    folder = tmp_path / JOB / write(store, 1, b"one", b"two")
    expected = []
    for name in ("shard-0-of-2.safetensors", "shard-1-of-2.safetensors", MANIFEST):
        file = (folder / name).stat().st_ino
        folders = [it.stat().st_ino for it in (folder, folder.parent, tmp_path)]
        expected += [("sync", file), ("rename", file), *(("sync", it) for it in folders)]
    assert done == expected


def test_a_part_of_a_file_that_the_system_takes_in_pieces_is_written_whole():
    """As a disk does that is nearly full, or a signal that comes between."""
    taken = bytearray()

    class Slow:
        def write(self, part: memoryview) -> int:
            taken.extend(part[:3])
            return len(part[:3])

    snapshot_writing._write_all(Slow(), b"0123456789")
    assert taken == b"0123456789"


def test_a_snapshot_that_is_deleted_in_part_does_not_exist(tmp_path, monkeypatch):
    """Its manifest goes first: what is left, where somebody dies in between, is none."""
    store = SnapshotStore(str(tmp_path))
    name = write(store, 1, b"one")

    def dying(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store._files, "rm", dying)
    with pytest.raises(SnapshotFailed, match="cannot delete"):
        store.delete(JOB, name)
    assert store.names(JOB) == []
    assert MANIFEST not in store.files(JOB, name)
    assert store.files(JOB, name)


def test_a_url_that_nothing_reads_is_refused():
    with pytest.raises(UsageError, match="nowhere"):
        SnapshotStore("nowhere://bucket/folder")


KILLED = """
import os, signal, sys
from pathlib import Path
from ps_wire.snapshot import store as snapshot_store, writing as snapshot_writing
from ps_wire.snapshot.manifest import Manifest, shard_file
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import spec_pb2

JOB = spec_pb2.Job(name="j", consistency="bsp", num_workers=1, nonfinite="error")
TABLE = TableSpec(
    number=0,
    parameters=(ParameterSpec(name="w", shape=(3,)),),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),))),
)
store = SnapshotStore(sys.argv[1])

def writes(number):
    name = store.new_name("j")
    parts = [bytes([number % 256]) * 500, b"x"]
    files = tuple(store.write("j", name, shard_file(k, 2), parts) for k in range(2))
    store.complete("j", name, Manifest(number=number, created="", generation=1, job=JOB, num_shards=2,
                                       tables=(TABLE,), clocks={}, files=files))
    store.keep_last("j", 2, name)

def dies_at(point):
    '''Kills this process at the n-th of the things that a writer asks of the system.'''
    left = [point]
    def counted(owner, name):
        real = getattr(owner, name)
        def call(*given, **named):
            left[0] -= 1
            if left[0] == 0:
                if name == "_write_all":
                    given[0].write(given[1][: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)
        setattr(owner, name, call)
    for owner, name in ((snapshot_writing, "_write_all"), (os, "fsync"), (Path, "rename"), (Path, "open"),
                        (Path, "mkdir"), (os, "remove"), (os, "unlink"), (os, "rmdir")):
        counted(owner, name)

writes(0)
newest, killed, point = 0, 0, 0
while killed < int(sys.argv[2]):
    point += 1
    child = os.fork()
    if child == 0:
        dies_at(point)
        writes(newest + 1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        killed += 1
    else:
        assert point > 10, point
        point = 0  # it lived through all points: once more, from the first one
    name, manifest = next(store.newest_first("j"))
    assert manifest.number in (newest, newest + 1), (manifest.number, newest)
    assert store.verify("j", name) == manifest
    if status == 0:
        assert manifest.number == newest + 1
    newest = manifest.number
assert newest > 10, newest
print(killed)
"""


def test_200_kills_at_every_point_of_writing_always_leave_a_valid_snapshot(tmp_path):
    memory = Path("/dev/shm")  # a disk that waits for itself at each fsync makes this four times as long
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path)
    outcome = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, folder, "200"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    shutil.rmtree(folder)
    assert (outcome.returncode, outcome.stdout.strip()) == (0, "200"), outcome.stderr
