"""State that lives outside tables (buffers, parameters without an optimizer), kept for those who join later.

Opaque bytes by job and name, on the coordinator. They are never looked into here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ps_wire.errors import FrameMalformed, JobUnknown, MemoryLimitExceeded

MAX_JOB_BYTES = 2 << 30
MAX_SAVED_BYTES = 4 * MAX_JOB_BYTES  # of a snapshot: what all workers had captured for it
MAX_NAMES = 256  # beside those of single workers
SAVED = "snapshot"  # a worker's own state, as a snapshot has it, is kept under this name and its number
CAPTURED = "cut"  # likewise what a worker captures for one, until it is written
NOTED = "note"  # likewise where a worker was last, as it has noted it


class StateStore:
    """Bytes by (job, name). Used on the event loop only."""

    def __init__(self) -> None:
        self._blobs: dict[str, dict[str, bytes]] = {}
        self._changes: dict[str, asyncio.Event] = {}
        self._arriving: Counter[str] = Counter()  # bytes of states that are not whole yet, by job

    @contextmanager
    def arriving(
        self, job: str, name: str, worker: int, size: int | None = None
    ) -> Iterator[Callable[[bytes], None]]:
        """A state that a worker puts in parts: gives what takes one. It is kept if the block ends in order.

        Args:
            job: whose.
            name: of the state.
            worker: who puts it.
            size: bytes of all parts, where it has been said: if fewer come, what was there stays.

        Limits are the job's, over all that it keeps and all that is under way. What a snapshot had of workers
        does not count: it was within them when it was captured. Positions that are noted have a limit of
        their own, as large.

        Raises:
            MemoryLimitExceeded: the job has too many names, or too many bytes.
            FrameMalformed: only the coordinator, or another worker, may put this name; or not all has come.
        """
        kind, _, number = name.partition("/")
        if kind == SAVED or (kind in (CAPTURED, NOTED) and number != str(worker)):
            raise FrameMalformed(f"worker {worker} may put no state {name!r}")
        parts = bytearray()

        def receive(part: bytes) -> None:
            if self._kept_bytes(job, name) + self._arriving[job] + len(part) > MAX_JOB_BYTES:
                raise MemoryLimitExceeded(
                    f"state {name!r} of job {job} is too large: its states, and those under way, are over "
                    f"{MAX_JOB_BYTES} bytes"
                )
            self._arriving[job] += len(part)
            parts.extend(part)

        try:
            self._check_names(job, name)
            yield receive
            if size is not None and len(parts) != size:
                raise FrameMalformed(f"of state {name!r} came {len(parts)} bytes, of {size}")
            self._check_names(job, name)  # others may have been put meanwhile
            self.put(job, name, bytes(parts))
        finally:
            self._arriving[job] -= len(parts)
            self._arriving += Counter()  # without jobs that have none

    def _kept_bytes(self, job: str, but: str) -> int:
        """Under other names that share its limit: notes stay there, and take no room from what is needed."""
        noted = _kind(but) == NOTED
        return sum(
            len(blob)
            for name, blob in self._blobs.get(job, {}).items()
            if name != but and _kind(name) != SAVED and (_kind(name) == NOTED) == noted
        )

    def _check_names(self, job: str, name: str) -> None:
        kept = {other for other in self._blobs.get(job, {}) if _kind(other) not in (SAVED, CAPTURED, NOTED)}
        if name not in kept and _kind(name) not in (CAPTURED, NOTED) and len(kept) >= MAX_NAMES:
            raise MemoryLimitExceeded(f"job {job} keeps {MAX_NAMES} states already")

    def put(self, job: str, name: str, blob: bytes) -> None:
        """Keeps `blob`, in place of what was there."""
        self._blobs.setdefault(job, {})[name] = blob
        self._changed(job)

    def get(self, job: str, name: str) -> bytes:
        """Gives what was put.

        Raises:
            JobUnknown: nothing was.
        """
        blob = self._blobs.get(job, {}).get(name)
        if blob is None:
            raise JobUnknown(f"job {job} keeps no state {name!r}", job=job, name=name)
        return blob

    def pop(self, job: str, name: str) -> bytes:
        """Gives what was put, and keeps it no more.

        Raises:
            JobUnknown: nothing was.
        """
        blob = self.get(job, name)
        del self._blobs[job][name]
        return blob

    def names(self, job: str) -> list[str]:
        """Of all that a job keeps."""
        return list(self._blobs.get(job, ()))

    def dump(self) -> dict[str, bytes]:
        """Everything, under the job's name, a slash and its own."""
        return {f"{job}/{name}": blob for job, blobs in self._blobs.items() for name, blob in blobs.items()}

    def load(self, blobs: Mapping[str, bytes]) -> None:
        """Keeps what was dumped."""
        for path, blob in blobs.items():
            job, _, name = path.partition("/")
            self.put(job, name, blob)

    def drop(self, job: str, *, but: str = "") -> None:
        """Forgets a job; `but`: not what lies under names that begin so."""
        blobs = self._blobs.pop(job, {})
        kept = {name: blob for name, blob in blobs.items() if but and name.startswith(but)}
        if kept:
            self._blobs[job] = kept
        self._changed(job)

    def reached(self, job: str, name: str, at_least: bytes) -> bool:
        """Whether a state was put that is not less than `at_least`, byte by byte."""
        blob = self._blobs.get(job, {}).get(name)
        return blob is not None and blob >= at_least

    async def change(self, job: str) -> None:
        """Waits until a state of the job is put, or the job forgotten."""
        await self._changes.setdefault(job, asyncio.Event()).wait()

    def _changed(self, job: str) -> None:
        event = self._changes.pop(job, None)
        if event is not None:
            event.set()


def _kind(name: str) -> str:
    return name.partition("/")[0]
