"""The policy of snapshots: when they are taken, and how many are kept, as a person typed it, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ps_wire.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """The rule that says when snapshots are taken, and how many are kept.

    Attributes:
        every_steps: of a job, by the fastest of its workers; 0: not by steps.
        every_s: seconds; 0: not by time.
        keep: of each job, the last ones.
    """

    every_steps: int = 0
    every_s: float = 0.0
    keep: int = 3


NO_SNAPSHOTS = SnapshotPolicy()


def parse_every(text: str) -> tuple[int, float]:
    """`500steps`, `30s`, `5m` or `1h` as (steps, seconds), one of which is 0.

    Raises:
        UsageError: it is anything else, or 0.
    """
    match = re.fullmatch(r"(\d{1,9})\s*(steps|s|m|h)", text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--snapshot-every {text!r}: write 500steps, 30s, 5m or 1h")
    count = int(match[1])
    if match[2] == "steps":
        return count, 0.0
    return 0, count * {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def policy_of(every: str | None, keep: int) -> SnapshotPolicy:
    """The policy of these options. Raises UsageError: see `parse_every`."""
    steps, seconds = parse_every(every) if every is not None else (0, 0.0)
    return SnapshotPolicy(every_steps=steps, every_s=seconds, keep=keep)


def state_dir_in(snapshot_dir: str, shard: int) -> Path | None:
    """The folder for a shard's own state in that of snapshots; None: they are on no local disk."""
    if "://" in snapshot_dir and not snapshot_dir.startswith("file://"):
        return None
    return Path(snapshot_dir.removeprefix("file://")) / f".state-{shard}"
