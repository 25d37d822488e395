"""Snapshots of jobs that run: they hold what the job had at one cut, and training goes on meanwhile."""

import threading
from dataclasses import dataclass, field

import pytest
import torch

import ps_worker as ps
from ps_wire.snapshot import Manifest
from ps_wire.snapshot_store import SnapshotStore
from ps_wire.snapshot_tensors import TensorFile
from ps_wire.v1 import coordinator_pb2 as pb
from tests.unit.ps_worker.service import Cluster, fresh_name, run_workers

STEPS = 6
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


def take(worker: ps.Worker, job: str) -> pb.SnapshotProgress:
    return list(worker._link._service.coordinator.Snapshot(pb.SnapshotRequest(job=job)))[-1]


def saved_weights(store: SnapshotStore, job: str, name: str, manifest: Manifest) -> dict[str, torch.Tensor]:
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    for record in manifest.files:
        if not record.name.startswith("shard"):
            continue
        with store.local(job, name, record.name) as path:
            file = TensorFile(path, record.name)
            for key in file:
                _, kind, offset, parameter = key.split("/", 3)
                if kind == "weight":
                    pieces.setdefault(parameter, {})[int(offset)] = file[key].clone()
    return {key: torch.cat([parts[at] for at in sorted(parts)]) for key, parts in pieces.items()}


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_snapshot_holds_one_cut_of_a_job_that_goes_on(cluster, consistency):
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
                name: value.detach().clone().reshape(-1) for name, value in net.named_parameters()
            }
            generator = torch.Generator().manual_seed(1000 * worker.rank + step)
            loss = net(torch.randn(4, 40, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if worker.rank == 0 and step == 2:
                taking = threading.Thread(target=lambda: (results.append(take(worker, job)), taken.set()))
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
        weights = saved_weights(store, job, name, manifest)
        for key, value in histories[0].weights[clocks[0]].items():
            assert torch.equal(weights[key], value)
