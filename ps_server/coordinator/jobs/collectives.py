"""Calls that all workers of a job make together: sums over workers, broadcasts, barriers. Pure.

The n-th call of each worker belongs together. A call is complete when everybody who is awaited has made
it, or stands beyond it; it is computed once, from those who are there then, in the order of their numbers.
Results are kept for who makes the call again: its answer was lost, or it takes steps again. Those of calls
that were made before the first step are kept as long as the job is, for those who begin their script later.

Nobody waits for one who joined in mid-run before it has made a call of those that come after the first step:
where it enters, the others may have to take a step first.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ps_wire.errors import FrameMalformed, JobMismatch, JobUnknown, PsError, facts_to_json, from_wire
from ps_wire.text import one_line

MAX_VALUES = 4096  # of a call
MAX_BLOB_BYTES = 32 << 10  # of a value that is broadcast
SHOWN = 300  # characters of a form, in an error
MAX_FORM = 4096  # characters that say which call it is
MAX_KEPT = 64
MAX_KEPT_OF_START = 16
MAX_NUMBER = 1 << 40
ABSENT = 0  # instead of an incarnation: of one who has not come

_REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda column: sum(column) / len(column),
    "sum": lambda column: float(sum(column)),
    "min": min,
    "max": max,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One worker's contribution to a call that all make together.

    Attributes:
        form: which call it is, the same on all workers, as people read it.
        op: "mean", "sum", "min", "max", "broadcast" or "barrier".
        source: whose value is broadcast.
        values: numbers to reduce, in an order that `form` says.
        blob: the value of the one whose is broadcast.
        begun: its worker has taken a step.
    """

    form: str
    op: str = "barrier"
    source: int = 0
    values: tuple[float, ...] = ()
    blob: bytes = b""
    begun: bool = False

    def __post_init__(self) -> None:
        if self.op not in (*_REDUCE, "broadcast", "barrier"):
            raise FrameMalformed(f"no operation {self.op[:32]!r} of workers together")
        for what, size, most in (
            ("characters of its form", len(self.form), MAX_FORM),
            ("values", len(self.values), MAX_VALUES),
            ("bytes", len(self.blob), MAX_BLOB_BYTES),
        ):
            if size > most:
                raise FrameMalformed(f"a call of workers together has {size} {what}, at most {most} may be")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """Of a call that is complete, the same for all: values, or why there are none."""

    form: str
    values: tuple[float, ...] = ()
    blob: bytes = b""
    error: PsError | None = None

    def check(self, number: int, part: Part) -> None:
        """For one who makes the call.

        Raises:
            PsError: there is no outcome.
            JobMismatch: it was another call.
        """
        if self.error is not None:
            raise self.error
        if part.form != self.form:
            raise _mismatch(number, "the others have made", self.form, "this worker makes", part.form)


