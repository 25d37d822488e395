"""Positions: where a loader is in its epochs, and where a script is in its data. Plain numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ps_wire.errors import UsageError
from ps_wire.spec.epochs import EpochPiece
from ps_wire.text import parse_json

POSITIONS = "@positions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Between two batches of a loader: what the next one is.

    Attributes:
        epoch: of the iteration that is under way, else of the next one.
        offset: samples of the share that come before the next one.
        batches: of the share that come before it. Without an offset, where only their number is known.
        share: the piece that the iteration under way hands out; None: the next one asks for its share.
    """

    epoch: int
    offset: int = 0
    batches: int = 0
    share: EpochPiece | None = None

    def as_numbers(self) -> dict[str, Any]:
        """For a file: numbers, and None."""
        return asdict(self)

    @classmethod
    def from_numbers(cls, numbers: dict[str, Any]) -> Position:
        """Makes the position of which `as_numbers` was made.

        Raises:
            UsageError: it was made of something else.
        """
        try:
            piece = None if numbers["share"] is None else _piece(numbers["share"])
            epoch, offset, batches = (int(numbers[name]) for name in ("epoch", "offset", "batches"))
            return cls(epoch=epoch, offset=offset, batches=batches, share=piece)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"this is no position of a loader: {error}") from None


def _piece(numbers: Mapping[str, Any]) -> EpochPiece:
    epoch, place, ranks, count, first = (
        int(numbers[it]) for it in ("epoch", "place", "ranks", "count", "first")
    )
    own, left_over = bool(numbers["own"]), bool(numbers["left_over"])
    piece = EpochPiece(
        epoch=epoch, place=place, ranks=ranks, count=count, first=first, own=own, left_over=left_over
    )
    if not (piece.place >= 0 and 1 <= piece.ranks <= piece.count - piece.place and piece.first >= 0):
        raise ValueError(f"{numbers} is no piece of an epoch")
    return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of a script in its data, between two of its steps.

    Attributes:
        epoch: of its loop over `worker.epochs`, counted over all its loops; None where it has none.
        loaders: by number, in the order in which it made them.
        worker: whose script; -1: not known.
        steps: table -> steps that the script has taken.
        clocks: table -> steps of the worker; more, where the script still replays some.
        inside: it is at a batch; else its loop is about to begin the epoch, or has just ended.
        calls: that it has made together with the other workers.
        ends: the same, at the end of each loop over `worker.epochs` that is behind it.
        between: it is in none of them, behind the last of these: before `epoch`.
    """

    epoch: int | None
    loaders: tuple[Position, ...]
    worker: int = -1
    steps: Mapping[int, int] = field(default_factory=dict)
    clocks: Mapping[int, int] = field(default_factory=dict)
    inside: bool = True
    calls: int = 0
    ends: tuple[int, ...] = ()
    between: bool = False

    def steps_behind(
        self, mine: Mapping[int, int], counted: Mapping[int, int], *, lockstep: bool
    ) -> dict[int, int]:
        """Table -> steps that a worker takes again which goes on here.

        Args:
            mine: table -> the step at which it enters.
            counted: table -> steps that count of the worker whose position this is, where that one is gone.
            lockstep: steps are the job's, and not each worker's own.
        """
        if lockstep:  # one more than that has closed where a push of it had not come everywhere
            went_on = any(step > counted.get(table, 0) + 1 for table, step in mine.items())
            ends = mine if went_on or not counted else counted
        else:
            ends = counted or self.clocks
        return {table: max(ends.get(table, 0) - step, 0) for table, step in self.steps.items()}

    def pack(self) -> dict[str, torch.Tensor]:
        """As a tensor by name, to lie among others."""
        numbers = {
            "epoch": self.epoch,
            "loaders": [loader.as_numbers() for loader in self.loaders],
            "worker": self.worker,
            "steps": list(self.steps.items()),
            "clocks": list(self.clocks.items()),
            "inside": self.inside,
            "calls": self.calls,
            "ends": list(self.ends),
            "between": self.between,
        }
        text = json.dumps(numbers).encode()
        return {POSITIONS: torch.frombuffer(bytearray(text), dtype=torch.uint8)}

    @classmethod
    def unpack(cls, packed: Mapping[str, torch.Tensor]) -> Positions | None:
        """Makes what `pack` has packed; None where it is not there.

        Raises:
            UsageError: it is something else.
        """
        if POSITIONS not in packed:
            return None
        try:
            numbers = parse_json(bytes(packed[POSITIONS].tolist()))
            return cls(
                epoch=numbers["epoch"],
                loaders=tuple(Position.from_numbers(loader) for loader in numbers["loaders"]),
                worker=numbers["worker"],
                steps=dict(numbers["steps"]),
                clocks=dict(numbers["clocks"]),
                inside=numbers["inside"],
                calls=numbers["calls"],
                ends=tuple(numbers["ends"]),
                between=numbers["between"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no position of a script: {error}") from None
