"""Consistency models as a person types them: parsed once, printed back the same.

`docs/consistency.md` defines them. This file knows how they are written, not how a gate works. Whoever asks
what a model is like asks its value, so that a new one answers everywhere:

    aggregates  a step is one optimizer step, on the mean of workers' gradients
    lockstep    every worker has a part in each step, and steps are the job's
    bounded     a worker's reads are stale, and bounded against the slowest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ps_wire.errors import ConsistencyInvalid

VALID = (
    "bsp, bsp:backup=B (B >= 1, a step does not wait for its B slowest workers), ssp:S (S >= 0, the bound on "
    "the clock gap), asp, asp:max_delay=R (staler pushes are dropped)"
)
MAX_DELAY = "max_delay="
BACKUP = "backup="


@dataclass(frozen=True, slots=True)
class BSP:
    """Bulk synchronous parallel (Valiant 1990): one optimizer step on the mean of all gradients.

    Attributes:
        backup: backup workers (Chen et al. 2016): a step of N workers closes with the first N - backup, at
            least one, and the others' gradients are dropped; 0: it waits for all.
    """

    backup: int = 0
    aggregates: ClassVar[bool] = True
    bounded: ClassVar[bool] = False

    @property
    def lockstep(self) -> bool:
        """Whether a step waits for all."""
        return not self.backup

    def __post_init__(self) -> None:
        if self.backup < 0:
            raise ConsistencyInvalid(f"bsp: backup must be >= 1, got {self.backup}", backup=self.backup)

    def __str__(self) -> str:
        return f"bsp:{BACKUP}{self.backup}" if self.backup else "bsp"


@dataclass(frozen=True, slots=True)
class SSP:
    """Stale synchronous parallel (Ho et al., NIPS 2013).

    Attributes:
        staleness: the bound s on the clock gap while computing, in steps.
    """

    staleness: int
    aggregates: ClassVar[bool] = False
    bounded: ClassVar[bool] = True
    lockstep: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ConsistencyInvalid(
                f"ssp: staleness must be >= 0, got {self.staleness}", staleness=self.staleness
            )

    def __str__(self) -> str:
        return f"ssp:{self.staleness}"


@dataclass(frozen=True, slots=True)
class ASP:
    """Asynchronous parallel (Recht et al., NIPS 2011): nobody ever waits at the gate.

    Attributes:
        max_delay: a push with a larger version staleness is dropped on that partition; None takes all.
    """

    max_delay: int | None = None
    aggregates: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    lockstep: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.max_delay is not None and self.max_delay < 0:
            raise ConsistencyInvalid(
                f"asp: max_delay must be >= 0, got {self.max_delay}", max_delay=self.max_delay
            )

    def __str__(self) -> str:
        return "asp" if self.max_delay is None else f"asp:{MAX_DELAY}{self.max_delay}"


Consistency: TypeAlias = BSP | SSP | ASP


def parse(text: str) -> Consistency:
    """The model that `text` names.

    Raises:
        ConsistencyInvalid: it names none, or has a bound that makes no sense; the valid ones are listed.
    """
    name, colon, bound = text.strip().partition(":")
    if name == "asp" and bound.startswith(MAX_DELAY):
        return ASP(_whole("asp: max_delay", bound.removeprefix(MAX_DELAY), text))
    if name == "bsp" and bound.startswith(BACKUP):
        backup = _whole("bsp: backup", bound.removeprefix(BACKUP), text)
        if backup < 1:
            raise ConsistencyInvalid(f"bsp: backup must be >= 1, got {backup} (bsp has none)", spec=text)
        return BSP(backup)
    if name == "bsp" and not colon:
        return BSP()
    if name == "asp" and not colon:
        return ASP()
    if name == "ssp" and colon:
        return SSP(_whole("ssp: the bound", bound, text))
    raise ConsistencyInvalid(f"unknown consistency {text!r}; valid are: {VALID}", spec=text)


def _whole(what: str, bound: str, text: str) -> int:
    digits = bound.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= 9:
        return int(bound)
    raise ConsistencyInvalid(f"{what} must be a whole number, got {bound!r}", spec=text)