@dataclass(slots=True)
class Collectives:
    """The calls of one job that all workers make together, in order. Not thread-safe."""

    _open: dict[int, dict[int, tuple[int, Part]]] = field(default_factory=dict)  # call, worker: incarnation
    _stands: dict[int, tuple[int, int]] = field(default_factory=dict)  # worker: incarnation, its next call
    _kept: dict[int, CallOutcome] = field(default_factory=dict)
    _of_start: dict[int, CallOutcome] = field(default_factory=dict)
    _next: int = 0  # behind all that are complete

    @property
    def next_open(self) -> int:
        """The call that who comes now makes first, where it does not know."""
        return min(self._open, default=self._next)

    def takes_part(self, worker: int, incarnation: int) -> bool:
        """Whether it has made a call where the others are."""
        return worker in self._stands and self._stands[worker][0] == incarnation

    def stands(self, worker: int, incarnation: int, number: int) -> None:
        """A worker says what its next call is, beside its calls: earlier ones do not wait for it."""
        known, before = self._stands.get(worker, (ABSENT, 0))
        if known != incarnation or number > before:
            self._stands[worker] = incarnation, min(number, MAX_NUMBER)

    def repeat(self, number: int, worker: int, incarnation: int) -> CallOutcome | None:
        """The outcome of a call that is complete, for one who makes it then: the next one waits for it.

        Not if it was made before the first step: its script has yet to come to where the others are.
        """
        if number in self._kept:
            self.stands(worker, incarnation, number + 1)
        return self.outcome(number)

    def outcome(self, number: int) -> CallOutcome | None:
        """Of a call that is complete, as long as it is kept."""
        return self._kept.get(number) or self._of_start.get(number)

    def bring(self, number: int, worker: int, incarnation: int, part: Part) -> None:
        """A worker makes a call; one that it waited for before waits for it no more.

        Raises:
            FrameMalformed: a number that no call has.
        """
        if not 0 <= number < MAX_NUMBER:
            raise FrameMalformed(f"no call of workers together has the number {number}")
        for other in [other for other, parts in self._open.items() if other != number and worker in parts]:
            self._take_out(other, worker)
        self._open.setdefault(number, {})[worker] = incarnation, part
        self.stands(worker, incarnation, number)

    def _take_out(self, number: int, worker: int) -> None:
        del self._open[number][worker]
        if not self._open[number]:
            del self._open[number]

    def waits(self, worker: int, incarnation: int) -> bool:
        """Whether it has made a call that is not complete."""
        return any(parts.get(worker, (ABSENT,))[0] == incarnation for parts in self._open.values())

    def settle(self, number: int, awaited: Mapping[int, int], *, at_least: int = 0) -> CallOutcome | None:
        """The outcome of a call, if everybody who is awaited has made it, or stands beyond it.

        Args:
            number: of the call.
            awaited: worker -> incarnation, or `ABSENT` of one who is to come.
            at_least: so many have to be there.
        """
        if (known := self.outcome(number)) is not None:
            return known
        if number not in self._open or self.missing(number, awaited) or len(awaited) < at_least:
            return None
        parts = {
            worker: part
            for worker, (incarnation, part) in sorted(self._open[number].items())
            if awaited.get(worker) == incarnation
        }
        if not parts:
            return None
        del self._open[number]
        made = _computed(number, parts)
        starting = not any(part.begun for part in parts.values())
        if starting and len(self._of_start) < MAX_KEPT_OF_START:
            self._of_start[number] = made
        else:
            self._kept[number] = made
            for oldest in list(self._kept)[:-MAX_KEPT]:
                del self._kept[oldest]
        self._next = max(self._next, number + 1)
        return made

    def missing(self, number: int, awaited: Mapping[int, int]) -> list[int]:
        """Who of those has yet to make a call, by number."""
        parts = self._open.get(number, {})
        return sorted(
            worker
            for worker, incarnation in awaited.items()
            if not (worker in parts and parts[worker][0] == incarnation)
            and not (self.takes_part(worker, incarnation) and self._stands[worker][1] > number)
        )

    def roll_back(self) -> None:
        """Workers go back to a snapshot: calls that come after it are made again."""
        self._open.clear()
        self._stands.clear()
        self._kept.clear()
        self._next = 0

    def clear(self) -> None:
        """The job is as if it had never been."""
        self.roll_back()
        self._of_start.clear()

    def dump(self) -> dict[str, Any]:
        """All of it but open calls, for JSON: those are made again."""
        return {
            "next": self._next,
            "stands": [[worker, *place] for worker, place in self._stands.items()],
            "kept": [[number, *_facts(made)] for number, made in self._kept.items()],
            "of_start": [[number, *_facts(made)] for number, made in self._of_start.items()],
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped."""
        self._next = facts["next"]
        self._stands = {worker: (incarnation, number) for worker, incarnation, number in facts["stands"]}
        self._kept = {number: _made_of(made) for number, *made in facts["kept"]}
        self._of_start = {number: _made_of(made) for number, *made in facts["of_start"]}


def _computed(number: int, parts: Mapping[int, Part]) -> CallOutcome:
    """From the parts of all who are there, by worker in ascending order."""
    first, part = next(iter(parts.items()))
    for worker, other in parts.items():
        if other.form != part.form or len(other.values) != len(part.values):
            error = _mismatch(
                number, f"worker {first} makes", part.form, f"worker {worker} makes", other.form
            )
            return CallOutcome(form=part.form, error=error)
    if part.op in _REDUCE:
        reduce = _REDUCE[part.op]
        columns = zip(*(other.values for other in parts.values()), strict=True)
        values = (math.nan if any(map(math.isnan, column)) else reduce(column) for column in columns)
        return CallOutcome(form=part.form, values=tuple(values))
    if part.op == "broadcast" and part.source not in parts:
        gone = JobUnknown(f"{part.form}: worker {part.source} is not there to give its value")
        return CallOutcome(form=part.form, error=gone)
    return CallOutcome(form=part.form, blob=parts[part.source].blob if part.op == "broadcast" else b"")


def _mismatch(number: int, one: str, expected: str, another: str, got: str) -> JobMismatch:
    return JobMismatch(
        f"call {number} of workers together: {one} {one_line(expected, SHOWN)}, {another} "
        f"{one_line(got, SHOWN)}; all workers make the same calls in the same order",
        what=f"call {number}",
        expected=expected[:SHOWN],
        got=got[:SHOWN],
    )


def _facts(made: CallOutcome) -> list[Any]:
    """For JSON, which has no NaN."""
    error = made.error
    return [
        made.form,
        struct.pack(f"<{len(made.values)}d", *made.values).hex(),
        made.blob.hex(),
        None if error is None else [type(error).__name__, error.message, facts_to_json(error)],
    ]


def _made_of(facts: Sequence[Any]) -> CallOutcome:
    form, values, blob, error = facts
    packed = bytes.fromhex(values)
    return CallOutcome(
        form=form,
        values=struct.unpack(f"<{len(packed) // 8}d", packed),
        blob=bytes.fromhex(blob),
        error=None if error is None else from_wire(*error),
    )
