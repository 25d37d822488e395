"""Snapshots on one shard: its part of those that are taken, and of those that are restored."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ps_server.log import logger
from ps_server.shard.state.snapshot_writer import Saving
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import (
    ConfigurationRefused,
    FrameMalformed,
    SnapshotCorrupt,
    SnapshotFailed,
    SnapshotMissing,
)
from ps_wire.snapshot.manifest import FILE, MANIFEST, MAX_MANIFEST_BYTES, NAME, FileRecord, parse
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.spec.address import check_job_name
from ps_wire.v1 import shard_pb2 as pb

MAX_ARRIVING = 16  # files of a job that are brought at once


class ShardSnapshots:
    """The snapshots that one shard takes and restores at the moment. Thread-safe.

    Attributes:
        store: where this shard's are; None: it was started without --snapshot-dir.
    """

    def __init__(
        self,
        shard: int,
        num_shards: int,
        table_of: Callable[[str, int], ShardTable],
        store: SnapshotStore | None,
    ) -> None:
        """Takes a way to a job's tables, and where snapshots are."""
        self.store = store
        self._shard = shard
        self._num_shards = num_shards
        self._table_of = table_of
        self._lock = threading.Lock()
        self._savings: dict[str, Saving] = {}
        self._arriving: Counter[str] = Counter()  # files, by job

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
            self.store.complete(job, snapshot, parse(manifest, MANIFEST, job))
            for name in self.store.keep_last(job, keep, snapshot):
                logger.info("job %s: snapshot %s deleted", job, name)

    @contextmanager
    def place(self, job: str) -> Iterator[None]:
        """A file of a job's snapshot may be brought while the block lasts.

        Raises:
            SnapshotFailed: too many of it are.
        """
        with self._lock:
            if self._arriving[job] >= MAX_ARRIVING:
                raise SnapshotFailed(
                    f"{MAX_ARRIVING} files of snapshots of job {job[:64]!r} are being brought: wait for one"
                )
            self._arriving[job] += 1
        try:
            yield
        finally:
            with self._lock:
                self._arriving[job] -= 1
                self._arriving += Counter()  # without those that are at 0

    def arrive(self, file: pb.SnapshotFile) -> Arriving:
        """A file of a snapshot is brought from elsewhere.

        Raises:
            FrameMalformed: its name is none of ours.
            SnapshotFailed: the job has too many snapshots.
        """
        _check_name(file, FILE)
        store = self._places()
        store.check_count(file.job, file.snapshot)
        return Arriving(store, file)

    def files(self, file: pb.SnapshotFile) -> list[str]:
        """Files of a snapshot that are here."""
        _check_name(file, re.compile(""))
        return self._places().files(file.job, file.snapshot)

    def _places(self) -> SnapshotStore:
        if self.store is None:
            raise ConfigurationRefused(
                f"shard {self._shard} has no place for snapshots: start it with --snapshot-dir"
            )
        return self.store


class Arriving:
    """One file that is brought from elsewhere; it is kept once it is what it is said to be."""

    def __init__(self, store: SnapshotStore, file: pb.SnapshotFile) -> None:
        """Opens it."""
        self._file = file
        self._store = store
        self._manifest = bytearray() if file.name == MANIFEST else None
        self._writing = store.begin(file.job, file.snapshot, file.name)

    def receive(self, data: bytes) -> None:
        """More of it.

        Raises:
            SnapshotFailed: it cannot be written, or the disk is nearly full; `abandon` must follow, as after
                what `end` raises.
            FrameMalformed: no manifest is so long.
        """
        if self._manifest is not None:
            self._manifest += data
            if len(self._manifest) > MAX_MANIFEST_BYTES:
                raise FrameMalformed(f"{MANIFEST} is over {MAX_MANIFEST_BYTES} bytes")
        self._store.check_room()
        self._writing.write(data)

    def end(self) -> None:
        """All of it is here. A manifest is read, which takes many times its size: one at a time.

        Raises:
            SnapshotUnusable: it is not what it is said to be, or the manifest of another job.
        """
        if self._manifest is not None:
            parse(bytes(self._manifest), MANIFEST, self._file.job)
        if self._writing.sha256 != self._file.sha256:
            raise SnapshotCorrupt(f"{self._file.name} has changed on its way", file=self._file.name)
        self._writing.finish()

    def abandon(self) -> None:
        """The rest of it does not come."""
        self._writing.abandon()


def _check_name(file: pb.SnapshotFile, names: re.Pattern[str]) -> None:
    check_job_name(file.job)
    if not NAME.fullmatch(file.snapshot) or not names.match(file.name):
        raise FrameMalformed(f"{file.snapshot[:64]!r}, {file.name[:64]!r}: this is no file of a snapshot")
