"""What a run that was interrupted has to end with.

Every worker has the epochs of a run that nobody disturbed, and both schedules stand where its epochs and its
steps are: the learning rate is that of their closed forms, to the last bits. Every sample of each epoch is
used once. The best checkpoint is of the best epoch, and whole.

Where the same workers took part in all steps of a `bsp` job, and alone under any consistency, it has the
steps, the bits of the weights and those of the best checkpoint of the run that nobody disturbed. Where a
worker of several was missing from some steps, the steps are other ones by design: what is left of its share
makes steps of its own. Then there are no fewer of them than without that, and no more than if no two workers
had ever taken part in one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import resumed
from .resume_plan import Plan, Way

EXTRA_STEPS = 2  # of each way: a half step that closes, and one that is broken off
JOINED_AGAIN = "joined again, as incarnation"  # a line of a worker
REL_TOL = 1e-9  # both schedules multiply the rate step by step, in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a run ended with.

    Attributes:
        workers: what each worker ended with last.
        checkpoint: the best one that a worker has saved.
        steps: of each process of a worker the lines of its steps, and those that say that it joins again.
        mixed: steps that closed otherwise than the job's workers have, by chance.
    """

    workers: Sequence[Mapping[str, Any]]
    checkpoint: Mapping[str, Any]
    steps: Sequence[Sequence[str]]
    mixed: int = 0

    @property
    def best(self) -> str:
        """The bits of the best checkpoint."""
        return resumed.digest(_model_of(self.checkpoint))


def check(plan: Plan, found: Ended, expected: Ended) -> None:
    """What every worker ended with is what it ends with where nobody disturbs it."""
    whole = expected.workers[0]
    trained = [it for it in found.workers if not it["ended"]]
    late = len(trained) < len(found.workers)  # one came when the job had ended: its rest stays unused
    check_checkpoint(found.checkpoint)
    check_steps(found.steps)
    for it in trained:
        assert it["bodies"][-1] == resumed.LAST, it
        for name in ("per_epoch", "seen"):
            assert it[name] == whole[name], (name, it[name], whole[name], it)
        assert math.isclose(it["lr"], resumed.rate(it["per_step"], it["per_epoch"]), rel_tol=REL_TOL), it
        for epoch, (used, unused) in it["used"].items():
            assert used == resumed.SAMPLES or late or found.mixed, (epoch, used, unused, it)
        if found.mixed or broken_off(plan, it):
            continue
        if plan.consistency == "bsp":
            assert it["per_step"] == it["looped"], it
        if plan.exact:
            for name in ("steps", "per_step", "lr", "weights"):
                assert it[name] == whole[name], (name, it[name], whole[name], it)
            assert found.best == expected.best, (found.checkpoint, expected.checkpoint)
    if plan.consistency == "bsp" and not found.mixed and not late:
        most = (whole["steps"] + EXTRA_STEPS * len(plan.ways)) * plan.num_workers
        steps = [it["steps"] for it in trained]  # one that joined in an epoch may be ahead, and end before
        assert whole["steps"] <= max(steps) <= most, (steps, whole["steps"], most)


def check_checkpoint(checkpoint: Mapping[str, Any]) -> None:
    """It is of the best epoch, and its loss is that of its weights."""
    assert checkpoint["epoch"] == resumed.IMPROVES, checkpoint
    assert torch.equal(checkpoint["loss"], resumed.validate(_model_of(checkpoint))), checkpoint


def _model_of(checkpoint: Mapping[str, Any]) -> torch.nn.Module:
    model = resumed.make()
    model.load_state_dict(checkpoint["model"])
    return model


def check_steps(processes: Iterable[Sequence[str]]) -> None:
    """The schedule by steps advances once in each step of a worker, under every consistency.

    Where a process comes, or comes again, it goes on at a count that a worker of this job has come to: with
    its own or another's, by design.
    """
    counts, entries = {0, 1}, []  # each with the next: who ends or joins again in a step has not said that
    for lines in processes:
        before: tuple[int, int] | None = None
        dropped = False
        for line in lines:
            if JOINED_AGAIN in line:  # in the middle of a step, perhaps: that one is dropped
                before, dropped = None, True
                continue
            _, step, scheduled, counted = line.split()
            now = int(step), int(scheduled)
            if counted != "True" or dropped:  # it takes a step again, or one that does not count
                counts |= set() if dropped else {now[1], now[1] + 1}
                before, dropped = None, False
                continue
            if before is not None and now[0] == before[0] + 1:
                assert now[1] == before[1] + 1, f"step {now[0]} is scheduled as {now[1]}, behind {before[1]}"
            else:
                assert now[0] > 1 or now[1] == 1, f"the first step of all is scheduled as {now[1]}"
                entries.append(now[1] - 1)
            counts |= {now[1], now[1] + 1}
            before = now
    assert counts >= set(entries), (sorted(set(entries) - counts), max(counts))


def broken_off(plan: Plan, found: Mapping[str, Any]) -> bool:
    """Whether a worker was told to go while a step was leaving: it abstains from the rest of that step."""
    told = (Way.ALL_INT, Way.ALL_TERM, Way.ONE_TERM)
    return 0 < found["looped"] - found["per_step"] <= sum(way in told for way, *_ in plan.ways)


def check_alike(found: Ended) -> None:
    """Of a run that nobody disturbed: all workers took all epochs, and under the same names alike."""
    every = list(range(resumed.LAST + 1))
    assert [it["bodies"] for it in found.workers] == [every] * len(found.workers), found
