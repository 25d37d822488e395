"""Checks on the instrument of comparisons, over real processes: workers that sleep, whatever the cores do.

    python benchmarks/instrument.py --check forms      closed forms, and the simulator beside the same runs
    python benchmarks/instrument.py --check aa         one model against itself, five seeds

`forms`: four workers sleep 150 ms in each step, with the stragglers of `PS_STRAGGLER`. A step of bsp is to
take as long as the slowest worker of each step has drawn (`of the draws`; what theory expects stands beside
it), one of bsp:backup=1 as the (N - 1)-th push of each step; the mean tau of asp with equal workers is to be
N - 1 (they begin apart: a push that falls between another worker's push and its read is in no tau, and
workers that push together have many), and tau under ssp:2 is to stay below its bound. Simulations of the same
runs, with 150 ms and nothing else, are to be as fast, and to have the same tau. `aa`: asp is compared with
itself; nothing is to be found.
One JSON line.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import queue
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ps_lab.compare import facts
from ps_lab.compare.comparison import Comparison
from ps_lab.compare.folder import Folder
from ps_lab.compare.local_runner import LocalRunner
from ps_lab.compare.metrics import RunFigures
from ps_lab.compare.results import read_run
from ps_lab.compare.sentences import SPEED, findings
from ps_lab.experiments.experiment import parse
from ps_lab.experiments.plan import Run
from ps_lab.simulate.closed_forms import mean_tau, step_s
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, Simulation
from ps_lab.simulate.fit import validate
from ps_wire.spec import consistency, staleness
from ps_wire.spec.consistency import BSP

HERE = Path(__file__).resolve().parent
COMPUTE_S = 0.15
WORKERS = 4
FORMS = f"""
name = "forms"
script = "sleeping_worker.py"
arguments = ["--steps", "80", "--compute-s", "{COMPUTE_S}"]
models = ["bsp", "bsp:backup=1", "ssp:2", "asp"]
servers = 1
workers = {WORKERS}
seeds = [1]
seed_argument = ""
[[profiles]]
name = "quiet"
[[profiles]]
name = "transient"
straggler = "transient:p=0.2,f=3"
[[profiles]]
name = "exponential"
straggler = "exponential:mean=0.5"
"""
AA = f"""
name = "aa"
script = "sleeping_worker.py"
arguments = ["--steps", "30", "--compute-s", "{COMPUTE_S}"]
models = ["asp"]
servers = 1
workers = {WORKERS}
seeds = [0, 1, 2, 3, 4]
seed_argument = ""
[[profiles]]
name = "transient"
straggler = "transient:p=0.2,f=3"
"""
RUNS = {
    ("bsp", "transient"),
    ("bsp", "exponential"),
    ("bsp:backup=1", "transient"),
    ("bsp:backup=1", "exponential"),
    ("ssp:2", "transient"),
    ("asp", "quiet"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", choices=("forms", "aa"), default="forms")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ps-instrument-") as folder:
        found = forms(Path(folder)) if args.check == "forms" else same_model_twice(Path(folder))
    print(json.dumps(found))


def forms(where: Path) -> dict[str, float]:
    folder = Folder.make(where / "runs", parse(FORMS), FORMS)
    done([folder])
    found = {name: value for one in figures(folder) for name, value in of_run(one).items()}
    ratios = [value for name, value in found.items() if name.endswith("simulated / real")]
    moved = [value for name, value in found.items() if name.endswith("tau moved by")]
    tau = found["asp quiet: mean tau / (N - 1)"]
    steps = [value for name, value in found.items() if name.endswith("of the draws")]
    return {
        **found,
        "step_off": max(abs(value - 1.0) for value in steps),
        "tau_off": abs(tau - 1.0),
        "ratio_off": max(abs(value - 1.0) for value in ratios),
        "tau_moved": max(moved),
    }


def same_model_twice(where: Path) -> dict[str, float]:
    """Both arms in turn, seed by seed, so that a machine that gets slower is nobody's disadvantage."""
    arms = [Folder.make(where / name, parse(AA), AA) for name in ("one", "other")]
    done(arms)
    found = findings(*(Comparison.read(arm) for arm in arms))
    speeds = [one.effect for one in found if one.question == SPEED and one.effect is not None]
    return {
        "statements": len(found),
        "found": sum(one.found for one in found),
        "speed_ratio": speeds[0].value if speeds else math.nan,
    }


