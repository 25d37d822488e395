"""The runs of an experiment (`ps-lab compare`), simulated into a folder of the same form.

What is simulated is the timing, and with a model of `learning` the training of that: an experiment's script
is not run. Baselines have no servers and are left out, and so is what skews labels; a group is one worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ps_lab.compare.facts import gather
from ps_lab.compare.folder import Folder
from ps_lab.compare.outcome import Ending, EvaluationPoint, RunOutcome, WorkerCounts
from ps_lab.experiments.experiment import BASELINES
from ps_lab.experiments.plan import Run
from ps_lab.simulate import records
from ps_lab.simulate.costs import Costs, Link
from ps_lab.simulate.engine import Learner, Setup, SimulatedRun, Simulation
from ps_wire.spec import consistency

BYTES_PER_MEGABIT = 125_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The settings that an experiment does not say.

    Attributes:
        costs: of a step.
        num_steps: of a run that has no other end.
        batch_size: samples of a step.
        delay: gradients are applied so many steps late, under bsp.
        origin: of the costs, in words: it is written beside each run.
    """

    costs: Costs
    num_steps: int
    batch_size: int = 1
    delay: int = 0
    origin: str = ""


def setup_of(run: Run, defaults: Defaults) -> Setup:
    """The setup that is simulated for a run."""
    links = [
        Link(
            workers=host.workers,
            bytes_per_s=host.megabits_per_s * BYTES_PER_MEGABIT,
            latency_s=host.delay_ms / 1e3,
        )
        for host in run.hosts
    ]
    limits = [defaults.num_steps] if run.stop.samples is None and run.stop.time_s is None else []
    if run.stop.samples is not None:
        limits.append(max(1, math.ceil(run.stop.samples / (run.workers * defaults.batch_size))))
    model = consistency.parse(run.model)
    return Setup(
        consistency=model,
        num_workers=run.workers,
        num_shards=run.servers,
        num_steps=limits[0] if limits else None,
        limit_s=run.stop.time_s,
        costs=replace(defaults.costs, links=(*links, *defaults.costs.links)),
        stragglers=run.profile.stragglers(run.seed),
        batch_size=defaults.batch_size,
        delay=defaults.delay if str(model) == "bsp" else 0,
        evaluate_s=run.evaluation.every_s if run.evaluation is not None else 0.0,
        seed=run.seed,
    )


def simulate(
    folder: Folder,
    script: Path,
    defaults: Defaults,
    *,
    learner: Callable[[Run, Setup], Learner | None],
    tell: Callable[[Run, SimulatedRun], None],
) -> None:
    """Does all runs that are missing, in their order; baselines stay so.

    Args:
        folder: of the experiment.
        script: of the experiment: its facts are written down.
        defaults: of what it does not say.
        learner: makes what a run trains.
        tell: is told of each run.

    Raises:
        UsageError: the folder has runs that were measured, or another process adds runs.
    """
    folder.check_kind(simulated=True)
    facts = gather(script, simulated=f"in virtual time; {defaults.origin}")
    with folder.held():
        for place in folder.missing():
            if place.run.model in BASELINES:
                continue
            setup = setup_of(place.run, defaults)
            outcome = Simulation(setup, learner(place.run, setup)).run()
            place.begin(facts)
            if place.run.record:
                records.write(outcome, place.records, folder.experiment.name)
            place.end(run_outcome(outcome))
            tell(place.run, outcome)


def run_outcome(outcome: SimulatedRun) -> RunOutcome:
    """The outcome, as that of a real run; times begin at 0."""
    last = outcome.evaluations[-1].metrics if outcome.evaluations else {}
    return RunOutcome(
        ending=Ending.FINISHED,
        started_unix_s=0.0,
        ended_unix_s=outcome.duration_s,
        metrics=last,
        evaluations=tuple(
            EvaluationPoint(unix_s=it.time_s, held_s=0.0, values=it.metrics) for it in outcome.evaluations
        ),
        counts=tuple(
            WorkerCounts(
                worker=worker, received=it.received, applied=it.applied, dropped=it.dropped, abstained=0
            )
            for worker, it in outcome.ledgers.items()
        ),
    )
