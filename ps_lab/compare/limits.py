"""Limits of a comparison: what it cannot show, from its configuration and from its runs.

Each is a sentence that a careful reviewer would write. Nothing here is a fault of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ps_lab.compare.comparison import Comparison
from ps_lab.compare.metrics import RunFigures
from ps_lab.experiments.experiment import LEAST_SEEDS

BUSY_SHARE = 0.1  # of all cores, that other programs may take before it is said


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """All that apply."""
    return tuple(sentence for each in _EACH for sentence in each(comparison))


def _simulated(comparison: Comparison) -> Iterator[str]:
    origins = dict.fromkeys(
        facts.versions["simulated"]
        for data in comparison.runs
        if (facts := data.facts) is not None and facts.simulated
    )
    for origin in origins:
        yield (
            f"The runs are simulated, {origin}: the script did not run. A loss or an accuracy is that of a "
            "small model in the simulator"
        )


def _missing(comparison: Comparison) -> Iterator[str]:
    missing = [data.run for data in comparison.runs if not data.ended]
    if missing:
        budget = comparison.experiment.budget_s
        why = "the comparison has not been run to its end"
        if budget is not None:  # which may not have been the reason: a part alone can be asked for
            why += f"; its budget is {budget:g} s"
        yield (
            f"{len(missing)} of {len(comparison.runs)} runs have no result ({why}); the first of them is "
            f"{missing[0]}. What is said below is about the others"
        )


def _failed(comparison: Comparison) -> Iterator[str]:
    failed = [one for one in comparison.figures if one.data.failed]
    for one in failed[:10]:
        assert one.data.outcome is not None
        why = one.data.outcome.reason or "no reason is known"
        yield f"The run {one.data.run} failed and is in no mean: {why}"
    if len(failed) > 10:
        yield f"{len(failed) - 10} more runs failed"
    diverged = [one for one in comparison.figures if one.diverged]
    if diverged:
        names = sorted({f"{one.data.run.model} ({one.data.run.profile.name})" for one in diverged})
        yield (
            f"{len(diverged)} of {len(comparison.figures)} runs diverged (their loss was no number): "
            f"{', '.join(names)}. They are drawn with a cross, and are in no mean"
        )


def _seeds(comparison: Comparison) -> Iterator[str]:
    planned = comparison.experiment.seeds
    count = len({one.data.run.seed for one in comparison.figures} or planned)
    if count < LEAST_SEEDS:
        yield (
            f"There {'is 1 seed' if count == 1 else f'are {count} seeds'}"
            f"{' by now' if count < len(planned) else ''}: too few to say whether a "
            "difference would be there again. Ratios and their ranges are shown, and nothing is tested (from "
            f"{LEAST_SEEDS} seeds on it is)"
        )
    if not comparison.experiment.seed_argument:
        yield "The script takes no seed: seeds differ in stragglers and in timing alone"


def _rates(comparison: Comparison) -> Iterator[str]:
    experiment = comparison.experiment
    single = [model for model in experiment.parties if len(experiment.learning_rates.of(model)) == 1]
    if single:
        yield (
            f"{', '.join(single)} ran at one learning rate: what is best for one model may be bad for "
            "another, so a difference between models may be one between learning rates"
        )
    if len(single) < len(experiment.parties):
        yield (
            "The best learning rate of each model was chosen by the same runs that are reported: its figures "
            "are a little too good"
        )
    edges = [
        f"{entry.model} ({entry.profile}, {entry.workers} workers): {entry.best.lr:g}"
        for entry in comparison.entries.values()
        if entry.at_edge and entry.best.figures
    ]
    if edges:
        yield (
            "The best learning rate is at the edge of its grid, and a better one may lie beyond: "
            f"{'; '.join(edges)}"
        )


def _target(comparison: Comparison) -> Iterator[str]:
    target = comparison.experiment.stop.target
    if target is None:
        yield "No target was set: there is no time to a target, and models are compared by loss and speed"
        return
    if comparison.figures and not any(one.target_s is not None for one in comparison.figures):
        yield f"No run reached {target}: there is no time to it for any model"
        return
    runs = comparison.figures
    early = sum(any(at <= 0.0 and target.met(value) for at, value in one.evaluated) for one in runs)
    if early:
        yield (
            f"{target} was met before the first step in {early} of {len(runs)} runs: the time to it says "
            "nothing of training"
        )
    short = [
        f"{entry.model} ({entry.profile}, {entry.workers} workers)"
        for entry in comparison.entries.values()
        if entry.best.figures and not entry.best.target_s
    ]
    if short:
        yield f"{target} was reached in no run at its best learning rate by: {', '.join(short)}"


def _measured(comparison: Comparison) -> Iterator[str]:
    if not comparison.experiment.record:
        yield "Steps were not recorded: there are no losses over time, no staleness and no laws"
    elif comparison.figures and not any(one.loss.values.size for one in comparison.figures):
        yield "The script logs no loss: there are no curves of it"
    recorded = [one for one in comparison.figures if one.recorded]
    if recorded and not any(one.samples for one in recorded):
        yield (
            "Samples are not known, since the script takes no batches from worker.loader: models are "
            "compared by time and updates, and not by samples"
        )
    if comparison.figures and all(one.quality is None for one in comparison.figures):
        yield f"No run measured {comparison.metric}: nothing is said of how good the results are"
    elif any(not one.evaluated for one in comparison.figures):
        ways = sorted({one.judged_by for one in comparison.figures if one.quality is not None})
        yield (
            f"{comparison.metric} was not evaluated by a reader while runs went on; it is read from: "
            f"{', '.join(ways)}. So a time to the target is no earlier than that"
        )


def _evaluations(comparison: Comparison) -> Iterator[str]:
    """An evaluation script that fails does not end its run, which would then be judged by something else."""
    if comparison.experiment.evaluation is None or comparison.simulated:
        return
    metric, runs = comparison.metric, comparison.figures
    silent = sum(
        not any(metric in point.values for point in one.data.outcome.evaluations)
        for one in runs
        if one.data.outcome is not None
    )
    if silent:
        yield (
            f"The evaluation script said nothing of {metric} in {silent} of {len(runs)} runs: the output.log "
            "of a run has what it said"
        )


def _machine(comparison: Comparison) -> Iterator[str]:
    facts = [data.facts for data in comparison.runs if data.facts is not None and data.ended]
    setup = comparison.experiment.setup
    processes = setup.servers + max(setup.workers) * setup.group_size
    cores = min((one.cores for one in facts), default=None)
    if cores is not None and processes > cores:
        yield (
            f"{processes} processes of servers and workers shared {cores} cores: they were slower for it, "
            "and a model that waits more leaves more of a core to the others"
        )
    yield from _others(comparison)
    if not setup.hosts:
        yield "All processes ran without a shaped network: messages took less time than between machines"
    changes: dict[str, Callable[[RunFigures], object]] = {
        "machines": lambda one: one.data.facts and one.data.facts.host,
        "versions": lambda one: one.data.facts and tuple(sorted(one.data.facts.versions.items())),
        "commits": lambda one: one.data.facts and one.data.facts.commit,
        "scripts": lambda one: one.data.facts and one.data.facts.script_sha256,
    }
    for what, of in changes.items():
        if len({of(one) for one in comparison.figures}) > 1:
            yield f"Runs had different {what}: a difference between them may come from that"
    if any(one.changed for one in facts):
        yield "The working tree had changes that are in no commit: the commit does not say what ran"


def _others(comparison: Comparison) -> Iterator[str]:
    """Other programs on the machine."""
    shares = [
        outcome.other_cpu_s / (facts.cores * (outcome.ended_unix_s - outcome.started_unix_s))
        for data in comparison.runs
        if (outcome := data.outcome) is not None and (facts := data.facts) is not None
        if outcome.other_cpu_s is not None and outcome.ended_unix_s > outcome.started_unix_s
    ]
    if shares and max(shares) > BUSY_SHARE:
        yield (
            f"Other programs took {sum(shares) / len(shares):.0%} of the cores' time while runs went on, and "
            f"up to {max(shares):.0%} in one of them: times depend on that, too"
        )


_EACH: tuple[Callable[[Comparison], Iterator[str]], ...] = (
    _simulated,
    _missing,
    _failed,
    _seeds,
    _rates,
    _target,
    _measured,
    _evaluations,
    _machine,
)
