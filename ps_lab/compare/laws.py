"""Laws 5, 6, 7 and 12 of `docs/consistency.md`, checked on what was recorded of a run.

A law is checked on every recorded step, so a verdict says how many there were. Where a law does not speak of
a model, or what it needs was not recorded, the verdict says so: it is never taken to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ps_lab.compare.results import Recording, RunData
from ps_lab.experiments.experiment import BASELINES
from ps_wire.spec import consistency, staleness
from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency

CLOCKS_DIFFER_S = 0.01  # of two processes on one host, whose times come from two readings of its clock


class Holds(StrEnum):
    """The result of a check."""

    YES = "holds"
    NO = "violated"
    OPEN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One law on one run.

    Attributes:
        law: its number.
        holds: what came of it.
        checked: steps, or workers, that were looked at.
        text: what was seen, in a sentence.
    """

    law: int
    holds: Holds
    checked: int
    text: str


def verdicts(data: RunData) -> tuple[Verdict, ...]:
    """Of the four laws, in their order."""
    recorded = tuple(one for one in data.recordings if one.steps)
    if data.run.model in BASELINES:
        return tuple(_open(law, "the run has no servers") for law in (5, 6, 7, 12))
    model = consistency.parse(data.run.model)
    if not recorded:
        return tuple(_open(law, "no step was recorded") for law in (5, 6, 7, 12))
    return (
        _law_5(model, recorded),
        _law_6(model, data.run.workers, recorded),
        _law_7(model, recorded),
        _law_12(data, recorded),
    )


def bound_on_tau(model: str, num_workers: int) -> int | None:
    """`staleness.bound` of a model, or of a baseline, in which nobody is ever behind."""
    return 0 if model in BASELINES else staleness.bound(consistency.parse(model), num_workers)


def _law_5(model: Consistency, recorded: tuple[Recording, ...]) -> Verdict:
    if isinstance(model, ASP):
        return _open(5, "asp has no bound on the gap")
    if isinstance(model, BSP) and model.backup:
        return _open(5, "with backup workers who is late is passed over")
    bound = model.staleness if isinstance(model, SSP) else 0
    gaps = [step.gap for one in recorded for step in one.steps if step.gap is not None]
    if not gaps:
        return _open(5, "no gap was recorded")
    seen = f"the largest committed gap was {max(gaps)}, the bound s + 1 is {bound + 1}"
    if max(gaps) > bound + 1:
        return Verdict(law=5, holds=Holds.NO, checked=len(gaps), text=seen)
    early = _begun_too_early(recorded, bound)
    if early:
        return Verdict(law=5, holds=Holds.NO, checked=len(gaps), text=early)
    return Verdict(law=5, holds=Holds.YES, checked=len(gaps), text=seen)


def _begun_too_early(recorded: tuple[Recording, ...], bound: int) -> str:
    """Who computed at clock c when another had not even begun step c - s - 1; "" if nobody, or unknown."""
    if not _constant(recorded) or len({one.header.host for one in recorded}) > 1:
        return ""
    begun = {one.header.worker: one.started_unix_s for one in recorded}
    for one in recorded:
        for index, step in enumerate(one.steps):
            needed = step.clock - bound - 1
            for worker, starts in begun.items():
                late_s = starts[needed] - one.started_unix_s[index] if 0 <= needed < len(starts) else 0.0
                if late_s > CLOCKS_DIFFER_S:
                    return (
                        f"worker {one.header.worker} began step {step.clock} {late_s:.3f} s before "
                        f"worker {worker} began step {needed}: it computed at a gap above {bound}"
                    )
    return ""


def _law_6(model: Consistency, num_workers: int, recorded: tuple[Recording, ...]) -> Verdict:
    bound = bound_on_tau(str(model), num_workers)
    if bound is None:
        return _open(6, "asp has no bound on tau")
    taus = [step.tau for one in recorded for step in one.steps if step.tau is not None]
    if not taus:
        return _open(6, "no tau was recorded")
    if isinstance(model, SSP) and not _constant(recorded):
        return _open(6, "workers came or went, and the bound is for constant members")
    holds = Holds.YES if max(taus) <= bound else Holds.NO
    return Verdict(
        law=6, holds=holds, checked=len(taus), text=f"the largest tau was {max(taus)}, the bound is {bound}"
    )


def _law_7(model: Consistency, recorded: tuple[Recording, ...]) -> Verdict:
    if not isinstance(model, ASP):
        return _open(7, "it is about asp")
    waits = [step.gate_s for one in recorded for step in one.steps if step.gate_s is not None]
    if not waits:
        return _open(7, "no wait at the gate was recorded")
    longest = max(waits)
    return Verdict(
        law=7,
        holds=Holds.YES if longest == 0 else Holds.NO,
        checked=len(waits),
        text="nobody waited at the gate" if longest == 0 else f"a pull waited {longest:.6f} s at the gate",
    )


def _law_12(data: RunData, recorded: tuple[Recording, ...]) -> Verdict:
    counts = () if data.outcome is None else data.outcome.counts
    if not counts:
        return _open(12, "the servers' counts were not kept")
    for count in counts:
        made = count.applied + count.dropped + count.abstained
        if made != count.received:
            return Verdict(
                law=12,
                holds=Holds.NO,
                checked=len(counts),
                text=f"worker {count.worker}: {count.applied} applied + {count.dropped} dropped + "
                f"{count.abstained} abstained are {made}, and {count.received} were received",
            )
    if _constant(recorded) and all(one.whole for one in recorded):
        for count in counts:
            mine = [step for one in recorded if one.header.worker == count.worker for step in one.steps]
            told = sum(step.dropped for step in mine)
            if told > count.dropped:
                return Verdict(
                    law=12,
                    holds=Holds.NO,
                    checked=len(counts),
                    text=f"worker {count.worker} was told of {told} dropped pushes, and the servers counted "
                    f"{count.dropped}",
                )
    received = sum(count.received for count in counts)
    return Verdict(
        law=12,
        holds=Holds.YES,
        checked=len(counts),
        text=f"all {received} pushes are accounted for, of each worker and in total",
    )


def _constant(recorded: tuple[Recording, ...]) -> bool:
    """The members were the same from the first step on: nobody came late, came again, or skipped a step."""
    workers = [one.header.worker for one in recorded]
    return (
        len(workers) == len(set(workers))
        and len(workers) == recorded[0].header.num_workers
        and all(step.clock == index for one in recorded for index, step in enumerate(one.steps))
    )


def _open(law: int, why: str) -> Verdict:
    return Verdict(law=law, holds=Holds.OPEN, checked=0, text=why)
