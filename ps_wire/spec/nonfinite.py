"""A job's choice for gradients that hold NaN or infinity, as a person types it.

`docs/consistency.md` defines the three. This file knows how they are written, not how they are found.
"""

from __future__ import annotations

from enum import StrEnum

from ps_wire.spec.choice import choose


class NonFinite(StrEnum):
    """A choice of the job."""

    ERROR = "error"  # not applied, and its sender gets NonFiniteGradient
    SKIP = "skip"  # not applied, and counted as abstained
    APPLY = "apply"  # applied as it is


VALID = ", ".join(NonFinite)


def parse(text: str) -> NonFinite:
    """The choice that `text` names; else raises `UsageError`."""
    return choose(NonFinite, text, "nonfinite")
