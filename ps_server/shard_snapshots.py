"""Snapshots on one shard: its part of those that are taken, and of those that are restored."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ps_server.log import logger
from ps_server.shard_table import ShardTable
from ps_server.snapshot_saving import FACTS, Saving
from ps_server.table_state import TableState
from ps_server.table_state_codec import TableReader
from ps_wire.errors import (
    ConfigurationRefused,
    SnapshotCorrupt,
    SnapshotFailed,
    SnapshotMismatch,
    SnapshotMissing,
    TableMismatch,
)
from ps_wire.plan import Plan
from ps_wire.snapshot import MANIFEST, FileRecord, Manifest, parse, shard_file, table_from_json
from ps_wire.snapshot_store import SnapshotStore
from ps_wire.snapshot_tensors import TensorFile
from ps_wire.table import TableSpec, check_same


class ShardSnapshots:
    """See the module's docstring. Thread-safe.

    Attributes:
        store: where this shard's are; None: it was started without --snapshot-dir.
    """

    def __init__(self, shard: int, num_shards: int, table_of: Callable[[str, int], ShardTable]) -> None:
        """Takes a way to a job's tables."""
        self.store: SnapshotStore | None = None
        self._shard = shard
        self._num_shards = num_shards
        self._table_of = table_of
        self._lock = threading.Lock()
        self._savings: dict[str, Saving] = {}
        self._found_whole = ("", "")  # job, snapshot: the last one whose files were compared

    def save(self, job: str, snapshot: str, number: int, clocks: Mapping[int, Mapping[int, int]]) -> None:
        """Begins to save a job; an earlier snapshot of it that is under way is given up.

        Raises:
            ConfigurationRefused: this shard has no --snapshot-dir.
            CutAborted: see `Saving.arm`.
        """
        tables = {table: self._table_of(job, table) for table in clocks}
        saving = Saving(
            self._places(),
            job=job,
            snapshot=snapshot,
            number=number,
            shard=self._shard,
            num_shards=self._num_shards,
            tables=tables,
        )
        self.end(job)
        with self._lock:
            self._savings[job] = saving
        saving.arm(clocks)

    def figures(self, job: str, number: int) -> tuple[int, int, int, FileRecord | None, str]:
        """See `Saving.figures`."""
        with self._lock:
            saving = self._savings.get(job)
        if saving is None or saving.number != number:
            raise SnapshotFailed(f"shard {self._shard} takes no such snapshot of job {job}")
        return saving.figures()

    def end(self, job: str, *, snapshot: str = "", manifest: bytes = b"", keep: int = 1) -> None:
        """See `Saving.end`; a complete snapshot gets its manifest here, too, where storage is not shared."""
        with self._lock:
            saving = self._savings.pop(job, None)
        if saving is not None:
            saving.end()
        if not manifest or self.store is None:
            return
        try:
            self.store.manifest(job, snapshot)
        except SnapshotMissing:
            self.store.complete(job, snapshot, parse(manifest, MANIFEST))
            for name in self.store.keep_last(job, keep):
                logger.info("job %s: snapshot %s deleted", job, name)

    def read_part(self, job: str, snapshot: str, plan: Plan, spec: TableSpec) -> TableState:
        """This shard's part of a table, from what all shards of then have written.

        Raises:
            SnapshotUnusable: a file is missing, or not what was written.
            SnapshotMismatch: it is a snapshot of another table; the first difference is named.
        """
        store = self._places()
        manifest = self._checked(store, job, snapshot)
        _check_table(manifest, spec)
        shards = range(manifest.num_shards)
        if manifest.num_shards == plan.num_shards:
            shards = range(self._shard, self._shard + 1)
        with ExitStack() as opened:
            sources = []
            for shard in shards:
                name = shard_file(shard, manifest.num_shards)
                path = opened.enter_context(store.local(job, snapshot, name))
                sources.append(_source(path, store.where(job, snapshot, name), spec.number))
            cells = dict(TableReader(spec, sources).shard(plan, self._shard))
        return TableState(cells=cells)

    def _checked(self, store: SnapshotStore, job: str, snapshot: str) -> Manifest:
        """Its manifest, once the files that this shard reads were found to be what was written."""
        manifest = store.manifest(job, snapshot)
        mine = {shard_file(shard, manifest.num_shards) for shard in range(manifest.num_shards)}
        if manifest.num_shards == self._num_shards:
            mine = {shard_file(self._shard, manifest.num_shards)}
        if (job, snapshot) != self._found_whole:
            for record in manifest.files:
                if record.name in mine:
                    store.check(job, snapshot, record)
            self._found_whole = job, snapshot
        return manifest

    def _places(self) -> SnapshotStore:
        if self.store is None:
            raise ConfigurationRefused(
                f"shard {self._shard} has no place for snapshots: start it with --snapshot-dir"
            )
        return self.store


def _source(path: Path, where: str, table: int) -> tuple[TensorFile, Mapping[str, Any]]:
    file = TensorFile(path, where)
    try:
        tables = json.loads(file.facts[FACTS])["tables"]
        return file, next(facts for facts in tables if facts["table"] == table)
    except (KeyError, ValueError, StopIteration):
        raise SnapshotCorrupt(f"{where} says nothing of table {table}", file=path.name) from None


def _check_table(manifest: Manifest, spec: TableSpec) -> None:
    """Whether the snapshot is of this table."""
    if spec.number >= len(manifest.tables):
        raise SnapshotMismatch(f"the snapshot has {len(manifest.tables)} tables, not {spec.number + 1}")
    saved = table_from_json(manifest.tables[spec.number])
    try:
        check_same(saved, spec)
    except TableMismatch as error:
        facts = error.facts
        raise SnapshotMismatch(
            f"this snapshot is of another model: {facts['what']} of table {spec.number}: it has "
            f"{facts['expected']}, the job has {facts['got']}",
            **facts,
        ) from None
