"""Folders of comparisons for tests, with records of the shape that real runs have.

A virtual clock, the gate of each model, and a loss that falls with updates: enough for figures and laws. Each
number follows from the run's configuration. `change` bends the world of single runs.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ps_lab.compare.facts import Facts
from ps_lab.compare.folder import Folder, RunFolder
from ps_lab.compare.outcome import Ending, EvaluationPoint, Fault, RunOutcome, WorkerCounts
from ps_lab.experiments.experiment import BASELINES, parse
from ps_lab.experiments.plan import Run
from ps_wire.spec import consistency
from ps_wire.spec.consistency import SSP
from ps_wire.spec.stragglers import Constant, Exponential, Transient
from ps_worker.recording.columns import RecordHeader, StepRecord, encode, encode_header, file_name

START_UNIX_S = 1_795_000_000.0
FACTS = Facts(
    host="here",
    system="Linux 6.1",
    processor="A processor",
    cores=8,
    memory_bytes=16 << 30,
    versions={"python": "3.11.2", "torch": "2.13.0"},
    commit="c" * 40,
    script_sha256="5" * 64,
)
EXPERIMENT = """
name = "made"
description = "Made for a test."
script = "train.py"
models = ["bsp", "ssp:3", "asp"]
workers = 4
seeds = [0, 1, 2, 3, 4]
[learning_rates]
grid = [0.001]
[stop]
metric = "accuracy"
at_least = 0.9
[[profiles]]
name = "quiet"
[[profiles]]
name = "transient"
straggler = "transient:p=0.1,f=5"
"""


@dataclass(kw_only=True)
class World:
    """What a run is like.

    Attributes:
        steps: of each worker.
        compute_s: of a step without stragglers.
        best_lr: at which the loss falls fastest.
        samples: of a batch; 0: the script takes them from elsewhere.
        loss: whether the script logs one; `nan_from`: from which step on it is none.
        evaluates: whether accuracy is evaluated on the way; `early`: what it was before the first step.
        faults: that happened, as (kind, worker, seconds).
        fails: why the run did.
        killed: a worker whose records end in the middle.
        others: the part of all cores that other programs took.
    """

    steps: int = 60
    compute_s: float = 0.02
    best_lr: float = 0.001
    samples: int = 16
    loss: bool = True
    nan_from: int | None = None
    evaluates: bool = True
    early: float | None = None
    faults: tuple[tuple[str, int, float], ...] = ()
    fails: str = ""
    killed: int | None = None
    records: bool = True
    others: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


Change = Callable[[Run, World], None]


def no_change(run: Run, world: World) -> None:
    """The world as it is."""


def made_folder(
    path: Path,
    text: str = EXPERIMENT,
    change: Change = no_change,
    *,
    facts: Facts = FACTS,
    only: Callable[[Run], bool] = lambda run: True,
) -> Folder:
    """A folder with all runs that `only` lets through."""
    folder = Folder.make(path, parse(text), text)
    for run_folder in folder.runs:
        if only(run_folder.run):
            made_run(run_folder, change, facts)
    return folder


def made_run(folder: RunFolder, change: Change = no_change, facts: Facts = FACTS) -> None:
    """One run, with its records and its result."""
    world = World()
    change(folder.run, world)
    folder.begin(facts)
    steps = simulated(folder.run, world)
    if world.records:
        for worker, mine in enumerate(steps):
            header = RecordHeader(
                unix_s=START_UNIX_S,
                job="made",
                worker=worker,
                incarnation=1,
                consistency=folder.run.model,
                num_workers=folder.run.workers,
                host="here",
                versions={"torch": "2.13.0"},
            )
            lines = encode_header(header) + "".join(map(encode, mine))
            if worker == world.killed:
                lines = lines[: int(len(lines) * 0.6)]
            (folder.records / file_name(header)).write_text(lines)
    folder.end(_outcome(folder.run, world, steps))


def simulated(run: Run, world: World) -> list[list[StepRecord]]:
    """Steps of each worker."""
    draw = random.Random(f"{run.seed} {run.repeat} {run.profile.name}")
    times = [[_slowed(run, world, worker, draw) for _ in range(world.steps)] for worker in range(run.workers)]
    model = None if run.model in BASELINES else consistency.parse(run.model)
    synchronous = run.model in BASELINES or run.model.startswith("bsp")
    bound = 0 if synchronous else model.staleness if isinstance(model, SSP) else None
    noise = random.Random(f"{run.id}")
    clocks = [0] * run.workers
    records: list[list[StepRecord]] = [[] for _ in clocks]
    begun = [0.0] * run.workers
    read = [0] * run.workers
    waiting: dict[int, tuple[float, int, int, int]] = {}  # worker: pushed at, version read, applied, gap
    version = 0
    events = [(times[worker][0], worker) for worker in range(run.workers)]
    heapq.heapify(events)
    while events:
        now, worker = heapq.heappop(events)
        if not synchronous:
            version += 1
        clocks[worker] += 1
        gap = clocks[worker] - min(clocks)
        applied = clocks[worker] - 1 if synchronous else version - 1
        waiting[worker] = (now, applied if synchronous else read[worker], applied, gap)
        for other in sorted(waiting):
            if bound is not None and min(clocks) < clocks[other] - bound:
                continue
            pushed, version_read, version_applied, its_gap = waiting.pop(other)
            step = clocks[other] - 1
            end = now + 0.004
            updates = step if synchronous else version
            value = _loss(run, world, updates * (1.0 if not synchronous else run.workers), step, noise)
            baseline = run.model in BASELINES
            records[other].append(
                StepRecord(
                    step=step,
                    clock=step,
                    version_read=None if baseline else version_read,
                    version_applied=None if baseline else version_applied,
                    tau=None if baseline else version_applied - version_read,
                    gap=None if baseline else its_gap,
                    started_s=begun[other],
                    ended_s=end,
                    compute_s=times[other][step],
                    push_s=0.001,
                    gate_s=None if baseline else now - pushed,
                    pull_s=0.003 + (now - pushed) * baseline,
                    bytes_up=400_000,
                    bytes_down=400_000,
                    samples=world.samples,
                    loss=value if world.loss else None,
                    metrics=world.extra,
                )
            )
            begun[other] = end
            read[other] = version
            if step + 1 < world.steps:
                heapq.heappush(events, (end + times[other][step + 1], other))
            else:
                clocks[other] = 10**6
    return records


def _slowed(run: Run, world: World, worker: int, draw: random.Random) -> float:
    time_s = world.compute_s * draw.uniform(0.9, 1.1)
    factor = 1.0
    for part in run.profile.straggler.parts:
        chance = draw.random()
        if part.workers and worker not in part.workers:
            continue
        if isinstance(part, Constant) or (isinstance(part, Transient) and chance < part.probability):
            factor *= part.factor
        elif isinstance(part, Exponential):
            factor *= 1 - part.mean * math.log(max(chance, 1e-9))
    return time_s * factor


def _loss(run: Run, world: World, updates: float, step: int, noise: random.Random) -> float:
    if world.nan_from is not None and step >= world.nan_from:
        return math.nan
    off = abs(math.log((run.lr or world.best_lr) / world.best_lr))
    rate = 0.03 * math.exp(-0.7 * off) * (0.8 if run.model == "asp" else 1.0)
    return 0.1 + 2.2 * math.exp(-rate * updates) + noise.gauss(0, 0.05) * math.exp(-rate * updates / 2)


def _outcome(run: Run, world: World, steps: list[list[StepRecord]]) -> RunOutcome:
    whole = sorted((step for mine in steps for step in mine), key=lambda step: step.ended_s)
    end_s = whole[-1].ended_s if whole else 1.0
    looks = []
    if world.early is not None:
        looks.append(EvaluationPoint(unix_s=START_UNIX_S - 0.5, held_s=0.0, values={"accuracy": world.early}))
    for index in range(1, 13):
        at = end_s * index / 12
        seen = [step.loss for step in whole if step.ended_s <= at and step.loss is not None][-8:]
        if seen and not math.isnan(seen[-1]):
            accuracy = 1 - 0.4 * sum(seen) / len(seen)
            looks.append(
                EvaluationPoint(unix_s=START_UNIX_S + at, held_s=0.01, values={"accuracy": accuracy})
            )
    served = run.model not in BASELINES
    counts = [
        WorkerCounts(worker=worker, received=2 * len(mine), applied=2 * len(mine), dropped=0, abstained=0)
        for worker, mine in enumerate(steps)
        if served
    ]
    last = {"accuracy": looks[-1].values["accuracy"]} if looks else {}
    return RunOutcome(
        ending=Ending.FAILED if world.fails else Ending.FINISHED,
        reason=world.fails,
        started_unix_s=START_UNIX_S - 2,
        ended_unix_s=START_UNIX_S + end_s + 1,
        metrics=last if world.evaluates else {},
        evaluations=tuple(looks) if world.evaluates else (),
        counts=tuple(counts),
        cpu_s={"workers": 0.7 * end_s * run.workers, "servers": 0.3 * end_s},
        other_cpu_s=world.others * (end_s + 3) * FACTS.cores,
        faults=tuple(
            Fault(kind=kind, worker=worker, unix_s=START_UNIX_S + at) for kind, worker, at in world.faults
        ),
    )
