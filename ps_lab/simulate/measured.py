"""A recorded run with what was measured beside it: how it was disturbed, and what its servers took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_lab.compare import outcome as outcomes
from ps_lab.compare.results import Recording
from ps_lab.experiments import profiles
from ps_lab.simulate import records
from ps_wire.errors import UsageError
from ps_wire.spec.stragglers import StragglerProfile

CONFIG = "config.json"
RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run of a comparison, as its folder has it.

    Attributes:
        recordings: of its workers.
        num_shards: servers.
        stragglers: that it had, with its seed.
        server_cpu_s: processor time of all its servers.
    """

    recordings: tuple[Recording, ...]
    num_shards: int
    stragglers: StragglerProfile
    server_cpu_s: float

    @property
    def has_processor_times(self) -> bool:
        """Whether its workers have recorded theirs, and somebody measured that of the servers."""
        return self.server_cpu_s > 0.0 and all(
            step.cpu_s is not None for one in self.recordings for step in one.steps
        )


def read(folders: Sequence[Path]) -> tuple[tuple[Recording, ...], tuple[Measured, ...]]:
    """The records of some folders, and the runs of a comparison among these.

    Args:
        folders: of records (`PS_RECORD`), or of runs of a comparison.

    Raises:
        UsageError: one has no records, or what lies beside them is damaged.
    """
    recordings: list[Recording] = []
    runs: list[Measured] = []
    for folder in folders:
        inside = folder / "records"
        found = records.read(inside if inside.is_dir() else folder)
        recordings += found
        above = folder if inside.is_dir() else folder.parent
        if (above / CONFIG).is_file() and (above / RESULT).is_file():
            runs.append(_of_run(above, found))
    return tuple(recordings), tuple(runs)


def _of_run(folder: Path, found: tuple[Recording, ...]) -> Measured:
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        run = config["run"]
        profile = profiles.parse(run["profile"], where="profile", num_workers=run["workers"])
        outcome = outcomes.decode((folder / RESULT).read_text(encoding="utf-8"))
        served_s = sum(used_s for name, used_s in outcome.cpu_s.items() if name.startswith("server"))
        return Measured(
            recordings=found,
            num_shards=run["servers"],
            stragglers=profile.stragglers(run["seed"]),
            server_cpu_s=served_s,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder} is no run of a comparison: {type(error).__name__}: {error}") from None
