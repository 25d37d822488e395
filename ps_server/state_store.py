"""State that lives outside tables (buffers, parameters without an optimizer), kept for those who join later.

Opaque bytes by job and name, on the coordinator. They are never looked into here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ps_wire.errors import JobUnknown, MemoryLimitExceeded

MAX_JOB_BYTES = 2 << 30
MAX_NAMES = 256


class StateStore:
    """Bytes by (job, name). Used on the event loop only."""

    def __init__(self) -> None:
        self._blobs: dict[str, dict[str, bytes]] = {}
        self._changes: dict[str, asyncio.Event] = {}

    def room(self, job: str, name: str) -> int:
        """How many bytes may still be put under this name.

        Raises:
            MemoryLimitExceeded: the job has too many names.
        """
        blobs = self._blobs.get(job, {})
        if name not in blobs and len(blobs) >= MAX_NAMES:
            raise MemoryLimitExceeded(f"job {job} keeps {MAX_NAMES} states already")
        return MAX_JOB_BYTES - sum(len(blob) for other, blob in blobs.items() if other != name)

    def put(self, job: str, name: str, blob: bytes) -> None:
        """Keeps `blob`, in place of what was there."""
        self._blobs.setdefault(job, {})[name] = blob
        self._changed(job)

    def get(self, job: str, name: str) -> bytes:
        """What was put.

        Raises:
            JobUnknown: nothing was.
        """
        blob = self._blobs.get(job, {}).get(name)
        if blob is None:
            raise JobUnknown(f"job {job} keeps no state {name!r}", job=job, name=name)
        return blob

    def take(self, job: str, name: str) -> bytes:
        """What was put, which is not kept any more.

        Raises:
            JobUnknown: nothing was.
        """
        blob = self.get(job, name)
        del self._blobs[job][name]
        return blob

    def all(self) -> Iterator[tuple[str, str, bytes]]:
        """Everything: job, name, bytes."""
        for job, blobs in self._blobs.items():
            for name, blob in blobs.items():
                yield job, name, blob

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
