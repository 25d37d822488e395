"""Snapshots where shards share no storage: each keeps its part, or is sent it."""

import shutil

import pytest

from ps_lab.snapshots import calls as snapshot_calls
from ps_wire.access.access import OPEN
from ps_wire.errors import ConfigurationRefused, SnapshotCorrupt
from ps_wire.snapshot.store import SnapshotStore
from tests.component.law_15 import STEPS, Training, continues, start
from tests.component.service import fresh_name


def taken(loop_thread, folder, snapshot_dir: str) -> tuple[Training, int]:
    """A job on two shards, of which a snapshot is taken; and how many steps can be compared."""
    cluster = start(loop_thread, 2, folder, snapshot_dir=snapshot_dir)
    straight = Training(fresh_name(), "bsp", "adam")
    try:
        return straight, min(straight.run(cluster, STEPS, snapshot_at=2))
    finally:
        cluster.close()


def test_each_shard_goes_on_from_its_own_part(loop_thread, tmp_path):
    places = f"{tmp_path}/of-{{shard}}"
    straight, until = taken(loop_thread, tmp_path, places)
    for shard in (0, 1):
        store = SnapshotStore(places.format(shard=shard))
        (name,) = store.names(straight.job)
        assert f"shard-{shard}-of-2.safetensors" in store.files(straight.job, name)
        assert f"shard-{1 - shard}-of-2.safetensors" not in store.files(straight.job, name)
    cluster = start(loop_thread, 2, tmp_path, snapshot_dir=places)
    restored = Training(straight.job, "bsp", "adam")
    try:
        restored.run(cluster, until)
    finally:
        cluster.close()
    continues(straight, restored, until)


@pytest.mark.parametrize("num_shards", [2, 3])
def test_a_snapshot_from_elsewhere_is_sent_to_each_shard(loop_thread, tmp_path, num_shards):
    straight, until = taken(loop_thread, tmp_path, f"{tmp_path}/elsewhere")
    elsewhere = SnapshotStore(f"{tmp_path}/elsewhere")
    (name,) = elsewhere.names(straight.job)
    cluster = start(loop_thread, num_shards, tmp_path, snapshot_dir=f"{tmp_path}/{num_shards}-{{shard}}")
    restored = Training(straight.job, "bsp", "adam")
    try:
        words = list(snapshot_calls.restore(cluster.servers.split(","), elsewhere, straight.job, name, OPEN))
        restored.run(cluster, until)
    finally:
        cluster.close()
    assert words[-1].step == elsewhere.manifest(straight.job, name).step
    continues(straight, restored, until)
    own = SnapshotStore(f"{tmp_path}/{num_shards}-1")
    sent = own.files(straight.job, words[-1].snapshot)
    assert ("shard-0-of-2.safetensors" in sent) == (num_shards == 3)


def test_nothing_is_sent_of_a_snapshot_that_is_not_whole(loop_thread, one_shard, tmp_path):
    straight, _ = taken(loop_thread, tmp_path, f"{tmp_path}/elsewhere")
    elsewhere = SnapshotStore(f"{tmp_path}/elsewhere")
    (name,) = elsewhere.names(straight.job)
    servers = one_shard.servers.split(",")
    with pytest.raises(ConfigurationRefused, match="--snapshot-dir"):
        list(snapshot_calls.restore(servers, elsewhere, straight.job, name, OPEN))
    shutil.copy(
        elsewhere._path(straight.job, name, "shard-0-of-2.safetensors"),
        elsewhere._path(straight.job, name, "shard-1-of-2.safetensors"),
    )
    with pytest.raises(SnapshotCorrupt, match="shard-1-of-2"):
        list(snapshot_calls.restore(servers, elsewhere, straight.job, name, OPEN))
