"""The outcome of one run, beside its records: how it ended, what was evaluated, what the servers counted.

Values, and their JSON. Times are unix times, so that they fit those of every process's records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ps_wire.errors import UsageError

FORMAT = 1


class Ending(StrEnum):
    """The end of a run: by itself, at a limit, or by an error."""

    FINISHED = "finished"  # by its stop rule, or its script's end
    FAILED = "failed"  # a process ended by itself that should not have


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One look at the weights on held-out data.

    Attributes:
        unix_s: when the weights were read.
        held_s: for how long the reader's cut held pushes back.
        values: metric and number.
    """

    unix_s: float
    held_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounts:
    """The servers' counts of one worker's pushes, per partition and summed.

    Attributes:
        worker: its number.
        received: pushes.
        applied: of them.
        dropped: that came too late.
        abstained: of which nothing was applied.
    """

    worker: int
    received: int
    applied: int
    dropped: int
    abstained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that was done to a run.

    Attributes:
        kind: as the profile names it.
        worker: to which it was done.
        unix_s: when.
    """

    kind: str
    worker: int
    unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of one run, as a file has it.

    Attributes:
        ending: how it ended.
        reason: in a sentence, of one that failed.
        started_unix_s: when its processes were started.
        ended_unix_s: when the last of them had ended.
        metrics: what the script logged last, mean over workers.
        evaluations: in order.
        counts: of the servers, by worker; none without servers.
        cpu_s: processor time by process, of servers in this run alone.
        other_cpu_s: that all other programs of the machine took meanwhile; None: not known.
        faults: in order.
    """

    ending: Ending
    reason: str = ""
    started_unix_s: float
    ended_unix_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[EvaluationPoint, ...] = ()
    counts: tuple[WorkerCounts, ...] = ()
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    other_cpu_s: float | None = None
    faults: tuple[Fault, ...] = ()


def encode(outcome: RunOutcome) -> str:
    """Its JSON; numbers that are none are the texts "nan", "inf" and "-inf"."""
    return json.dumps(_plain({"format": FORMAT, **asdict(outcome)}), indent=1, allow_nan=False)


def decode(text: str) -> RunOutcome:
    """Reads such a JSON.

    Raises:
        UsageError: it is none, or of another release.
    """
    try:
        values = json.loads(text)
        found = values.pop("format")
        if found != FORMAT:
            raise UsageError(f"format {found!r} is not {FORMAT}: another release wrote it")
        return RunOutcome(
            **{
                **values,
                "ending": Ending(values["ending"]),
                "metrics": _numbers(values["metrics"]),
                "evaluations": tuple(
                    EvaluationPoint(**{**point, "values": _numbers(point["values"])})
                    for point in values["evaluations"]
                ),
                "counts": tuple(WorkerCounts(**counts) for counts in values["counts"]),
                "faults": tuple(Fault(**fault) for fault in values["faults"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"this is no outcome of a run: {type(error).__name__}: {error}") from None


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
