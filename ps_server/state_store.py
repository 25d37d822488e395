"""State that lives outside tables (buffers, parameters without an optimizer), kept for those who join later.

Opaque bytes by job and name, on the coordinator. They are never looked into here.
"""

from __future__ import annotations

from ps_wire.errors import JobUnknown, MemoryLimitExceeded

MAX_JOB_BYTES = 2 << 30
MAX_NAMES = 128


class StateStore:
    """Bytes by (job, name). Used on the event loop only."""

    def __init__(self) -> None:
        self._blobs: dict[str, dict[str, bytes]] = {}

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

    def get(self, job: str, name: str) -> bytes:
        """What was put.

        Raises:
            JobUnknown: nothing was.
        """
        blob = self._blobs.get(job, {}).get(name)
        if blob is None:
            raise JobUnknown(f"job {job} keeps no state {name!r}", job=job, name=name)
        return blob

    def drop(self, job: str) -> None:
        """Forgets a job."""
        self._blobs.pop(job, None)
