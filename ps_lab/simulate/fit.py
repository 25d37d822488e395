"""Costs from recorded runs, and how near a simulation with them comes to a run. Pure.

What is fitted from records alone (`fit`), and from what:
    compute   each worker's own recorded times, of which a simulation draws: no distribution is assumed
    link      the rest of a step, push and pull without the gate, is A + B x bytes: least squares over the
              medians of each payload; of one payload alone, all of it is A

What cannot be told apart: a shard's time for a push is in A and B, and so are workers that hold each other up
on the same cores. So a fit is good for runs of about as many workers on the same machines, and all else is an
extrapolation. Recorded compute times have the stragglers of their run in them: these are not added again.

What is fitted from runs of a comparison (`fit_on_shared_cores`), where processes share a machine:
    compute   processor time of each worker's process in each step until the script called it: stragglers that
              sleep are not in it
    exchange  its processor time beyond that, the mean of all steps: a straggler's factor is not of it
    server    their processor time, by push and by optimizer step: least squares over the runs; of runs that
              have both in one proportion, all of it by push
    cores     workers and servers share those of the machine, of which other programs may take a part: as many
              as a simulation of the same runs needs to be as fast as these were from their second steps on
    service   the part of the servers' time that holds a push up: with which a step of these runs, simulated,
              takes as long as recorded in push and pull without the gate
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ps_lab.compare.results import Recording
from ps_lab.compare.validation import Validation, distances, settled_s
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_lab.simulate.measured import Measured
from ps_wire.errors import UsageError
from ps_wire.spec import consistency
from ps_worker.recording.columns import StepRecord

WARM_UP = 0.05  # of an incarnation's steps, at least one: first steps compile and allocate, and are left out
MAX_SAMPLES = 1000  # of a worker's compute times
HALVINGS = 10  # of the number of cores that is looked for
SHARES = 6  # halvings of the servers' share
TOLERANCE = 0.02  # of a time that is compared with a measured one
LEAST_CORES = 0.05  # of those of the machine


def fit(runs: Iterable[Recording]) -> Costs:
    """The costs of recorded runs, of one number of workers.

    Raises:
        UsageError: too few steps were recorded.
    """
    compute: dict[int, list[float]] = defaultdict(list)
    overhead: dict[int, list[float]] = defaultdict(list)  # by bytes, up and down together
    for run in runs:
        for step in _settled(run):
            compute[run.header.worker].append(step.compute_s)
            overhead[step.bytes_up + step.bytes_down].append(step.push_s + step.pull_s)
    if not compute:
        raise UsageError("costs cannot be fitted: two steps of a worker at least must be recorded")
    base_s, per_byte_s = _line({size: statistics.median(found) for size, found in overhead.items()})
    return Costs(
        compute_s=tuple(_spread(compute[worker]) for worker in sorted(compute)),
        num_bytes=max(overhead) // 2,
        latency_s=base_s / 2,
        worker_bytes_per_s=1.0 / per_byte_s if per_byte_s > 0.0 else math.inf,
    )


def fit_on_shared_cores(runs: Sequence[Measured], cores: float) -> Costs:
    """The costs of runs of one number of workers, whose processes shared a machine.

    Args:
        runs: whose workers compute all the time, and do not sleep but as stragglers.
        cores: of the machine.

    Raises:
        UsageError: too few steps were recorded.
    """
    work: dict[int, list[float]] = defaultdict(list)
    exchange: list[float] = []
    num_bytes = 1
    for one in (recording for run in runs for recording in run.recordings):
        for step in _settled(one):
            used_s = step.cpu_s or 0.0
            computed_s = used_s if step.compute_cpu_s is None else step.compute_cpu_s
            work[one.header.worker].append(computed_s)
            exchange.append(used_s - computed_s)
            num_bytes = max(num_bytes, (step.bytes_up + step.bytes_down) // 2)
    if not work:
        raise UsageError("costs cannot be fitted: two steps of a worker at least must be recorded")
    take_s, apply_s = _of_servers([(*_served(run), run.server_cpu_s) for run in runs])
    costs = Costs(
        compute_s=tuple(_spread(work[worker]) for worker in sorted(work)),
        exchange_s=max(statistics.fmean(exchange), 0.0),
        num_bytes=num_bytes,
        take_s_per_byte=take_s / num_bytes,
        apply_s_per_byte=apply_s / num_bytes,
    )
    return _served_as_measured(runs, costs, cores)


def _settled(run: Recording) -> Sequence[StepRecord]:
    return run.steps[max(1, int(len(run.steps) * WARM_UP)) :]


def _served(run: Measured) -> tuple[int, int]:
    """Pushes of whole gradients, and optimizer steps on all weights."""
    pushes = sum(len(one.steps) for one in run.recordings)
    parsed = consistency.parse(run.recordings[0].header.consistency)
    if not parsed.aggregates:
        return pushes, pushes
    return pushes, max((one.steps[-1].clock + 1 for one in run.recordings if one.steps), default=0)


def _of_servers(served: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Seconds by push and by optimizer step, both >= 0, by least squares."""
    pp = sum(pushes * pushes for pushes, _, _ in served)
    pa = sum(pushes * steps for pushes, steps, _ in served)
    aa = sum(steps * steps for _, steps, _ in served)
    ps = math.fsum(pushes * used_s for pushes, _, used_s in served)
    as_ = math.fsum(steps * used_s for _, steps, used_s in served)
    determinant = pp * aa - pa * pa
    if determinant > 1e-6 * pp * aa:
        take_s, apply_s = (ps * aa - as_ * pa) / determinant, (as_ * pp - ps * pa) / determinant
        if take_s >= 0.0 and apply_s >= 0.0:
            return take_s, apply_s
        if take_s < 0.0:
            return 0.0, as_ / aa
    return ps / pp, 0.0


