"""Options of snapshots as a person typed them, for servers in processes of a worker; not checked."""

from __future__ import annotations

from dataclasses import dataclass

KEEP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """The options of `ps-server` of the same names.

    Attributes:
        place: where snapshots are; None: there are none.
        every: how often they are taken; None: on demand.
        keep: of each job, the last ones.
    """

    place: str | None = None
    every: str | None = None
    keep: int = KEEP


NO_PLACE = SnapshotOptions()
