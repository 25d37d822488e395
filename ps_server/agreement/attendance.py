"""Backup workers: who has pushed the open step of a table, as a shard sees it, and what is decided of it.

Pure values, of `tally`, which makes them on a shard, and `chooser`, which decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Late:
    """A worker whose last push came too late, and who asks for weights at this clock."""

    worker: int
    incarnation: int
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """The workers that have pushed the open step of one table, on one shard.

    Attributes:
        step: the open one: the first that is not chosen.
        ready: have pushed it on all partitions of the shard, abstentions included; some may have gone.
        members: live workers whose step it is.
        wanted: somebody has pushed it on a partition, or waits for a later one: it has to close some day.
        late: on all partitions of the shard.
    """

    step: int
    ready: frozenset[int] = frozenset()
    members: frozenset[int] = frozenset()
    wanted: bool = False
    late: frozenset[Late] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttendance:
    """A report about a table.

    Attributes:
        job: name.
        table: number in the job.
        opening: number of the order that opened the table: a table that is made again has another.
        report: of a shard.
    """

    job: str
    table: int
    opening: int
    report: Attendance


@dataclass(frozen=True, slots=True, kw_only=True)
class Choose:
    """A step takes the pushes of these workers and no others."""

    step: int
    workers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """A late worker's next step is this one, on every partition."""

    late: Late
    step: int


Choice: TypeAlias = Choose | CatchUp


def suffices(ready: frozenset[int], members: frozenset[int], backup: int, *, wanted: bool) -> bool:
    """Whether a step may take the pushes of `ready`: as many as it needs, or nobody else will push it."""
    if len(ready) >= max(1, len(ready | members) - backup):
        return True
    return wanted and members <= ready
