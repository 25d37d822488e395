"""A shard's part of a snapshot, read from storage: of each table what this shard holds of it.

Blocks, as storage does. It must not know jobs, or what becomes of what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from ps_server.shard.state.codec import TableReader
from ps_server.shard.state.snapshot_writer import FACTS
from ps_server.shard.table.table_state import TableState
from ps_wire.errors import SnapshotCorrupt, SnapshotMismatch, TableMismatch
from ps_wire.snapshot.json_fields import Field, FieldInvalid, read
from ps_wire.snapshot.manifest import Manifest, shard_file
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.snapshot.tensors import TensorFile
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import MAX_TABLES, TableSpec, check_same

ReadTable: TypeAlias = Callable[[Plan, TableSpec], TableState]


class SnapshotReader:
    """A shard's reader of the snapshots in a folder, whatever number of shards has written them."""

    def __init__(self, store: SnapshotStore, *, shard: int, num_shards: int) -> None:
        """Reads for shard `shard` of `num_shards`."""
        self._store = store
        self._shard = shard
        self._num_shards = num_shards

    @contextmanager
    def open(self, job: str, snapshot: str, tables: Sequence[TableSpec]) -> Iterator[ReadTable]:
        """Reads what this shard holds of a job, whatever number of shards has written it.

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
        names = _files(manifest, self._shard, self._num_shards)
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
                readers[spec.number].check(Plan(spec, self._num_shards), self._shard)
            yield lambda plan, spec: TableState(cells=dict(readers[spec.number].shard(plan, self._shard)))


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
            reader.adopt(file, found[number])
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