def done(folders: Iterable[Folder]) -> None:
    """Does the runs that are looked at, those of all folders in turn."""
    queued = [list(folder.missing()) for folder in folders]
    machine = facts.gather(HERE / "sleeping_worker.py")
    with LocalRunner(HERE, events=queue.SimpleQueue(), on_progress=lambda _line: None) as runner:
        for together in zip(*queued, strict=True):
            for one in together:
                if len(queued) == 1 and (one.run.model, one.run.profile.name) not in RUNS:
                    continue
                one.begin(machine)
                outcome = runner.run(one.run, records=one.records, log=one.path / "output.log")
                if outcome.reason:
                    raise SystemExit((one.path / "output.log").read_text() + outcome.reason)
                one.end(outcome)


def figures(folder: Folder) -> list[RunFigures]:
    read = (read_run(one) for one in folder.runs)
    return [RunFigures(data, None) for data in read if data.ended]


def of_run(one: RunFigures) -> dict[str, float]:
    """What was measured of a run, over what it is to be; the first step is left out."""
    run = one.data.run
    model = consistency.parse(run.model)
    name = f"{run.model} {run.profile.name}"
    stragglers = run.profile.stragglers(run.seed)
    steps = max(len(it.steps) for it in one.recorded)
    simulated = Simulation(
        Setup(
            consistency=model,
            num_workers=run.workers,
            num_steps=steps,
            costs=Costs(compute_s=((COMPUTE_S,),)),
            stragglers=stragglers,
            seed=run.seed,
        )
    ).run()
    near = validate(one.data.recordings, simulated)
    found = {f"{name}: throughput, simulated / real": near.ratio}
    if not isinstance(model, BSP) or not model.backup:  # whose records have no tau
        found[f"{name}: tau moved by"] = near.wasserstein
    else:
        found[f"{name}: step / of the draws"] = closing_s(one) / ordered_s(run, model.backup, steps)
    if run.model == "bsp":
        took_s = mean_step_s(one)
        theory_s = step_s(model, stragglers, run.workers, COMPUTE_S)
        assert theory_s is not None
        found[f"{name}: step / of the draws"] = took_s / drawn_s(run, steps)
        found[f"{name}: step / of theory"] = took_s / theory_s
    if run.model == "asp":
        found[f"{name}: mean tau / (N - 1)"] = tau_in_the_middle(one) / mean_tau(run.workers)
    bound = staleness.bound(model, run.workers)
    if bound and one.tau is not None:
        found[f"{name}: largest tau / bound"] = one.tau.max / bound
    return found


def ordered_s(run: Run, backup: int, steps: int) -> float:
    """A step that closes with the (N - B)-th push of those that are computed for it.

    Who comes too late begins at once with the step that is under way then.
    """
    profile = run.profile.stragglers(run.seed)
    pushes = [(0.0, worker, 0) for worker in range(run.workers)]  # the first step is never slow
    clock, here, closed_s = 0, list[int](), list[float]()
    while len(closed_s) < steps:
        now_s, worker, of = heapq.heappop(pushes)
        begin = [worker]
        if of == clock:
            here.append(worker)
            begin = []
            if len(here) == run.workers - backup:
                begin, here = here, []
                clock += 1
                closed_s.append(now_s)
        for one in begin:
            heapq.heappush(pushes, (now_s + COMPUTE_S * profile.at(one, clock).factor, one, clock))
    return (closed_s[-1] - closed_s[0]) / (steps - 1)


def closing_s(one: RunFigures) -> float:
    """Mean time between two steps of the job, as its workers saw it."""
    seen = [
        float(it.ended_unix_s[-1] - it.ended_unix_s[0]) / (it.steps[-1].clock - it.steps[0].clock)
        for it in one.recorded
    ]
    return sum(seen) / len(seen)


def tau_in_the_middle(one: RunFigures) -> float:
    """Mean over the middle half of all pushes: at its beginning and its end not all workers are there."""
    tau = one.column("tau")
    return float(tau[tau.size // 4 : -(tau.size // 4)].mean())


def mean_step_s(one: RunFigures) -> float:
    ended = [float(it.ended_unix_s[-1] - it.ended_unix_s[0]) / (len(it.steps) - 1) for it in one.recorded]
    return sum(ended) / len(ended)


def drawn_s(run: Run, steps: int) -> float:
    """A step, as long as its slowest worker."""
    profile = run.profile.stragglers(run.seed)
    slowest = [
        max(profile.at(worker, step).factor for worker in range(run.workers)) for step in range(1, steps)
    ]
    return COMPUTE_S * sum(slowest) / len(slowest)


if __name__ == "__main__":
    main()
