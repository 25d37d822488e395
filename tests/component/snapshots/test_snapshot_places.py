"""Snapshots where shards share no storage: each keeps its part, or is sent it."""

import shutil
import threading

import pytest
import torch

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator.snapshots.policy import SnapshotPolicy
from ps_wire.access.access import OPEN
from ps_wire.errors import ConfigurationRefused, SnapshotCorrupt
from ps_wire.snapshot.store import SnapshotStore
from tests.component.law_15 import STEPS, Training, continues, start
from tests.component.service import Cluster, fresh_name, run_workers, together
from tests.until import LIMIT_S


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


class GoesOn:
    """A job of one worker that trains until it is told to end, and goes back by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self.job = fresh_name()
        self.trains, self.went_back, self.over = threading.Event(), threading.Event(), threading.Event()
        self.undone: list[int] = []
        self._cluster = cluster

    def run(self) -> None:
        run_workers(self._cluster, self._train, job=self.job, on_rollback=self._goes_back)

    def _goes_back(self, step: int) -> None:
        self.undone.append(step)
        self.went_back.set()

    def _train(self, worker: ps.Worker) -> None:
        net = torch.nn.Linear(40, 60)
        optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=0.1), net)
        loader = worker.loader(torch.utils.data.TensorDataset(torch.ones(16, 40)), batch_size=4)
        for _ in worker.epochs(1 << 20):
            for (batch,) in loader:
                net(batch).square().mean().backward()
                optimizer.step()
                self.trains.set()
                if self.over.is_set():
                    return


@pytest.mark.parametrize("places", ["own", "own-{shard}"], ids=["one place", "a place for each shard"])
def test_snapshots_that_servers_take_meanwhile_do_no_harm_to_one_that_is_brought(
    loop_thread, tmp_path, places
):
    """It is slow, and they keep their newest alone: the job goes back to it all the same."""
    keep_one = SnapshotPolicy(keep=1)
    cluster = start(loop_thread, 2, tmp_path, snapshot_dir=f"{tmp_path}/{places}", snapshots=keep_one)
    servers, training = cluster.servers.split(","), GoesOn(cluster)
    job, elsewhere = training.job, SnapshotStore(f"{tmp_path}/elsewhere")

    def take() -> str:
        return list(snapshot_calls.take(servers[0], job, OPEN))[-1].snapshot.rsplit("/", 1)[-1]

    def bring() -> None:
        assert training.trains.wait(LIMIT_S)
        name = take()
        for place in tmp_path.glob("own*"):
            shutil.copytree(place / job, f"{tmp_path}/elsewhere/{job}", dirs_exist_ok=True)
        bringing = snapshot_calls.restore(servers, elsewhere, job, name, OPEN)
        taken = [take() for word in bringing if word.phase == "sending"]
        assert len(taken) >= 3  # between two files each
        for shard, server in enumerate(cluster.shards):
            own = server.shard.snapshots.store
            brought = own.names(job)[-1]
            assert brought > max(taken)
            assert f"shard-{shard}-of-2.safetensors" in own.files(job, brought)
        assert training.went_back.wait(LIMIT_S)
        assert training.undone == [elsewhere.manifest(job, name).step]
        assert take() > brought

    def bring_and_end() -> None:
        try:
            bring()
        finally:
            training.over.set()

    try:
        together([training.run, bring_and_end])
    finally:
        cluster.close()
