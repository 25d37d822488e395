"""A snapshot as somebody has it who brings it to servers: its manifest and files, and the calls for it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import grpc
import torch

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_wire.access.access import OPEN
from ps_wire.snapshot.manifest import MANIFEST
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub
from tests.component.service import Cluster, together
from tests.until import LIMIT_S

PART_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """See the module's docstring.

    Attributes:
        job: whose.
        manifest: its bytes.
        files: name -> bytes, of all others.
    """

    job: str
    manifest: bytes
    files: Mapping[str, bytes]


def take(cluster: Cluster, job: str) -> Brought:
    """One of a job of two workers with a loader and buffers, on the way through its second epoch."""
    taken, at = threading.Event(), threading.Barrier(3)

    def train(rank: int) -> None:
        with ps.connect(servers=cluster.servers, job=job, num_workers=2, worker=rank) as worker:
            torch.manual_seed(0)
            net = torch.nn.Sequential(
                torch.nn.Linear(40, 60), torch.nn.BatchNorm1d(60), torch.nn.Linear(60, 1)
            )
            optimizer = worker.wrap(torch.optim.Adam(net.parameters(), lr=1e-3), net)
            loader = worker.loader(torch.utils.data.TensorDataset(torch.ones(32, 40)), batch_size=4)
            while not taken.is_set():
                for (batch,) in loader:
                    net(batch).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if worker.step == 6:
                        at.wait(LIMIT_S)

    def watch() -> None:
        at.wait(LIMIT_S)
        list(snapshot_calls.take(cluster.servers.split(",")[0], job, OPEN))
        taken.set()

    together([lambda: train(0), lambda: train(1), watch])
    store = cluster.shards[0].shard.snapshots.store
    (name,) = store.names(job)
    files = {file: b"".join(store.read(job, name, file)) for file in store.files(job, name)}
    return Brought(job=job, manifest=files.pop(MANIFEST), files=files)


def bring(channel: grpc.Channel, brought: Brought, metadata: object = None) -> str:
    """Puts it to a service of one shard, under a new name; returns that. Raises `grpc.RpcError`."""
    coordinator, shard = CoordinatorStub(channel), ShardStub(channel)
    asked = pb.SnapshotRequest(job=brought.job)
    name = coordinator.NameSnapshot(asked, timeout=LIMIT_S, metadata=metadata).snapshot
    for file, content in {**brought.files, MANIFEST: brought.manifest}.items():
        place = shard_pb2.SnapshotFile(
            job=brought.job, snapshot=name, name=file, sha256=hashlib.sha256(content).hexdigest()
        )
        shard.PutSnapshot(_chunks(place, content), timeout=LIMIT_S, metadata=metadata)
    return str(name)


def restore(channel: grpc.Channel, job: str, name: str, metadata: object = None) -> int:
    """Has the job go back to it; returns the step. Raises `grpc.RpcError`."""
    request = pb.RestoreRequest(job=job, snapshot=name)
    return int(CoordinatorStub(channel).Restore(request, timeout=LIMIT_S, metadata=metadata).step)


def _chunks(place: shard_pb2.SnapshotFile, content: bytes) -> Iterator[shard_pb2.SnapshotChunk]:
    yield shard_pb2.SnapshotChunk(file=place)
    for start in range(0, len(content), PART_BYTES):
        yield shard_pb2.SnapshotChunk(data=content[start : start + PART_BYTES])
