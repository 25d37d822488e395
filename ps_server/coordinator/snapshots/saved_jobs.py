"""Snapshots as who lets jobs go on needs them: the coordinator what a job is, a shard its part of the tables.

Blocks, as storage does. It must not know what becomes of jobs: that is `recovery`'s affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeAlias

from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_server.coordinator.state_store import MAX_SAVED_BYTES, SAVED
from ps_server.log import logger
from ps_server.shard.shard import Shard
from ps_server.shard.state.codec import TableReader
from ps_server.shard.state.snapshot_writer import FACTS
from ps_server.shard.table.table_state import TableState
from ps_wire.errors import SnapshotCorrupt, SnapshotMismatch, SnapshotUnusable, TableMismatch
from ps_wire.snapshot.json_fields import Field, FieldInvalid, read
from ps_wire.snapshot.manifest import FINAL_FILE, FileRecord, Manifest, shard_file, worker_file
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.snapshot.tensors import TensorFile
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import MAX_TABLES, TableSpec, check_same

ReadTable: TypeAlias = Callable[[Plan, TableSpec], TableState]


class SavedJobs:
    """What lies in a snapshot folder: `Snapshots`, and shards' parts."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store

    def give(self, shard: Shard) -> None:
        """A shard restores its parts from here."""
        shard.open_part = partial(self.open_part, shard=shard.index, num_shards=shard.num_shards)

    def jobs(self) -> list[str]:
        """See `Snapshots.jobs`."""
        dropped = set(self._store.dropped_jobs())
        return [job for job in self._store.jobs() if job not in dropped or self._store.lasting(job)]

    def saved(self, job: str) -> Iterator[SavedJob]:
        """See `Snapshots.saved`; what cannot be used is said, and passed over.

        Files of shards are looked at by those who read them, for they may lie elsewhere.
        """
        for name, manifest in self._store.newest_first(job, lasting=True):
            try:
                if isinstance(manifest, SnapshotUnusable):
                    raise manifest
                yield self._saved(job, name, manifest)
            except SnapshotUnusable as error:
                logger.error("job %s: %s", job, error)

    def _saved(self, job: str, name: str, manifest: Manifest) -> SavedJob:
        records = {record.name: record for record in manifest.files}
        of_worker = {worker: records.get(worker_file(worker)) for worker in manifest.workers}
        blobs = {f"{SAVED}/{worker}": record for worker, record in of_worker.items() if record is not None}
        if FINAL_FILE in records:
            blobs["final"] = records[FINAL_FILE]
        total = sum(record.bytes for record in blobs.values())
        if total > MAX_SAVED_BYTES:
            raise SnapshotCorrupt(
                f"{self._store.where(job, name)}: what workers have beside tables is {total} bytes; at most "
                f"{MAX_SAVED_BYTES} are taken"
            )
        return SavedJob(
            snapshot=name,
            job=manifest.job,
            tables=manifest.tables,
            clocks=manifest.clocks,
            workers={worker: known.lease_s for worker, known in manifest.workers.items()},
            shares=manifest.shares,
            states={key: self._blob(job, name, record) for key, record in blobs.items()},
            ended=manifest.ended,
        )

    def _blob(self, job: str, snapshot: str, record: FileRecord) -> bytes:
        self._store.check(job, snapshot, record)
        with self._store.local(job, snapshot, record.name) as path, path.open("rb") as opened:
            return opened.read(record.bytes)

    @contextmanager
    def open_part(
        self, job: str, snapshot: str, tables: Sequence[TableSpec], *, shard: int, num_shards: int
    ) -> Iterator[ReadTable]:
        """What a shard of so many holds of a job, whatever number of shards has written it.

        All files that it reads are compared with what was written, each time: disks forget. All elements of
        all tables are looked for, and no memory is taken for them.

        Yields:
            What reads a table, while the block lasts.

        Raises:
            SnapshotUnusable, SnapshotMismatch: it cannot be read, or is of other tables.
        """
        manifest = self._store.manifest(job, snapshot)
        for spec in tables:
            _check_table(manifest, spec)
        names = _files(manifest, shard, num_shards)
        for record in manifest.files:
            if record.name in names:
                self._store.check(job, snapshot, record)
        readers = {spec.number: TableReader(spec, num_workers=manifest.job.num_workers) for spec in tables}
        with ExitStack() as opened:
            for name in names:
                path = opened.enter_context(self._store.local(job, snapshot, name))
                where = self._store.where(job, snapshot, name)
                _take(TensorFile(path, where), where, name, readers)
            for spec in tables:
                readers[spec.number].check(Plan(spec, num_shards), shard)
            yield lambda plan, spec: TableState(cells=dict(readers[spec.number].shard(plan, shard)))


def _files(manifest: Manifest, shard: int, num_shards: int) -> list[str]:
    """Those that a shard of so many reads: its own, which others may not see; all, if parts were others."""
    own = range(shard, shard + 1)
    shards = own if manifest.num_shards == num_shards else range(manifest.num_shards)
    return [shard_file(number, manifest.num_shards) for number in shards]


def _take(file: TensorFile, where: str, name: str, readers: dict[int, TableReader]) -> None:
    """Gives each reader what a file has of its table."""
    try:
        facts = Field(read(file.facts.get(FACTS, ""), FACTS)).form(("tables",))
        found = {}
        for table in facts["tables"].entries(MAX_TABLES):
            found[table.form(("table", "partitions", "hyper"))["table"].whole(MAX_TABLES - 1)] = table
        for number, reader in readers.items():
            if number not in found:
                raise SnapshotCorrupt(f"{where} says nothing of table {number}", file=name)
            reader.take(file, found[number])
    except FieldInvalid as error:
        raise SnapshotCorrupt(f"{where}: {error}", file=name, field=error.field) from None


def _check_table(manifest: Manifest, spec: TableSpec) -> None:
    """Whether the snapshot is of this table."""
    if spec.number >= len(manifest.tables):
        raise SnapshotMismatch(f"the snapshot has {len(manifest.tables)} tables, not {spec.number + 1}")
    try:
        check_same(manifest.tables[spec.number], spec)
    except TableMismatch as error:
        facts = error.facts
        raise SnapshotMismatch(
            f"this snapshot is of another model: {facts['what']} of table {spec.number}: it has "
            f"{facts['expected']}, the job has {facts['got']}",
            **facts,
        ) from None
