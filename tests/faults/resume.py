"""Interrupts a script that stops early by itself in every way, and compares what it ends with.

    python -m tests.faults.resume --seed 1 --runs 100

A run is a job of one to three workers under one consistency, and one or two interruptions of `Way`, drawn
from the seed. Each is bound to a step of a worker; where in the step it falls is chance. A supervisor starts
again whatever ends before its time. At the end every worker has the epochs, the schedules and the learning
rate of a run that nobody disturbed, every sample of each epoch is used once, and, where the same workers took
part in all steps of a `bsp` job, it has its steps and the bits of its weights.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc

from ps_wire.snapshot.manifest import MANIFEST
from tests.integration.processes import Process, Start, Zygote
from tests.integration.servers import Servers, fresh_job
from tests.until import LIMIT_S, until

from . import resumed

SCRIPT = str(Path(__file__).with_name("resumed.py"))
CONSISTENCIES = ("bsp", "ssp:2", "asp")
LEASE_S = 1.0
EVERY_STEPS = 5  # between snapshots
# How a worker ends that is to be started again; by the signal itself where it was just being started.
AGAIN = {75, 130, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM}


class Way(StrEnum):
    """How a job is interrupted."""

    ALL_TERM = "SIGTERM to all workers"
    ALL_INT = "Ctrl-C in all workers"
    ALL_KILL = "SIGKILL of all workers"
    ONE_TERM = "SIGTERM to one worker"
    ONE_KILL = "SIGKILL of one worker"
    ALL_PAUSE = "all workers are paused for longer than their lease"
    ONE_PAUSE = "one worker is paused for longer than its lease"
    BLINK = "all workers are paused for less than their lease"
    SERVER_KILL = "SIGKILL of a server"
    SERVER_TERM = "a server is stopped, and started again"
    EVERYTHING = "SIGKILL of all servers and workers"


OF_WORKERS = {
    Way.ALL_TERM: signal.SIGTERM,
    Way.ALL_INT: signal.SIGINT,
    Way.ALL_KILL: signal.SIGKILL,
    Way.ONE_TERM: signal.SIGTERM,
    Way.ONE_KILL: signal.SIGKILL,
}
KEEPS_MEMBERS = {Way.BLINK, Way.SERVER_KILL, Way.SERVER_TERM, Way.EVERYTHING}  # in all steps that count
EVICTS = {Way.ALL_KILL, Way.ONE_KILL, Way.ALL_PAUSE, Way.ONE_PAUSE, Way.EVERYTHING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a run: ways, each with the worker and its step, and the shard."""

    consistency: str
    num_workers: int
    ways: tuple[tuple[Way, int, int, int], ...]

    @property
    def exact(self) -> bool:
        """Whether it ends with the bits of a run that nobody disturbed."""
        return self.consistency == "bsp" and (
            self.num_workers == 1 or all(way in KEEPS_MEMBERS for way, *_ in self.ways)
        )

    @property
    def evicts(self) -> bool:
        """Whether a worker is evicted by what happens in it."""
        return any(way in EVICTS for way, *_ in self.ways)

    def __str__(self) -> str:
        ways = "; ".join(
            f"{way}, worker {who} at step {step}, shard {shard}" for way, who, step, shard in self.ways
        )
        return f"{self.consistency}, {self.num_workers} workers: {ways}"


