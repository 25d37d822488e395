"""Snapshots on one shard: its part of those that are taken, and of those that are restored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ps_server.log import logger
from ps_server.shard_table import ShardTable
from ps_server.snapshot_saving import Saving
from ps_wire.errors import (
    ConfigurationRefused,
    SnapshotFailed,
    SnapshotMissing,
)
from ps_wire.snapshot import MANIFEST, FileRecord, parse
from ps_wire.snapshot_store import SnapshotStore


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

    def _places(self) -> SnapshotStore:
        if self.store is None:
            raise ConfigurationRefused(
                f"shard {self._shard} has no place for snapshots: start it with --snapshot-dir"
            )
        return self.store
