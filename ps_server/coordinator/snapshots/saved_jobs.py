"""Saved jobs, as the coordinator lets them go on: what a job is, and what workers keep outside tables.

Blocks, as storage does. It must not know what becomes of jobs: that is `recovery`'s affair.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_server.coordinator.state_store import MAX_SAVED_BYTES, SAVED
from ps_server.rpc.complaints import Complaints
from ps_wire.errors import SnapshotCorrupt, SnapshotUnusable
from ps_wire.snapshot.manifest import FINAL_FILE, FileRecord, Manifest, worker_file
from ps_wire.snapshot.store import SnapshotStore


class SavedJobs:
    """The saved jobs in a snapshot folder; implements `Snapshots`."""

    def __init__(self, store: SnapshotStore, complaints: Complaints) -> None:
        """Takes the folder, and the log of what in it cannot be used: whoever asks has it said again."""
        self._store = store
        self._complaints = complaints

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
                self._complaints.say(logging.ERROR, f"job {job}", "%s", error)

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
            num_shards=manifest.num_shards,
        )

    def _blob(self, job: str, snapshot: str, record: FileRecord) -> bytes:
        self._store.check(job, snapshot, record)
        with self._store.local(job, snapshot, record.name) as path, path.open("rb") as opened:
            return opened.read(record.bytes)
