"""The schedules of a pipeline: torch's own, by name, and which stages each rank runs under them.

It must not know models or sockets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ps_wire.errors import PipelineError

PIPELINING = "torch.distributed.pipelining"  # imports the compiler: 1.2 s of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule of torch's.

    Attributes:
        torchs: torch's class, by name.
        several: a rank runs several stages; else one.
        folded: a rank that runs two has one from each end; else each `ranks`-th.
    """

    torchs: str
    several: bool = False
    folded: bool = False

    @property
    def make(self) -> Callable[..., Any]:
        """Torch's class. Who makes none does not import what it needs."""
        pipelining: Any = importlib.import_module(PIPELINING)
        made: Callable[..., Any] = getattr(pipelining, self.torchs)
        return made

    def stages_of(self, rank: int, ranks: int, stages: int) -> list[int]:
        """The stages that a rank runs, ascending."""
        if self.folded:
            return [rank, stages - 1 - rank]
        return list(range(rank, stages, ranks))


SCHEDULES: Mapping[str, Schedule] = {
    "gpipe": Schedule(torchs="ScheduleGPipe"),
    "1f1b": Schedule(torchs="Schedule1F1B"),
    "interleaved1f1b": Schedule(torchs="ScheduleInterleaved1F1B", several=True),
    "zero-bubble": Schedule(torchs="ScheduleInterleavedZeroBubble", several=True),
    "zero-bubble-v": Schedule(torchs="ScheduleZBVZeroBubble", several=True, folded=True),
}


def schedule_of(name: str, *, ranks: int, stages: int, microbatches: int) -> Schedule:
    """The schedule of that name.

    Raises:
        PipelineError: there is none, or it does not fit the number of ranks, stages or micro-batches.
    """
    found = SCHEDULES.get(name)
    if found is None:
        raise PipelineError(f"schedule is one of {', '.join(SCHEDULES)}, got {name!r}")
    if microbatches < 1:
        raise PipelineError(f"microbatches must be >= 1, got {microbatches}")
    per_rank, rest = divmod(stages, ranks)
    if rest or per_rank < 1 or (not found.several and per_rank > 1):
        raise PipelineError(
            f"stages is {stages}, and this pipeline has {ranks} ranks (PS_PIPELINE_STAGES): schedule {name} "
            + ("takes a multiple of that" if found.several else "runs one stage on each")
        )
    if found.folded and per_rank != 2:
        raise PipelineError(f"schedule {name} runs two stages on each of {ranks} ranks, got stages={stages}")
    return found


def ranks_of(schedule: Schedule, ranks: int, stages: int) -> Sequence[int]:
    """The rank of each stage."""
    of = [0] * stages
    for rank in range(ranks):
        for stage in schedule.stages_of(rank, ranks, stages):
            of[stage] = rank
    return of
