"""The snapshots of each job that this process has seen taken: when, how large, how long it took.

Used on the event loop only. It must not know why one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFigures:
    """The last complete snapshot of a job.

    Attributes:
        age_s: since it was complete; where there was none, since this process first saw the job.
        step: of it; None: there was none.
        duration_s: that it took.
        nbytes: of it.
    """

    age_s: float
    step: int | None = None
    duration_s: float = 0.0
    nbytes: int = 0


class TakenSnapshots:
    """The last complete snapshot of each job."""

    def __init__(self) -> None:
        """None was seen."""
        self._taken: dict[str, tuple[float, SnapshotFigures]] = {}  # job -> since when, and what of it stays
        self._seen_s: dict[str, float] = {}

    def complete(self, job: str, *, step: int, duration_s: float, nbytes: int, now_s: float) -> None:
        """One is whole on all shards."""
        self._taken[job] = now_s, SnapshotFigures(age_s=0.0, step=step, duration_s=duration_s, nbytes=nbytes)

    def see(self, job: str, now_s: float) -> None:
        """The job is there."""
        self._seen_s.setdefault(job, now_s)

    def forget(self, job: str) -> None:
        """The job was dropped."""
        self._taken.pop(job, None)
        self._seen_s.pop(job, None)

    def figures(self, job: str, now_s: float) -> SnapshotFigures:
        """As they are now."""
        self.see(job, now_s)
        if job not in self._taken:
            return SnapshotFigures(age_s=now_s - self._seen_s[job])
        then_s, known = self._taken[job]
        return SnapshotFigures(
            age_s=now_s - then_s, step=known.step, duration_s=known.duration_s, nbytes=known.nbytes
        )
