"""Sentences about a comparison: one for each question that it can answer, found or not.

Every model is compared with the experiment's reference, under each profile and number of workers, paired by
seed. All tests of one report are corrected together (Holm), and with fewer than five seeds nothing is tested
and no word of significance is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ps_lab.compare.comparison import Arm, Comparison
from ps_lab.compare.statistics import Effect, difference, holm, ratio
from ps_lab.experiments.experiment import Target

LEVEL = 0.05
TARGET, SPEED, QUALITY = "time to target", "samples per second", "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One question with its answer.

    Attributes:
        question: `TARGET`, `SPEED` or `QUALITY`.
        where: profile and workers.
        workers: their number.
        rates: learning rates, as the sentence says them; "" where the script has its own.
        subject: the model that is compared.
        reference: with which.
        effect: ratio for times and speeds, difference for quality; None: it cannot be computed.
        p: adjusted over the report; None: nothing was tested.
        note: what else is to be said, such as who did not reach the target.
        metric: of quality or target.
        ranked: it is about the arms that `in_short` ranks, the best ones.
    """

    question: str
    where: str
    workers: int
    rates: str
    subject: str
    reference: str
    effect: Effect | None
    metric: str
    p: float | None = None
    note: str = ""
    ranked: bool = True

    @property
    def found(self) -> bool:
        """A test says that there is a difference."""
        return self.p is not None and self.p < LEVEL

    @property
    def agreed(self) -> bool:
        """All of the interval, or of the seeds' range, is on one side of no effect."""
        if self.effect is None:
            return False
        none = 0.0 if self.question == QUALITY else 1.0
        return self.effect.low > none or self.effect.high < none

    @property
    def text(self) -> str:
        """The sentence without where it is so."""
        rates = f" ({self.rates})" if self.rates else ""
        return f"{_said(self)}{rates}{f'; {self.note}' if self.note else ''}."

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def findings(comparison: Comparison, against: Comparison | None = None) -> tuple[Finding, ...]:
    """All of a report, corrected together.

    Args:
        comparison: of this report.
        against: an older one, each of whose models is compared with itself.
    """
    found = [*_within(comparison), *(() if against is None else _across(comparison, against))]
    tested = [index for index, one in enumerate(found) if one.effect is not None and one.effect.p is not None]
    adjusted = holm([found[index].effect.p for index in tested])
    for index, p in zip(tested, adjusted, strict=True):
        found[index] = replace(found[index], p=p)
    return tuple(found)


def in_short(comparison: Comparison, found: Sequence[Finding]) -> tuple[str, ...]:
    """One sentence per profile and number of workers: who was first, and how sure that is."""
    said = []
    experiment = comparison.experiment
    for profile in experiment.profiles:
        for workers in experiment.setup.workers:
            arms = [comparison.entries[model, profile.name, workers].best for model in experiment.parties]
            where = _where(arms[0])
            measured = any(arm.target_s or arm.quality for arm in arms)
            question = TARGET if experiment.stop.target is not None and measured else SPEED
            ranked = _ranked(arms, experiment.stop.target if question == TARGET else None)
            if ranked:
                here = [one for one in found if one.ranked and one.where == where]
                mine = [
                    one for one in here if one.question == question and one.reference == experiment.reference
                ]
                said.append(f"{where}: {ranked}. {_how_sure(mine)}.")
            else:
                said.append(f"{where}: there is no run whose speed or result could be ranked.")
    return tuple(said)


def _ranked(arms: Sequence[Arm], target: Target | None) -> str:
    """By the time to a target, else by speed."""
    if target is None:
        speeds = [(_geometric(arm.samples_per_s), arm.model) for arm in arms if arm.samples_per_s]
        speeds.sort(reverse=True)
        shown = ", ".join(f"{model} {speed:,.0f}" for speed, model in speeds)
        return f"samples per second, the fastest first: {shown}" if shown else ""
    whole = [arm for arm in arms if arm.target_s and len(arm.target_s) == len(arm.seeds)]
    times = sorted((_geometric(arm.target_s), arm.model) for arm in whole)
    parts = [f"{model} after {time:.3g} s" for time, model in times]
    text = f"{target} was reached by {', '.join(parts)}" if parts else ""
    short = [
        f"{arm.model} ({len(arm.target_s)} of {len(arm.seeds)})"
        for arm in arms
        if len(arm.target_s) < len(arm.seeds)
    ]
    if short:
        text += f"{'; ' if text else f'{target} '}was not reached in all seeds by {', '.join(short)}"
    return text


def _how_sure(found: Sequence[Finding]) -> str:
    """From the findings of the question that the ranking is about."""
    mine = [one for one in found if one.effect is not None]
    if not mine:
        return "Nothing can be compared"
    seeds = max(one.effect.pairs for one in mine if one.effect is not None)  # that there are by now
    reference = mine[0].reference
    tested = [one for one in mine if one.p is not None]
    if tested:
        sure = ", ".join(dict.fromkeys(one.subject for one in tested if one.found))
        return f"How sure: tests with {seeds} seeds tell {sure or 'none'} from {reference}"
    agreed = ", ".join(dict.fromkeys(one.subject for one in mine if one.agreed))
    if seeds == 1:
        return "How sure: one seed is too few for a test"
    which = f"all agree on the direction of {agreed}" if agreed else "they agree on no direction"
    return f"How sure: {seeds} seeds are too few for a test; {which} against {reference}"


def _geometric(values: Mapping[int, float]) -> float:
    return math.exp(math.fsum(math.log(max(value, 1e-9)) for value in values.values()) / len(values))


def _where(arm: Arm) -> str:
    return f"{arm.profile}, {arm.workers} worker{'s' if arm.workers > 1 else ''}"


