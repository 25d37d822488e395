"""Snapshots as who lets jobs go on needs them: the coordinator what a job is, a shard its part of a table.

Blocks, as storage does. It must not know what becomes of jobs: that is `recovery`'s affair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ps_server.log import logger
from ps_server.saved_job import SavedJob
from ps_server.shard import Shard
from ps_server.snapshot_saving import FACTS
from ps_server.state_store import SAVED
from ps_server.table_state import TableState
from ps_server.table_state_codec import TableReader
from ps_wire.errors import SnapshotCorrupt, SnapshotMismatch, SnapshotUnusable, TableMismatch
from ps_wire.plan import Plan
from ps_wire.snapshot import FINAL_FILE, Manifest, job_from_json, shard_file, table_from_json, worker_file
from ps_wire.snapshot_store import SnapshotStore
from ps_wire.snapshot_tensors import TensorFile
from ps_wire.table import TableSpec, check_same

LEASE_S = 10.0  # of workers in snapshots that do not say it


class SavedJobs:
    """What lies in a snapshot folder: `Snapshots`, and shards' parts."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store

    def give(self, shard: Shard) -> None:
        """A shard restores its parts from here."""
        shard.check_part = partial(self.check_part, shard=shard.index, num_shards=shard.num_shards)
        shard.read_part = partial(self.read_part, shard=shard.index)

    def jobs(self) -> list[str]:
        """See `Snapshots.jobs`."""
        return self._store.jobs()

    def saved(self, job: str) -> Iterator[SavedJob]:
        """See `Snapshots.saved`; what cannot be used is said, and passed over.

        Files of shards are looked at by those who read them, for they may lie elsewhere.
        """
        for name, manifest in self._store.newest_first(job):
            try:
                if isinstance(manifest, SnapshotUnusable):
                    raise manifest
                yield self._saved(job, name, manifest)
            except SnapshotUnusable as error:
                logger.error("job %s: %s", job, error)

    def _saved(self, job: str, name: str, manifest: Manifest) -> SavedJob:
        states: dict[str, bytes] = {}
        kept = {record.name for record in manifest.files}
        for worker in manifest.workers:
            if worker_file(worker) in kept:
                self._check(job, name, manifest, worker_file(worker))
                with self._store.local(job, name, worker_file(worker)) as path:
                    states[f"{SAVED}/{worker}"] = path.read_bytes()
        if FINAL_FILE in kept:
            self._check(job, name, manifest, FINAL_FILE)
            with self._store.local(job, name, FINAL_FILE) as path:
                states["final"] = path.read_bytes()
        return SavedJob(
            snapshot=name,
            job=job_from_json(manifest.job),
            tables=tuple(map(table_from_json, manifest.tables)),
            clocks=manifest.clocks,
            workers={it: known.get("lease_s", LEASE_S) for it, known in manifest.workers.items()},
            shares=manifest.shares,
            states=states,
            ended=manifest.ended,
        )

    def check_part(
        self, job: str, snapshot: str, tables: Sequence[TableSpec], *, shard: int, num_shards: int
    ) -> None:
        """Compares all that a shard of so many reads with what was written, each time: disks forget.

        Raises:
            SnapshotUnusable, SnapshotMismatch: as for `read_part`.
        """
        manifest = self._store.manifest(job, snapshot)
        for spec in tables:
            _check_table(manifest, spec)
        for name in _files(manifest, shard, num_shards):
            self._check(job, snapshot, manifest, name)

    def read_part(self, job: str, snapshot: str, plan: Plan, spec: TableSpec, shard: int) -> TableState:
        """What a shard of this plan holds of a table, whatever number of shards has written it.

        Files are as `check_part` has found them.

        Raises:
            SnapshotUnusable, SnapshotMismatch: it cannot be read, or is of another table.
        """
        manifest = self._store.manifest(job, snapshot)
        _check_table(manifest, spec)
        with ExitStack() as opened:
            sources = []
            for name in _files(manifest, shard, plan.num_shards):
                path = opened.enter_context(self._store.local(job, snapshot, name))
                sources.append(_source(path, self._store.where(job, snapshot, name), spec.number))
            return TableState(cells=dict(TableReader(spec, sources).shard(plan, shard)))

    def _check(self, job: str, snapshot: str, manifest: Manifest, name: str) -> None:
        """Compares a file with what was written."""
        records = [record for record in manifest.files if record.name == name]
        if not records:
            raise SnapshotCorrupt(f"{self._store.where(job, snapshot)} names no file {name}", file=name)
        self._store.check(job, snapshot, records[0])


def _files(manifest: Manifest, shard: int, num_shards: int) -> list[str]:
    """Those that a shard of so many reads: its own, which others may not see; all, if parts were others."""
    own = range(shard, shard + 1)
    shards = own if manifest.num_shards == num_shards else range(manifest.num_shards)
    return [shard_file(number, manifest.num_shards) for number in shards]


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
    try:
        check_same(table_from_json(manifest.tables[spec.number]), spec)
    except TableMismatch as error:
        facts = error.facts
        raise SnapshotMismatch(
            f"this snapshot is of another model: {facts['what']} of table {spec.number}: it has "
            f"{facts['expected']}, the job has {facts['got']}",
            **facts,
        ) from None
