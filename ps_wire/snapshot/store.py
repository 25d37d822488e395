"""The place of snapshots: a local folder, or any other place that fsspec can reach (s3://..., gs://...).

On a local disk each file is written under another name, made durable, renamed, and its folder made durable.
Elsewhere a file is there when it is whole, and each snapshot has a folder of its own. In both the manifest
comes last: whatever dies when, a snapshot is complete or does not exist.

It must not know what the files hold. Everything blocks; nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ps_wire.errors import (
    SnapshotCorrupt,
    SnapshotFailed,
    SnapshotMissing,
    SnapshotUnusable,
    UsageError,
)
from ps_wire.snapshot.manifest import MANIFEST, NAME, FileRecord, Manifest, parse
from ps_wire.snapshot.writing import UNFINISHED, Writing, why

KEPT_FREE = 0.1  # of a disk, that peers cannot fill
MAX_SNAPSHOTS = 1024  # of a job, to which peers can add
MAX_NUMBER = 99_999_999  # that names have room for
AHEAD = 1000  # snapshots that servers may take while one is brought, which stays the newest
READ_BYTES = 4 << 20  # at once; also what one message carries
DROPPED, MARK = ".dropped", "mark"  # DROPPED/JOB/MARK says of a dropped job which snapshot was its last
NUMBER = re.compile(rb"[0-9]{1,8}\n")


def number_of(name: str) -> int:
    """The number that a snapshot's name begins with; it grows."""
    return int(name[:8])


def _newest(names: Iterable[str]) -> int:
    return max(map(number_of, names), default=0)


