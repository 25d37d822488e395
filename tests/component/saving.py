"""A snapshot of a job that stands still, as the servers write them."""

from __future__ import annotations

from ps_server.shard.state.codec import encode, facts_text
from ps_wire.snapshot import tensors as snapshot_tensors
from ps_wire.snapshot.manifest import Manifest, SavedWorker, shard_file, worker_file
from ps_wire.snapshot.store import SnapshotStore
from tests.component.service import Cluster


def save(cluster: Cluster, folder: str, job: str, workers: dict[int, bytes]) -> str:
    """Writes one; `workers` are those who train, with what each has beside its tables. Returns its name."""
    store = SnapshotStore(folder)
    name = store.new_name(job)
    room = cluster.coordinator.runners[job]
    specs = room.job.specs
    files, clocks = [], {}
    for server in cluster.shards:
        tensors, tables = {}, []
        for spec in specs:
            table = server.shard.table(job, spec.number)
            own, facts = encode(table.plan, spec.number, table.dump())
            tensors |= own
            tables.append(facts)
            for cell in table.cells():
                clocks.setdefault(spec.number, {}).update(dict(cell.machine.clocks))
        parts = snapshot_tensors.encode(tensors, {"state": facts_text({"tables": tables})})
        files.append(store.write(job, name, shard_file(server.shard.index, len(cluster.shards)), parts))
    for worker, blob in workers.items():
        files.append(store.write(job, name, worker_file(worker), [blob]))
    manifest = Manifest(
        number=1,
        created="2026-01-01T00:00:00Z",
        generation=1,
        job=room.job.spec,
        num_shards=len(cluster.shards),
        tables=tuple(specs),
        clocks=clocks,
        files=tuple(files),
        workers={worker: SavedWorker() for worker in workers},
    )
    store.complete(job, name, manifest)
    return name
