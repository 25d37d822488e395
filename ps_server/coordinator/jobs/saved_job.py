"""A saved job: the facts of a snapshot that let a job go on from it. Values; `recovery` uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ps_wire.snapshot.saved_epoch import SavedEpoch
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import spec_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedJob:
    """One valid snapshot of one job.

    Attributes:
        snapshot: its name, by which shards find their part.
        job: what it is.
        tables: by number.
        clocks: table -> worker -> its first step after the cut.
        workers: those who trained at the cut, with their leases in seconds: the job waits for them.
        shares: what epochs of loaders had come to.
        states: what workers keep outside tables: name -> bytes, as in the `StateStore`.
        ended: all had finished.
        num_shards: that wrote it; 0: not known.
    """

    snapshot: str
    job: spec_pb2.Job
    tables: tuple[TableSpec, ...]
    clocks: Mapping[int, Mapping[int, int]]
    workers: Mapping[int, float]
    shares: tuple[SavedEpoch, ...] = ()
    states: Mapping[str, bytes] = field(default_factory=dict)
    ended: bool = False
    num_shards: int = 0

    @property
    def step(self) -> int:
        """The largest step over tables and workers, for people."""
        return max((clock for clocks in self.clocks.values() for clock in clocks.values()), default=0)


class Snapshots(Protocol):
    """A place where snapshots are. Blocks."""

    def jobs(self) -> Iterable[str]:
        """Names of jobs that have snapshots to go on from: newer ones than when they were dropped."""
        ...

    def saved(self, job: str) -> Iterable[SavedJob]:
        """The valid ones of these, the newest first."""
        ...
