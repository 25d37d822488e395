"""Snapshots as who lets jobs go on needs them: the coordinator what a job is, a shard its part of a table.

Blocks, as storage does. It must not know what becomes of jobs: that is `recovery`'s affair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

from google.protobuf.json_format import ParseDict

from ps_server.log import logger
from ps_server.saved_job import SavedJob
from ps_server.table_state import TableState
from ps_server.table_state_codec import TableReader
from ps_wire.errors import SnapshotUnusable
from ps_wire.messages import table_from_proto
from ps_wire.plan import Plan
from ps_wire.snapshot import Manifest, worker_file
from ps_wire.snapshot_store import SnapshotStore
from ps_wire.snapshot_tensors import TensorFile
from ps_wire.table import TableSpec
from ps_wire.v1 import spec_pb2

FACTS = "state"  # name of the facts in a shard's file
SAVED = "snapshot"  # a worker's own state is kept under this name and its number


class SavedJobs:
    """What lies in a snapshot folder: `Snapshots`, and shards' parts."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store

    def jobs(self) -> list[str]:
        """See `Snapshots.jobs`."""
        return self._store.jobs()

    def saved(self, job: str) -> Iterator[SavedJob]:
        """See `Snapshots.saved`; what cannot be used is said, and passed over."""
        for name, manifest in self._store.newest_first(job):
            try:
                if isinstance(manifest, SnapshotUnusable):
                    raise manifest
                self._store.verify(job, name)
                yield self._saved(job, name, manifest)
            except SnapshotUnusable as error:
                logger.error("job %s: %s", job, error)

    def _saved(self, job: str, name: str, manifest: Manifest) -> SavedJob:
        states: dict[str, bytes] = {}
        kept = {record.name for record in manifest.files}
        for worker in manifest.workers:
            if worker_file(worker) in kept:
                with self._store.local(job, name, worker_file(worker)) as path:
                    states[f"{SAVED}/{worker}"] = path.read_bytes()
        return SavedJob(
            snapshot=name,
            job=ParseDict(dict(manifest.job), spec_pb2.Job()),
            tables=tuple(table_from_proto(ParseDict(dict(it), spec_pb2.Table())) for it in manifest.tables),
            clocks=manifest.clocks,
            workers=frozenset(manifest.workers),
            states=states,
            ended=manifest.ended,
        )

    def read_part(self, job: str, snapshot: str, plan: Plan, spec: TableSpec, shard: int) -> TableState:
        """What a shard of this plan holds of a table, whatever number of shards has written it.

        Raises:
            SnapshotUnusable, SnapshotMismatch: it cannot be read, or is of another table.
        """
        manifest = self._store.manifest(job, snapshot)
        files = [record.name for record in manifest.files if record.name.startswith("shard-")]
        with ExitStack() as stack:
            opened = [
                TensorFile(stack.enter_context(self._store.local(job, snapshot, name)), name)
                for name in files
            ]
            tables = [json.loads(file.facts[FACTS])["tables"] for file in opened]
            sources = [
                (file, facts)
                for file, parts in zip(opened, tables, strict=True)
                for facts in parts
                if facts["table"] == spec.number
            ]
            reader = TableReader(spec, sources)
            return TableState(cells=dict(reader.shard(plan, shard)))
