"""Inputs and outputs of the state machine of a partition. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One worker's push of one step.

    Attributes:
        worker: its number; contributions are summed in this order.
        incarnation: of the worker.
        step: its clock when it pushed.
        version: of the weights that the gradient was computed on.
        weight: in the mean (BSP).
        payload: opaque to the machine, see `gradient.gradient_of`; None abstains.
    """

    worker: int
    incarnation: int
    step: int
    version: int = 0
    weight: float = 1.0
    payload: object | None = None

    @property
    def abstains(self) -> bool:
        """Whether the worker's clock advances and nothing is applied."""
        return self.payload is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A worker asks for weights at its clock, in a codec. `asked_s` is the caller's clock, in seconds.

    With `timed` its answer says how long it waited.
    """

    worker: int
    incarnation: int
    clock: int
    asked_s: float = 0.0
    codec: int = 0
    timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Average `contributions` (rank order, none abstains), scale the mean, take one optimizer step."""

    step: int
    contributions: tuple[Contribution, ...]
    scale: float
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOutcome:
    """The fate of a push, as far as it is known when the push is acknowledged.

    Attributes:
        gap: the clock gap that it made.
        version: at which it was applied; in `bsp` at which it will be when its step closes. None: it is not
            applied, or with backup workers nobody has chosen yet.
        dropped: it came too late.
        abstained: nothing of it is applied, since it has nothing, or nothing finite.
    """

    gap: int
    version: int | None = None
    dropped: bool = False
    abstained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The push of `step` is accounted for: it will never be applied again.

    Two that acknowledge the same push are equal: `outcome` is None for one that came again.
    """

    worker: int
    step: int
    outcome: PushOutcome | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Send the weights of `version` to those who asked, with the members' clocks as they are by now.

    With backup workers it may be an older version than the newest.
    """

    pulls: tuple[Pull, ...]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Every member has pushed `step`: it may be decided. Given again when members change before that."""

    step: int
    workers: frozenset[int]


Action: TypeAlias = Apply | Ack | Answer | Complete


@dataclass(slots=True)
class Ledger:
    """The counts of one worker's pushes and pulls here, over all its incarnations. A plain record."""

    received: int = 0
    applied: int = 0
    dropped: int = 0
    abstained: int = 0
    duplicates: int = 0
    refused: int = 0
    max_gap: int = 0
    gate_wait_s: float = 0.0
    missed: int = 0  # steps that it skipped, having come too late for one before them
