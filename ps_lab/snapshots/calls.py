"""Asks servers to take a snapshot, or to go back to one, and says how it gets on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import grpc

from ps_wire.access.access import Access
from ps_wire.access.channel import dial
from ps_wire.access.status import error_of
from ps_wire.access.tls_diagnosis import diagnose
from ps_wire.errors import ServerUnreachable
from ps_wire.snapshot.manifest import FINAL_FILE, MANIFEST, FileRecord, Manifest, shard_file, worker_file
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2 as shard_pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub

LIMIT_S = 3600.0
ANSWER_LIMIT_S = 10.0


def take(coordinator: str, job: str, access: Access) -> Iterator[pb.SnapshotProgress]:
    """Has a snapshot taken of a job that runs; the last word says where it is.

    Raises:
        PsError: it was not taken; the message says why.
    """
    with calling(coordinator, access) as channel:
        yield from CoordinatorStub(channel).Snapshot(
            pb.SnapshotRequest(job=job), timeout=LIMIT_S, metadata=access.metadata
        )


def restore(
    servers: Sequence[str], store: SnapshotStore, job: str, snapshot: str, access: Access
) -> Iterator[pb.SnapshotProgress]:
    """Brings a snapshot to servers and has the job go on from it; each shard gets the files that it reads.

    What a shard has already, as all do where they share storage, is not sent again.

    Raises:
        SnapshotUnusable: it is not whole; nothing was sent.
        PsError: the servers refuse; the message says why.
    """
    manifest = store.verify(job, snapshot)
    with calling(servers[0], access) as channel:
        name = CoordinatorStub(channel).NameSnapshot(
            pb.SnapshotRequest(job=job), timeout=ANSWER_LIMIT_S, metadata=access.metadata
        )
    manifest = replace(manifest, number=int(name.snapshot.partition("-")[0]))
    progress = pb.SnapshotProgress(phase="sending")
    progress.total_bytes = sum(
        record.bytes for shard in range(len(servers)) for record in files_for(manifest, shard, len(servers))
    )
    for shard, address in enumerate(servers):
        with calling(address, access) as channel:
            stub = ShardStub(channel)
            place = shard_pb.SnapshotFile(job=job, snapshot=name.snapshot)
            have = set(stub.LookSnapshot(place, timeout=ANSWER_LIMIT_S, metadata=access.metadata).names)
            for record in files_for(manifest, shard, len(servers)):
                if record.name not in have:
                    parts = store.read(job, snapshot, record.name)
                    _put(stub, place, record.name, record.sha256, parts, access)
                progress.bytes += record.bytes
                yield progress
    text = manifest.text().encode()
    for address in reversed(servers):  # the coordinator's last: with that the job has a newer snapshot
        with calling(address, access) as channel:
            _put(ShardStub(channel), place, MANIFEST, sha256(text).hexdigest(), [text], access)
    progress.phase = "restoring"
    yield progress
    with calling(servers[0], access) as channel:
        yield CoordinatorStub(channel).Restore(
            pb.RestoreRequest(job=job, snapshot=name.snapshot), timeout=LIMIT_S, metadata=access.metadata
        )


def files_for(manifest: Manifest, shard: int, num_shards: int) -> list[FileRecord]:
    """The files that one of so many shards reads; the coordinator, on shard 0, also has workers' state."""
    own = {shard_file(shard, num_shards)}
    if manifest.num_shards != num_shards:
        own = {shard_file(other, manifest.num_shards) for other in range(manifest.num_shards)}
    if shard == 0:
        own |= {FINAL_FILE, *(worker_file(worker) for worker in manifest.workers)}
    return [record for record in manifest.files if record.name in own]


def _put(
    stub: ShardStub,
    place: shard_pb.SnapshotFile,
    name: str,
    digest: str,
    parts: Iterable[bytes],
    access: Access,
) -> None:
    file = shard_pb.SnapshotFile(job=place.job, snapshot=place.snapshot, name=name, sha256=digest)

    def chunks() -> Iterator[shard_pb.SnapshotChunk]:
        yield shard_pb.SnapshotChunk(file=file)
        for part in parts:
            yield shard_pb.SnapshotChunk(data=part)

    stub.PutSnapshot(chunks(), timeout=LIMIT_S, metadata=access.metadata)


@contextmanager
def calling(address: str, access: Access) -> Iterator[grpc.Channel]:
    """A channel to a server, on which calls fail by the names of the project's errors."""
    with dial(address, access) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            named = error_of(error, address)
            if isinstance(named, ServerUnreachable):
                raise diagnose(address, access.tls) or named from None
            raise named from None
