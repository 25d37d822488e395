"""Profiles: the ways in which the runs of an experiment are disturbed, each with a name.

A profile is a straggler text, which `ps_wire.spec.stragglers` alone understands, and further arguments of the
script, such as those that skew its labels. What is drawn is drawn from the run's seed, the worker and the
step, so all models meet the same stragglers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from ps_lab.experiments.section import Section
from ps_wire.errors import UsageError
from ps_wire.spec import stragglers
from ps_wire.spec.stragglers import StragglerProfile

NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named way in which runs are disturbed.

    Attributes:
        name: as reports show it.
        straggler: who is slow, when and how; its seed is that of the run.
        arguments: of the script, added to those of every run.
    """

    name: str = NONE
    straggler: StragglerProfile = field(default_factory=StragglerProfile)
    arguments: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        """Nothing is done to the runs."""
        return not self.straggler.parts and not self.arguments

    def stragglers(self, seed: int) -> StragglerProfile:
        """The profile that the workers of a run are told, and a simulation reckons with.

        Raises:
            UsageError: the seed is too large for one of stragglers.
        """
        return replace(self.straggler, seed=seed)

    def to_json(self) -> dict[str, Any]:
        """As a table of an experiment has it."""
        return {"name": self.name, "straggler": str(self.straggler), "arguments": list(self.arguments)}

    def __str__(self) -> str:
        said = [self.straggler.meaning] if self.straggler.parts else []
        if self.arguments:
            said.append(f"the script also gets {' '.join(self.arguments)}")
        return "; ".join(said) or "nothing is disturbed"


def parse(values: object, *, where: str, num_workers: int) -> Profile:
    """The profile of a table.

    Args:
        values: what TOML has there.
        where: the table's key.
        num_workers: the smallest number of workers of the experiment, which must have those named.

    Raises:
        UsageError: it is none; the key is named.
    """
    section = Section(values, where=where, known=(entry.name for entry in fields(Profile)))
    profile = Profile(
        name=section.text("name"),
        straggler=_straggler(section) if "straggler" in section else StragglerProfile(),
        arguments=section.texts("arguments") if "arguments" in section else (),
    )
    largest = max((worker for part in profile.straggler.parts for worker in part.workers), default=0)
    if largest >= num_workers:
        raise section.refused("straggler", f"of workers below {num_workers}, the fewest of a run", largest)
    return profile


def _straggler(section: Section) -> StragglerProfile:
    key = section.key("straggler")
    try:
        found = stragglers.parse(section.text("straggler"))
    except UsageError as error:
        raise UsageError(f"{key}: {error.message}", key=key) from None
    if found.seed:
        raise UsageError(f"{key}: stragglers have the seed of their run: take seed= away", key=key)
    return found
