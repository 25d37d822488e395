"""What a push and a pull cost in the state machine of one partition, by the number of members.

    python benchmarks/clock_cost.py

Every member pushes and pulls, step after step, under each consistency model; nothing is sent, and no tensor
is touched. Prints one JSON line: for each model, microseconds of processor time for a push and a pull with so
many members, the best of several steps. Target: 1.5 times from 10 members to 1,000, in the worst model.
"""

from __future__ import annotations

import gc
import json
import time

from ps_server.agreement.gate import gate_of
from ps_server.shard.partition.backup_machine import machine_of
from ps_server.shard.partition.machine import Contribution, Pull, StepMachine
from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency

MODELS: tuple[Consistency, ...] = (BSP(), SSP(3), ASP(), BSP(1))
MEMBERS = (10, 100, 1000, 10_000)
PAIRS = 30_000  # of a push and a pull, in all
BATCH = 5  # members whose pushes and pulls are timed together
PAYLOAD = object()


def step_us(machine: StepMachine, step: int, members: int) -> float:
    """A push and a pull in one step: the median, for the last ones do what is done once for all."""
    batches = []
    for first in range(0, members, BATCH):
        inputs = [
            (
                Contribution(worker=it, incarnation=1, step=step, version=machine.version, payload=PAYLOAD),
                Pull(worker=it, incarnation=1, clock=step + 1),
            )
            for it in range(first, first + BATCH)
        ]
        begun_s = time.thread_time()
        for push, pull in inputs:
            machine.push(push, 0.0)
            machine.pull(pull)
        batches.append(time.thread_time() - begun_s)
    everyone = frozenset(range(members))
    if machine.gate.backup:
        machine.choose(step, everyone, 0.0)
    if machine.gate.aggregates:
        machine.decide(step, everyone, 1.0, 0.0)
    return 1e6 * sorted(batches)[len(batches) // 2] / BATCH


def pair_us(model: Consistency, members: int) -> float:
    """See the module's docstring."""
    machine = machine_of(gate_of(model))
    for worker in range(members):
        machine.join(worker, 1, 0, 0.0)
    return min(step_us(machine, step, members) for step in range(max(PAIRS // members, 3)))


def main() -> None:
    gc.freeze()
    found = {str(model): {str(members): pair_us(model, members) for members in MEMBERS} for model in MODELS}
    growth = max(cost["1000"] / cost["10"] for cost in found.values())
    print(json.dumps({"us": found, "growth": growth}))


if __name__ == "__main__":
    main()
