"""How fast the simulator is: a thousand workers and a thousand steps of each, on one core.

    python benchmarks/simulate.py --consistency ssp:3

One partition, transient stragglers, no gradients. Prints processor seconds, microseconds for a step and the
share of the servers' own machines in them, by a profile of a shorter run; one JSON line.
Target: 60 s.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time

from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_wire.spec import consistency, stragglers

PROFILED_STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--consistency", default="asp")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    started_s = time.process_time()
    outcome = simulation(args.consistency, args.workers, args.steps).run()
    cpu_s = time.process_time() - started_s
    figures = {
        "consistency": args.consistency,
        "steps": len(outcome.steps),
        "cpu_s": cpu_s,
        "us_per_step": cpu_s / len(outcome.steps) * 1e6,
        "machines_share": machines_share(args.consistency, args.workers),
        "virtual_s": outcome.duration_s,
    }
    print(json.dumps(figures))


def simulation(model: str, num_workers: int, num_steps: int) -> Simulation:
    setup = Setup(
        consistency=consistency.parse(model),
        num_workers=num_workers,
        num_steps=num_steps,
        costs=Costs(latency_s=0.0005),
        stragglers=stragglers.parse("transient:p=0.1,f=4"),
    )
    return Simulation(setup)


def machines_share(model: str, num_workers: int) -> float:
    """Of the time, in calls of `ps_server`; a profile costs itself, so this is about right only."""
    run = simulation(model, num_workers, PROFILED_STEPS)
    profile = cProfile.Profile()
    outcome: SimulatedRun = profile.runcall(run.run)
    assert len(outcome.steps)
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total_s = sum(own_s for _, _, own_s, _, _ in found.values())
    theirs_s = sum(own_s for (file, _, _), (_, _, own_s, _, _) in found.items() if "/ps_server/" in file)
    return float(theirs_s / total_s)


if __name__ == "__main__":
    main()
