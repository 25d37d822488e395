"""The timetable of a schedule: which rank does which forward and backward when, and how long it is idle.

The order of gpipe and 1f1b is their published rule; that of schedules with several stages on a rank is asked
of torch. Time is virtual: an action begins when its rank has ended the one before and what it needs is there.

It must not know models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ps_wire.errors import PipelineError
from ps_worker.pipeline.schedules import Schedule

FORWARD, BACKWARD = "F", "B"
TO_INPUT, TO_WEIGHTS = "I", "W"  # the halves of a backward, where a schedule takes them apart
# Of torch's actions, by their names: the values are numbers in one release, and letters in another.
KINDS = {
    "FORWARD": FORWARD,
    "FULL_BACKWARD": BACKWARD,
    "BACKWARD_INPUT": TO_INPUT,
    "BACKWARD_WEIGHT": TO_WEIGHTS,
}


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """A forward, a backward or half of one.

    Attributes:
        stage: whose.
        kind: `F`, `B`, or of its halves `I` and `W`.
        microbatch: which.
    """

    stage: int
    kind: str
    microbatch: int


@dataclass(frozen=True, slots=True)
class Timed:
    """An action with its times."""

    action: Action
    begin: float
    end: float


Order = tuple[tuple[Action, ...], ...]


def gpipe(stages: int, microbatches: int) -> Order:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return tuple(
        tuple(Action(stage, kind, it) for kind in (FORWARD, BACKWARD) for it in range(microbatches))
        for stage in range(stages)
    )


def one_forward_one_backward(stages: int, microbatches: int) -> Order:
    """A forward for each stage behind, then a backward and a forward in turn (Narayanan et al. 2019)."""
    every = []
    for stage in range(stages):
        first = min(microbatches, stages - stage)
        actions = [Action(stage, FORWARD, it) for it in range(first)]
        for it in range(microbatches):
            actions.append(Action(stage, BACKWARD, it))
            if first + it < microbatches:
                actions.append(Action(stage, FORWARD, first + it))
        every.append(tuple(actions))
    return tuple(every)


RULES: Mapping[str, Callable[[int, int], Order]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def order_of(schedule: Schedule, name: str, *, ranks: int, stages: int, microbatches: int) -> Order:
    """The order of a schedule, which has a name in `SCHEDULES`.

    Raises:
        PipelineError: it does not take so many micro-batches.
    """
    if schedule.several:
        return of_torch(schedule.make, ranks, stages, microbatches)
    if name == "1f1b" and microbatches < stages:
        raise PipelineError(
            f"1f1b takes at least as many micro-batches as stages, got {microbatches} for {stages} stages: "
            "take more, or schedule gpipe"
        )
    return RULES[name](stages, microbatches)


def of_torch(schedule: Any, ranks: int, stages: int, microbatches: int) -> Order:
    """The order of a schedule of torch's that has several stages on each rank.

    Raises:
        PipelineError: it does not take so many stages or micro-batches.
    """
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # noqa: PLC0415 - for few

    try:
        rows = get_schedule_ops(schedule, ranks, microbatches, stages // ranks)
    except (ValueError, AssertionError) as error:
        raise PipelineError(f"{schedule.__name__}, {ranks} ranks, {stages} stages: {error}") from error
    return tuple(
        tuple(
            Action(it.stage_index, KINDS[it.computation_type.name], it.microbatch_index)
            for it in row
            if it is not None and it.computation_type.name in KINDS and it.microbatch_index is not None
        )
        for row in rows
    )


def timed(order: Order, duration: Callable[[Action], float]) -> tuple[tuple[Timed, ...], ...]:
    """Each rank's actions with their times.

    Raises:
        PipelineError: an action waits for one that never comes.
    """
    last = max(action.stage for actions in order for action in actions)
    ended: dict[Action, float] = {}
    rows: list[list[Timed]] = [[] for _ in order]
    while any(len(row) < len(actions) for row, actions in zip(rows, order, strict=True)):
        moved = False
        for row, actions in zip(rows, order, strict=True):
            while len(row) < len(actions):
                action = actions[len(row)]
                ready = _ready(action, last, ended)
                if ready is None:
                    break
                begin = max(ready, row[-1].end if row else 0.0)
                row.append(Timed(action, begin, begin + duration(action)))
                ended[action] = row[-1].end
                moved = True
        if not moved:
            raise PipelineError("this order of forwards and backwards never ends: each waits for another")
    return tuple(map(tuple, rows))


def _ready(action: Action, last: int, ended: Mapping[Action, float]) -> float | None:
    """When what an action needs has ended; none while that is not known."""
    stage, it = action.stage, action.microbatch
    if action.kind == FORWARD:
        return 0.0 if stage == 0 else ended.get(Action(stage - 1, FORWARD, it))
    own = ended.get(Action(stage, TO_INPUT if action.kind == TO_WEIGHTS else FORWARD, it))
    if own is None or action.kind == TO_WEIGHTS or stage == last:
        return own
    behind = ended.get(Action(stage + 1, BACKWARD, it), ended.get(Action(stage + 1, TO_INPUT, it)))
    return None if behind is None else max(own, behind)


def ticks(order: Order) -> Callable[[Action], float]:
    """Durations in ticks: each action one, and a backward two where its halves are actions of their own."""
    halves = any(action.kind == TO_WEIGHTS for actions in order for action in actions)
    return lambda action: 2.0 if halves and action.kind == BACKWARD else 1.0


def idle_share(rows: Sequence[Sequence[Timed]]) -> float:
    """The bubble: the share of all ranks' time, until the last action ends, in which they do nothing."""
    end = max(row[-1].end for row in rows)
    busy = sum(it.end - it.begin for row in rows for it in row)
    return 1.0 - busy / (end * len(rows))


def formula(schedule: str, ranks: int, stages: int, microbatches: int) -> float | None:
    """The bubble of stages that take equally long, where it has a formula: (S-1)/(M+S-1).

    With v stages on each of R ranks it is (R-1)/(vM+R-1) (Narayanan et al. 2021).
    """
    if schedule not in {"gpipe", "1f1b", "interleaved1f1b"}:
        return None
    return (ranks - 1) / (stages // ranks * microbatches + ranks - 1)


def in_flight(order: Order) -> tuple[int, ...]:
    """Of each stage, how many micro-batches it has begun forward and not ended backward, at most."""
    most: dict[int, int] = {}
    for actions in order:
        now: dict[int, int] = {}
        for action in actions:
            step = {FORWARD: 1, BACKWARD: -1, TO_WEIGHTS: -1}.get(action.kind, 0)
            now[action.stage] = now.get(action.stage, 0) + step
            most[action.stage] = max(most.get(action.stage, 0), now[action.stage])
    return tuple(most[stage] for stage in sorted(most))