def draw(seed: int, number: int) -> Plan:
    """Run `number` of a seed: models, numbers of workers and ways in turn, the rest by chance."""
    rng = random.Random(seed * 1_000_003 + number)
    num_workers = 1 + number // len(CONSISTENCIES) % 3
    steps = resumed.SAMPLES // resumed.BATCH // num_workers * resumed.LAST
    ways = list(Way)
    chosen = [ways[(seed + number) % len(ways)], *rng.sample(ways, rng.choice((0, 1)))]
    at = sorted(rng.sample(range(2, steps * 2 // 3), len(chosen)))
    return Plan(
        consistency=CONSISTENCIES[number % len(CONSISTENCIES)],
        num_workers=num_workers,
        ways=tuple(
            (way, rng.randrange(num_workers), step, rng.randrange(2))
            for way, step in zip(chosen, at, strict=True)
        ),
    )


class Run:
    """One job, from its start to its end. `close` kills what is left."""

    def __init__(self, start: Start, folder: Path, plan: Plan) -> None:
        folder.mkdir()
        self._start_process = start
        self._plan = plan
        self._job = fresh_job()
        self._records = [folder / f"worker-{worker}" for worker in range(plan.num_workers)]
        self._commands: list[tuple[str, ...]] = []
        self.started: list[Process] = []
        options = ("--snapshot-dir", str(folder / "snapshots"), "--snapshot-every", f"{EVERY_STEPS}steps")
        self._snapshots = folder / "snapshots"
        self._servers = Servers(self._begin_server, 2, *options)
        self._workers = [self._begin(worker) for worker in range(plan.num_workers)]

    def run(self) -> list[dict[str, Any]]:
        """What each worker ended with last."""
        for way, who, step, shard in self._plan.ways:
            self._wait_step(who, step)
            self._interrupt(way, who, shard)
        self._wait_finished()
        return [json.loads(record.read_text().splitlines()[-1]) for record in self._records]

    def mixed(self) -> int:
        """Steps that closed with a push of a worker which had not come everywhere."""
        tables = [table for shard in range(2) for table in self._servers.figures(shard).tables]
        return sum(table.mixed_steps for table in tables if table.job == self._job)

    def evictions(self) -> int:
        """Workers that were evicted; more than were paused for that, where this machine is busy."""
        return sum(process.text.count(" event=evict ") for process in self.started)

    def sent_back_at_the_end(self) -> int:
        """Workers that were in `finish()` when the job went back: each ended with 75, and came again."""
        return sum("ps-worker: RolledBack" in process.text for process in self.started)

    def close(self) -> None:
        for process in self.started:
            process.kill()
        self._servers.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _spawn(self, *command: str) -> Process:
        self.started.append(self._start_process(*command))
        return self.started[-1]

    def _begin_server(self, *command: str) -> Process:
        self._commands.append(command)
        return self._spawn(*command)

    def _begin(self, worker: int) -> Process:
        plan = self._plan
        return self._spawn(
            "ps-worker",
            *("--servers", self._servers.option, "--job", self._job, "--consistency", plan.consistency),
            *("--num-workers", str(plan.num_workers), "--worker", str(worker), "--lease", str(LEASE_S)),
            *(SCRIPT, str(self._records[worker])),
        )

    def _wait_step(self, worker: int, step: int) -> None:
        """Until the worker has taken so many steps, or has ended; one that is to be started again is."""

        def there() -> bool:
            process = self._workers[worker]
            lines = list(process.lines)
            steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
            self._supervise()
            return any(line == "finished" for line in lines) or (bool(steps) and max(steps) >= step)

        until(there, f"worker {worker} is at step {step}: {self._workers[worker].text}")

    def _supervise(self) -> None:
        """Starts again whoever has ended before its time."""
        for worker, process in enumerate(self._workers):
            if process.is_over and process.wait_end(LIMIT_S) != 0:
                self._go_on(worker)

    def _go_on(self, worker: int) -> None:
        code = self._workers[worker].wait_end(LIMIT_S)
        assert code in AGAIN, f"worker {worker} ended with {code}:\n{self._workers[worker].text}"
        self._workers[worker] = self._begin(worker)

    def _wait_finished(self) -> None:
        def are_over() -> bool:
            self._supervise()
            return all(process.is_over and process.wait_end(LIMIT_S) == 0 for process in self._workers)

        until(are_over, "all workers have finished")
        for process in self._workers:
            assert "Traceback" not in process.text, process.text

    def _interrupt(self, way: Way, who: int, shard: int) -> None:
        whom = range(self._plan.num_workers) if way.name.startswith("ALL") else [who]
        if way in OF_WORKERS:
            for worker in whom:
                self._workers[worker].signal(OF_WORKERS[way])
            for worker in whom:
                if self._workers[worker].wait_end(LIMIT_S) != 0:
                    self._go_on(worker)
        elif way in (Way.ALL_PAUSE, Way.ONE_PAUSE, Way.BLINK):
            everybody = range(self._plan.num_workers)
            self._pause(everybody if way is Way.BLINK else whom, evicted=way is not Way.BLINK)
        else:
            self._end_servers(way, shard)

    def _pause(self, whom: Any, *, evicted: bool) -> None:
        paused = [self._workers[worker] for worker in whom]
        for process in paused:
            process.signal(signal.SIGSTOP)
        try:
            if evicted:
                for worker in whom:
                    until(lambda worker=worker: not self._trains(worker), f"worker {worker} is evicted")
        finally:
            for process in paused:
                process.signal(signal.SIGCONT)

    def _trains(self, worker: int) -> bool:
        try:
            status = self._servers.status(self._job)
        except grpc.RpcError:  # the coordinator is on its way back: it evicts nobody yet
            return True
        states = {entry.worker: entry.state for entry in status.workers} if status is not None else {}
        return states.get(worker) in ("joined", "running", "joining")

    def _end_servers(self, way: Way, shard: int) -> None:
        """And starts them again; where none has a snapshot yet, nothing happens."""
        if way is not Way.SERVER_TERM and not any(self._snapshots.rglob(MANIFEST)):
            return
        shards = (0, 1) if way is Way.EVERYTHING else (shard,)
        ended = [self._servers.processes[index] for index in shards]
        workers = list(self._workers) if way is Way.EVERYTHING else []
        for process in (*workers, *ended):
            process.signal(signal.SIGTERM if way is Way.SERVER_TERM else signal.SIGKILL)
        for process in ended:
            process.wait_end(LIMIT_S)
        for index in shards:
            self._servers.processes[index] = self._spawn(*self._commands[index])
        for worker, process in enumerate(workers):
            if process.wait_end(LIMIT_S) != 0:
                self._go_on(worker)


def check(plan: Plan, found: list[dict[str, Any]], expected: dict[str, Any], *, mixed: int) -> None:
    """What every worker ended with is what it ends with where nobody disturbs it."""
    trained = [it for it in found if not it["ended"]]
    late = len(trained) < len(found)  # one came, or came back, when the job had ended: its rest stays unused
    for it in trained:
        assert it["bodies"][-1] == resumed.LAST, it
        for name in ("lr", "per_epoch", "seen"):
            assert it[name] == expected[name], (name, it[name], expected[name], it)
        for epoch, (used, unused) in it["used"].items():
            assert used == resumed.SAMPLES or late or mixed, (epoch, used, unused, it)
        if plan.consistency == "bsp" and not mixed and not broken_off(plan, it):
            assert it["per_step"] == it["looped"], it
            if plan.exact:
                assert (it["steps"], it["weights"]) == (expected["steps"], expected["weights"]), (
                    it,
                    expected,
                )


def broken_off(plan: Plan, found: dict[str, Any]) -> bool:
    """Whether a worker was told to go while a step was leaving: it abstains from the rest of that step."""
    times = sum(way in (Way.ALL_INT, Way.ALL_TERM, Way.ONE_TERM) for way, *_ in plan.ways)
    return 0 < found["looped"] - found["per_step"] <= times


def undisturbed(start: Start, folder: Path, consistency: str, num_workers: int) -> dict[str, Any]:
    """What a run ends with that nobody disturbs."""
    plan = Plan(consistency=consistency, num_workers=num_workers, ways=())
    run = Run(start, folder, plan)
    try:
        found = run.run()
    finally:
        run.close()
    assert [it["bodies"] for it in found] == [list(range(resumed.LAST + 1))] * num_workers, found
    check(plan, found, found[0], mixed=0)
    return found[0]


def main() -> None:
    """So many runs; what fails says how it is run again, and keeps its logs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.resume", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", type=int, help="this run alone")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="resume-"))
    zygote = Zygote()
    expected: dict[tuple[str, int], dict[str, Any]] = {}
    figures: Counter[str] = Counter()
    failed = []
    try:
        for number in range(given.runs) if given.only is None else [given.only]:
            plan = draw(given.seed, number)
            kind = plan.consistency, plan.num_workers
            if kind not in expected:
                expected[kind] = undisturbed(zygote.start, folder / f"whole-{number}", *kind)
            try:
                mixed = run_one(zygote.start, folder / f"run-{number}", plan, expected[kind])
            except (AssertionError, TimeoutError) as error:
                failed.append(number)
                say(f"run {number} FAILED (--seed {given.seed} --only {number}): {plan}\n{error}")
                continue
            figures["exact" if plan.exact and not mixed else "alike"] += 1
            say(f"run {number}: {plan}")
    finally:
        zygote.close()
    say(f"{figures['exact']} to the bit, {figures['alike']} alike, {len(failed)} failed: {failed}")
    if failed:
        sys.exit(f"logs: {folder}")
    shutil.rmtree(folder)


def run_one(start: Start, folder: Path, plan: Plan, expected: dict[str, Any]) -> int:
    """One run; returns how many of its steps were mixed. Where it fails its logs stay in `folder`."""
    run = Run(start, folder, plan)
    try:
        found = run.run()
        mixed = run.mixed() + run.sent_back_at_the_end()
        if plan.num_workers > 1 and not plan.evicts:
            mixed += run.evictions()  # by chance: then the same workers did not take part in all steps
        check(plan, found, expected, mixed=mixed)
    finally:
        for number, process in enumerate(run.started):
            (folder / f"{number:02}-{process.name.split()[0]}.log").write_text(process.text + "\n")
        run.close()
    shutil.rmtree(folder)
    return mixed


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