class SnapshotStore:
    """Snapshots of all jobs under one URL. Thread-safe."""

    def __init__(self, url: str) -> None:
        """Looks at nothing yet.

        Raises:
            UsageError: there is no such kind of URL, or what it needs is not installed.
        """
        self.url = url.rstrip("/")
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"--snapshot-dir {url}: {error}") from None
        self._root = str(root).rstrip("/")
        self._local = isinstance(self._files, LocalFileSystem)

    # -- what there is ---------------------------------------------------------------------------------

    def jobs(self) -> list[str]:
        """Jobs that have a folder, dropped ones too."""
        return sorted(name for name in self._folders(self._root) if not name.startswith("."))

    def names(self, job: str) -> list[str]:
        """Names of a job's snapshots that have a manifest, the oldest first. Raises `SnapshotFailed`."""
        return [name for name in self._all(job) if self._has_manifest(job, name)]

    def _has_manifest(self, job: str, name: str) -> bool:
        """Storage that does not answer is no "no": a whole snapshot would count as one that was given up."""
        try:
            self._files.info(self._path(job, name, MANIFEST))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except Exception as error:
            where = self.where(job, name, MANIFEST)
            raise SnapshotFailed(f"cannot look for {where}: {why(error)}") from error
        return True

    def _all(self, job: str) -> list[str]:
        return sorted(name for name in self._folders(self._path(job)) if NAME.fullmatch(name))

    def _folders(self, path: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise SnapshotFailed(f"cannot list {path}: {why(error)}") from None
        return [
            entry["name"].rstrip("/").rsplit("/", 1)[-1] for entry in entries if entry["type"] == "directory"
        ]

    def new_name(self, job: str) -> str:
        """A name for a snapshot that is taken: behind all complete ones, and before those that are brought.

        Raises:
            SnapshotFailed: there is no number left.
        """
        return self._name(job, self._last(job) + 1)

    def name_to_bring(self, job: str) -> str:
        """A name for a snapshot that comes from elsewhere, behind all that are there.

        Nothing is newer of what the servers take meanwhile, up to `AHEAD` of them: the job goes back to it
        however long it is on its way, and `keep_last` does not take it for one that was given up.

        Raises:
            SnapshotFailed: as `new_name`.
        """
        return self._name(job, max(_newest(self._all(job)) + 1, self._last(job) + AHEAD))

    def _last(self, job: str) -> int:
        """The number behind which the servers' next one is."""
        return max(_newest(self.names(job)), self.dropped(job))

    def _name(self, job: str, number: int) -> str:
        if number > MAX_NUMBER:
            raise SnapshotFailed(
                f"numbers of snapshots end at {MAX_NUMBER}, and {self.where(job, '')} has come there: delete "
                "its last ones, or take another --job"
            )
        return f"{number:08d}-{secrets.token_hex(4)}"

    def where(self, job: str, name: str, file: str = "") -> str:
        """A place, as people write it."""
        return "/".join(part for part in (self.url, job, name, file) if part)

    # -- jobs that were dropped ------------------------------------------------------------------------

    def drop(self, job: str) -> None:
        """Marks all snapshots that a job has by now: they stay, and it does not go on from them by itself.

        Raises:
            SnapshotFailed: the mark cannot be written, or a former one cannot be read.
        """
        number = max(_newest(self._all(job)), self.dropped(job))
        self.write(DROPPED, job, MARK, [f"{number}\n".encode()])

    def dropped_jobs(self) -> list[str]:
        """Jobs that were dropped once, and had snapshots."""
        return self._folders(self._path(DROPPED))

    def dropped(self, job: str) -> int:
        """The number of the last snapshot that the job had when it was dropped; 0: it never was.

        Raises:
            SnapshotFailed: that is not known: the mark cannot be read.
        """
        where = self.where(DROPPED, job, MARK)
        try:
            text = self._files.cat_file(self._path(DROPPED, job, MARK))
        except FileNotFoundError:
            return 0
        except Exception as error:
            raise SnapshotFailed(f"cannot read {where}: {why(error)}") from error
        if not NUMBER.fullmatch(text):
            raise SnapshotFailed(
                f"{where} is not the number of a snapshot: write there that of the last one that job {job} "
                "is not to go on from"
            )
        return int(text)

    def lasting(self, job: str) -> list[str]:
        """As `names`, without those that the job had when it was dropped."""
        dropped = self.dropped(job)
        return [name for name in self.names(job) if number_of(name) > dropped]

    # -- writing ---------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """To be asked before a peer's bytes are written: the last of a local disk is for the servers' own.

        Raises:
            SnapshotFailed: it is nearly full.
        """
        if self._local:
            disk = shutil.disk_usage(self._root)
            if disk.free < KEPT_FREE * disk.total:
                raise SnapshotFailed(
                    f"{self.url} has {disk.free} bytes free; where less than {KEPT_FREE:.0%} of the disk is, "
                    "no snapshot is brought there: make room"
                )

    def check_count(self, job: str, name: str) -> None:
        """To be asked before a peer's snapshot gets a folder: each is looked at when the job goes back.

        Raises:
            SnapshotFailed: there are too many already.
        """
        names = self._all(job)
        if len(names) >= MAX_SNAPSHOTS and name not in names:
            raise SnapshotFailed(
                f"{self.where(job, '')} has {len(names)} snapshots: no more are brought there, delete some"
            )

    def write(self, job: str, name: str, file: str, parts: Iterable[bytes | memoryview]) -> FileRecord:
        """Writes one file of a snapshot, durable on return.

        Args:
            job: whose snapshot.
            name: of the snapshot.
            file: its name in there.
            parts: of its contents, in order; bytes, or memory of them.

        Raises:
            SnapshotFailed: the disk is full, or anything else of the kind; nothing is left of the file.
        """
        writing = self.begin(job, name, file)
        try:
            for part in parts:
                writing.write(part)
            return writing.finish()
        except BaseException:
            writing.abandon()
            raise

    def begin(self, job: str, name: str, file: str) -> Writing:
        """As `write`, part by part: `finish` or `abandon` must follow. Raises `SnapshotFailed`."""
        whose = f"snapshot {self.where(job, name)}: cannot write {file}"
        return Writing(self._files, self._path(job, name, file), file, whose, local=self._local)

    def files(self, job: str, name: str) -> list[str]:
        """Names of the files of a snapshot, complete or not."""
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._path(job, name), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]
        return sorted(file for file in names if not file.endswith(UNFINISHED))

    def complete(self, job: str, name: str, manifest: Manifest) -> None:
        """Writes the manifest: from now on the snapshot exists.

        Raises:
            SnapshotFailed: it cannot be written, or could not be read again: there is too much of something.
        """
        text, where = manifest.text().encode(), self.where(job, name, MANIFEST)
        try:
            parse(text, where, job)
        except SnapshotUnusable as error:
            raise SnapshotFailed(f"it could not be read again: {error}") from None
        self.write(job, name, MANIFEST, [text])

    def keep_last(self, job: str, count: int, until: str) -> list[str]:
        """Deletes what is older than the last `count` complete snapshots, `until` being the newest of them.

        What is newer was brought meanwhile, or is being brought.

        Returns:
            Names of complete ones that were deleted; others had been given up.

        Raises:
            SnapshotFailed: one cannot be deleted.
        """
        complete = [name for name in self.names(job) if name <= until]
        kept, gone = complete[-count:], complete[:-count]
        unfinished = [name for name in self._all(job) if name not in complete and kept and name < kept[-1]]
        for name in [*gone, *unfinished]:
            self.delete(job, name)
        return gone

    def delete(self, job: str, name: str) -> None:
        """Deletes a snapshot, its manifest first. Raises `SnapshotFailed`."""
        try:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._path(job, name, MANIFEST))
            with suppress(FileNotFoundError):
                self._files.rm(self._path(job, name), recursive=True)
        except Exception as error:
            raise SnapshotFailed(f"cannot delete {self.where(job, name)}: {why(error)}") from error

    # -- reading ---------------------------------------------------------------------------------------

    def manifest(self, job: str, name: str) -> Manifest:
        """Reads a snapshot's manifest.

        Raises:
            SnapshotMissing: it does not exist, or never became complete.
            SnapshotFormatUnsupported, SnapshotCorrupt: see `snapshot.parse`; it may be another job's.
        """
        where = self.where(job, name, MANIFEST)
        try:
            text = self._files.cat_file(self._path(job, name, MANIFEST))
        except FileNotFoundError:
            raise SnapshotMissing(f"there is no snapshot {self.where(job, name)}") from None
        except Exception as error:
            raise SnapshotFailed(f"cannot read {where}: {why(error)}") from error
        return parse(text, where, job)

    def newest_first(
        self, job: str, *, lasting: bool = False
    ) -> Iterator[tuple[str, Manifest | SnapshotUnusable]]:
        """Snapshots of a job by name, each with its manifest, or why it has none that can be used.

        With `lasting` those are left out that the job had when it was dropped.
        """
        for name in reversed(self.lasting(job) if lasting else self.names(job)):
            try:
                yield name, self.manifest(job, name)
            except SnapshotUnusable as error:
                yield name, error

    def check(self, job: str, name: str, record: FileRecord) -> None:
        """Reads a file of a snapshot and compares it with what was written.

        Raises:
            SnapshotCorrupt: it is missing, truncated or another one; it is named.
        """
        where, digest, size = self.where(job, name, record.name), hashlib.sha256(), 0
        for part in self.read(job, name, record.name):
            digest.update(part)
            size += len(part)
        if size != record.bytes:
            raise SnapshotCorrupt(f"{where} has {size} bytes, {record.bytes} were written", file=record.name)
        if digest.hexdigest() != record.sha256:
            raise SnapshotCorrupt(f"{where} is not what was written: its checksum differs", file=record.name)

    def read(self, job: str, name: str, file: str) -> Iterator[bytes]:
        """A file in parts. Raises `SnapshotCorrupt`: it cannot be read."""
        try:
            with self._files.open(self._path(job, name, file), "rb") as opened:
                while part := opened.read(READ_BYTES):
                    yield part
        except FileNotFoundError:
            raise SnapshotCorrupt(f"{self.where(job, name, file)} is missing", file=file) from None
        except OSError as error:
            where = self.where(job, name, file)
            raise SnapshotCorrupt(f"{where} cannot be read: {why(error)}", file=file) from error

    def verify(self, job: str, name: str) -> Manifest:
        """Checks every file of a snapshot.

        Raises:
            SnapshotUnusable: as `manifest` and `check` say; where an older snapshot is whole, it is named.
        """
        try:
            manifest = self.manifest(job, name)
            for record in manifest.files:
                self.check(job, name, record)
        except SnapshotUnusable as error:
            before = self.valid_before(job, name)
            offer = f"; {self.where(job, before)} is valid" if before else "; no older one is valid"
            raise type(error)(error.message + offer, **error.facts) from None
        return manifest

    def valid_before(self, job: str, name: str) -> str | None:
        """The newest snapshot before this one all of whose files are what was written."""
        for before in reversed([other for other in self.names(job) if other < name]):
            with suppress(SnapshotUnusable):
                for record in self.manifest(job, before).files:
                    self.check(job, before, record)
                return before
        return None

    @contextmanager
    def local(self, job: str, name: str, file: str) -> Iterator[Path]:
        """A file of a snapshot on this host's disk, for as long as the block lasts.

        Raises:
            SnapshotCorrupt: it is missing.
        """
        path = self._path(job, name, file)
        try:
            if self._local:
                Path(path).stat()
                yield Path(path)
                return
            with TemporaryDirectory(prefix="ps-snapshot-") as folder:
                self._files.get_file(path, str(Path(folder, file)))
                yield Path(folder, file)
        except FileNotFoundError:
            raise SnapshotCorrupt(f"{self.where(job, name, file)} is missing", file=file) from None

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))