def _served_as_measured(runs: Sequence[Measured], costs: Costs, cores: float) -> Costs:
    """With the largest share of the servers' time in the way of pushes with which no step waits too long."""
    measured_s = statistics.fmean(
        step.push_s + step.pull_s for run in runs for one in run.recordings for step in _settled(one)
    )

    def with_share(share: float) -> Costs:
        made = replace(costs, service_share=share)
        return replace(made, cores=_cores(runs, made, cores))

    best = with_share(1.0)
    if _waited_s(runs, best) <= measured_s * (1.0 + TOLERANCE):
        return best
    low, high = 0.0, 1.0
    for _ in range(SHARES):
        best = with_share((low + high) / 2)
        waits_too_long = _waited_s(runs, best) > measured_s
        low, high = (low, best.service_share) if waits_too_long else (best.service_share, high)
    return best


def _waited_s(runs: Sequence[Measured], costs: Costs) -> float:
    """Mean time of a step in push and pull without the gate, of these runs simulated."""
    found = [_again(run, costs).steps for run in runs]
    waits = [float(steps.seconds("push_s").sum() + steps.seconds("pull_s").sum()) for steps in found]
    return math.fsum(waits) / sum(map(len, found))


def _cores(runs: Sequence[Measured], costs: Costs, most: float) -> float:
    """That these runs got: on so many, simulations of them take as long as they did; at most all."""
    measured_s = math.fsum(settled_s(run.recordings) for run in runs)

    def simulated_s(cores: float) -> float:
        return math.fsum(_again(run, replace(costs, cores=cores)).duration_s for run in runs)

    low, high = most * LEAST_CORES, most
    if simulated_s(high) >= measured_s:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if simulated_s(middle) >= measured_s else (low, middle)
    return high


def _again(run: Measured, costs: Costs) -> SimulatedRun:
    """The same run without its first steps, simulated."""
    header = run.recordings[0].header
    return Simulation(
        Setup(
            consistency=consistency.parse(header.consistency),
            num_workers=header.num_workers,
            num_shards=run.num_shards,
            num_steps=max(1, *(len(one.steps) - 1 for one in run.recordings)),
            costs=costs,
            stragglers=run.stragglers,
            seed=run.stragglers.seed,
        )
    ).run()


def _line(medians: Mapping[int, float]) -> tuple[float, float]:
    """A and B >= 0 of A + B x bytes, by least squares."""
    sizes, values = list(medians), list(medians.values())
    if len(sizes) < 2:
        return values[0], 0.0
    slope, intercept = statistics.linear_regression(sizes, values)
    if slope <= 0.0:
        return statistics.median(values), 0.0
    if intercept < 0.0:  # through zero
        return 0.0, statistics.linear_regression(sizes, values, proportional=True).slope
    return intercept, slope


def _spread(values: Sequence[float]) -> tuple[float, ...]:
    """At most `MAX_SAMPLES` of them, evenly over their order in size."""
    ordered = sorted(values)
    if len(ordered) <= MAX_SAMPLES:
        return tuple(ordered)
    return tuple(ordered[(2 * index + 1) * len(ordered) // (2 * MAX_SAMPLES)] for index in range(MAX_SAMPLES))


def validate(real: Sequence[Recording], simulated: SimulatedRun) -> Validation:
    """A recorded run beside a simulated one, of as many workers.

    Raises:
        UsageError: they are not of the same model and number of workers, or nothing was recorded.
    """
    setup = simulated.setup
    for run in real:
        there = f"{run.header.num_workers} workers under {run.header.consistency}"
        here = f"{setup.num_workers} workers under {setup.consistency}"
        if there != here:
            raise UsageError(f"a run of {there} is not compared with one of {here}")
    steps = [(run.header.unix_s, step) for run in real for step in run.steps[1:]]
    begun_s = min((unix_s + step.started_s for unix_s, step in steps), default=0.0)
    ended_s = max((unix_s + step.ended_s for unix_s, step in steps), default=0.0)
    if begun_s >= ended_s:
        raise UsageError("nothing was recorded that a simulation could be compared with")
    found = Counter(step.tau for _, step in steps if step.tau is not None)
    tau = simulated.steps.whole("tau")
    total_variation, wasserstein = distances(found, Counter(tau[tau >= 0].tolist()))
    return Validation(
        real_steps_per_s=len(steps) / (ended_s - begun_s),
        simulated_steps_per_s=simulated.steps_per_s,
        total_variation=total_variation,
        wasserstein=wasserstein,
        num_workers=setup.num_workers,
    )
