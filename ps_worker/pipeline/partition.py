"""Where blocks are cut into stages: the contiguous split whose most expensive stage costs least.

It must not know models: costs are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ps_wire.errors import PipelineError


def partition(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """The first block of each stage, of blocks with these costs; the first is 0.

    The largest sum of a stage is as small as it can be. Of splits that are alike in that, the one with the
    least sum of squares is taken, so that the other stages are even, too; of those, the one that cuts first.

    Raises:
        PipelineError: there are more stages than blocks, or a cost is negative or not finite.
    """
    for index, cost in enumerate(costs):
        if not 0.0 <= cost < math.inf:
            raise PipelineError(f"the cost of block {index} must be >= 0 and finite, got {cost:g}")
    return cheapest(lambda begin, end, _: math.fsum(costs[begin:end]), len(costs), stages)


def cheapest(cost: Callable[[int, int, int], float], blocks: int, stages: int) -> tuple[int, ...]:
    """As `partition`, for costs that depend on the stage, too.

    Args:
        cost: of blocks [begin, end) as stage s.
        blocks: how many there are.
        stages: how many are wanted.
    """
    if stages < 1:
        raise PipelineError(f"there must be at least 1 stage, got {stages}", stages=stages)
    if stages > blocks:
        raise PipelineError(
            f"{stages} stages need as many blocks, and the model has {blocks}: take fewer stages",
            stages=stages,
            blocks=blocks,
        )
    known = {
        (begin, end, stage): cost(begin, end, stage)
        for stage in range(stages)
        for begin in range(stage, blocks - stages + stage + 1)
        for end in range(begin + 1, blocks - stages + stage + 2)
        if (begin == 0) == (stage == 0) and (end == blocks) == (stage == stages - 1)
    }
    largest = _best(known, blocks, stages, max, math.inf)[0]
    return _best(known, blocks, stages, lambda one, rest: one * one + rest, largest)[1]


def _best(
    known: dict[tuple[int, int, int], float],
    blocks: int,
    stages: int,
    together: Callable[[float, float], float],
    limit: float,
) -> tuple[float, tuple[int, ...]]:
    """The least value of a split in which no stage costs more than the limit, and its cuts.

    Args:
        known: the cost of each possible stage.
        blocks: in all.
        stages: in all.
        together: the value of a stage's cost and of the stages behind it.
        limit: of a stage's cost.
    """
    behind: dict[int, tuple[float, tuple[int, ...]]] = {blocks: (0.0, ())}
    for stage in reversed(range(stages)):
        here: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (begin, end, of), cost in known.items():
            if of == stage and end in behind and cost <= limit:
                value, cuts = behind[end]
                here[begin] = min(here.get(begin, (math.inf, ())), (together(cost, value), (begin, *cuts)))
        behind = here
    return behind[0]