def _within(comparison: Comparison) -> Iterator[Finding]:
    reference = comparison.experiment.reference
    for (model, profile, workers), entry in comparison.entries.items():
        if model == reference:
            continue
        other = comparison.entries[reference, profile, workers]
        pairs = [(entry.best, other.best, _rates(entry.best, other.best), True)]
        mine, theirs = entry.common, other.common
        if mine is not None and theirs is not None and (entry.best, other.best) != (mine, theirs):
            pairs.append((mine, theirs, f"both at the common lr {mine.lr:g}", False))
        for mine, theirs, rates, ranked in pairs:
            for one in _compared(comparison, mine, theirs, rates, model, reference):
                yield replace(one, ranked=ranked)


def _across(comparison: Comparison, against: Comparison) -> Iterator[Finding]:
    now, before = (
        ("now", "before") if comparison.simulated == against.simulated else _KINDS[comparison.simulated]
    )
    for key, entry in comparison.entries.items():
        if key in against.entries:
            older = against.entries[key].best
            rates = _rates(entry.best, older)
            yield from _compared(
                comparison, entry.best, older, rates, f"{entry.model} {now}", f"{entry.model} {before}"
            )


_KINDS = {True: ("simulated", "measured"), False: ("measured", "simulated")}


def _rates(mine: Arm, theirs: Arm) -> str:
    if mine.lr is None or theirs.lr is None:
        return ""
    return f"lr {mine.lr:g}" if mine.lr == theirs.lr else f"best lr each, {mine.lr:g} and {theirs.lr:g}"


def _compared(
    comparison: Comparison, mine: Arm, theirs: Arm, rates: str, subject: str, reference: str
) -> Iterator[Finding]:
    one = Finding(
        question=QUALITY,
        where=_where(mine),
        workers=mine.workers,
        rates=rates,
        subject=subject,
        reference=reference,
        effect=None,
        metric=comparison.metric,
    )
    target = comparison.experiment.stop.target
    if target is not None:
        note = _not_reached(mine, theirs, subject, reference)
        pairs = [] if note else _pairs(mine.target_s, theirs.target_s)
        effect = ratio(pairs) if pairs else None
        yield replace(one, question=TARGET, metric=str(target), effect=effect, note=note)
    speeds = _pairs(mine.samples_per_s, theirs.samples_per_s)
    lost = _lost(mine, theirs, subject, reference)
    yield replace(one, question=SPEED, effect=ratio(speeds) if speeds else None, note=lost)
    qualities = _pairs(mine.quality, theirs.quality)
    yield replace(one, effect=difference(qualities) if qualities else None, note=lost)


def _pairs(mine: dict[int, float], theirs: dict[int, float]) -> list[tuple[float, float]]:
    return [(value, theirs[seed]) for seed, value in mine.items() if seed in theirs]


def _not_reached(mine: Arm, theirs: Arm, subject: str, reference: str) -> str:
    """Who did not reach the target: then a ratio of those that did would flatter."""
    short = [
        f"{name} did not in {len(arm.seeds) - len(arm.target_s)} of {len(arm.seeds)} seeds"
        for name, arm in ((subject, mine), (reference, theirs))
        if len(arm.target_s) < len(arm.seeds)
    ]
    return " and ".join(short)


def _lost(mine: Arm, theirs: Arm, subject: str, reference: str) -> str:
    lost = [
        f"{count} of {len(arm.figures)} runs of {name} {what}"
        for name, arm in ((subject, mine), (reference, theirs))
        for count, what in ((arm.diverged, "diverged"), (arm.failed, "failed"))
        if count
    ]
    return " and ".join(lost) + " and are left out of this" if lost else ""


def _said(finding: Finding) -> str:
    subject, reference = finding.subject, finding.reference
    if finding.effect is None:
        short = finding.question == TARGET and finding.note
        why = "not all runs reached it" if short else "no seed has figures of both"
        return f"{subject} and {reference} cannot be compared by {_what(finding)}: {why}"
    text = _measured(finding, finding.effect)
    if finding.effect.p is not None and not finding.found:
        return f"no difference found in {_what(finding)}: {text}{_p(finding)}"
    return f"{text}{_p(finding)}"


def _what(finding: Finding) -> str:
    if finding.question == TARGET:
        return f"the time to {finding.metric}"
    return "speed" if finding.question == SPEED else f"{finding.metric} at the end"


def _measured(finding: Finding, effect: Effect) -> str:
    subject, reference = finding.subject, finding.reference
    if finding.question == TARGET:
        times = f"in {effect.value:.2f} x the time of {reference} {_range(effect, '.2f')}"
        return f"{subject} reached {finding.metric} {times}"
    if finding.question == SPEED:
        times = f"{effect.value:.2f} x the samples per second of {reference} {_range(effect, '.2f')}"
        return f"{subject} trained on {times}"
    by = f"{effect.value:+.3g} {_range(effect, '+.3g')}"
    return f"at the end {finding.metric} of {subject} differs from that of {reference} by {by}"


def _range(effect: Effect, form: str) -> str:
    if effect.p is not None:
        return f"[{effect.low:{form}}, {effect.high:{form}}]"
    if effect.pairs == 1:
        return "(one seed)"
    return f"({effect.low:{form}} to {effect.high:{form}} over seeds)"


def _p(finding: Finding) -> str:
    assert finding.effect is not None
    if finding.p is None:
        if finding.effect.pairs == 1:
            return ", 1 seed: too few for a test"
        agree = "which agree on the direction" if finding.agreed else "which do not agree on the direction"
        return f", {finding.effect.pairs} seeds, {agree} and are too few for a test"
    p = "< 0.001" if finding.p < 0.001 else f"= {finding.p:.3f}"
    return f", {finding.effect.pairs} seeds, adjusted p {p}"
