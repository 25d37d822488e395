"""Interrupts a script that stops early by itself in every way, and compares what it ends with.

    python -m tests.faults.resume --seed 1 --runs 100

A run is a job of one to three workers under one consistency, and one or two interruptions of `Way`, drawn
from the seed. Each is bound to a step of a worker; where in the step it falls is chance. A supervisor starts
again whatever ends before its time. What every worker has to end with is in `resume_checks`. Ways of
networks and of disks need namespaces, and are left out where there can be none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import torch

from tests.integration.manifests import manifests
from tests.integration.processes import Process, Start, Zygote
from tests.integration.servers import Servers, fresh_job
from tests.until import LIMIT_S, until

from . import limits, links
from .links import Disk, Link
from .proxy import Proxy
from .resume_checks import JOINED_AGAIN, Ended, check, check_alike
from .resume_plan import OF_NETWORK, OF_WORKERS, Plan, Way, draw

SCRIPT = str(Path(__file__).with_name("resumed.py"))
LEASE_S = 1.0
LONG_LEASE_S = 60.0  # where nobody is to be evicted, however busy this machine is
EVERY_STEPS = 5  # between snapshots
TRIES = 3  # of shard 1 to reach shard 0, until it does again
# How a worker ends that is to be started again; by the signal itself where it was just being started.
AGAIN = {75, 130, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM}
NETWORK_SAID = "does not answer|broke; trying again"
INSIDE = "FAULTS_INSIDE"  # of the environment: this process is in a namespace that was made for it
NOTICED = limits.text(  # else a silent peer is noticed after 15 s, or after 25
    ps_worker__transport__liveness__SILENT_S=0.5,
    ps_worker__transport__liveness__ANSWER_LIMIT_S=2.0,
    ps_wire__sockets__frame_socket__KEEPALIVE_S=(1, 1, 1),
)


class Run:
    """One job, from its start to its end, in a namespace where it needs one. `close` kills what is left."""

    def __init__(self, start: Start, folder: Path, plan: Plan, lease_s: float = LEASE_S) -> None:
        folder.mkdir()
        self._start_process = start
        self._plan = plan
        self._lease_s = lease_s
        self._job = fresh_job()
        self._records = [folder / f"worker-{worker}" for worker in range(plan.num_workers)]
        self._commands: list[tuple[str, ...]] = []
        self.started: list[Process] = []
        self._snapshots = folder / "snapshots"
        self._resources = contextlib.ExitStack()
        try:
            self._begin_all()
        except BaseException:
            self.close()
            raise

    def _begin_all(self) -> None:
        plan, keep = self._plan, self._resources.enter_context
        self._links = [keep(Link(worker + 1)) for worker in range(plan.num_workers * plan.has(OF_NETWORK))]
        self._disk = keep(Disk(self._snapshots)) if plan.has({Way.FULL}) else None
        self._between: Proxy | None = None
        options = ("--snapshot-dir", str(self._snapshots), "--snapshot-every", f"{EVERY_STEPS}steps")
        if self._links:
            options += ("--host", "0.0.0.0", "--insecure")
        self._servers = Servers(self._begin_server, 2, *options)
        self._resources.callback(self._servers.close)
        self._workers = [self._begin(worker) for worker in range(plan.num_workers)]

    def run(self) -> Ended:
        """What it ended with."""
        for way, who, step, shard in self._plan.ways:
            self._wait_step(who, step)
            self._interrupt(way, who, shard)
        self._wait_finished()
        return Ended(
            workers=[json.loads(record.read_text().splitlines()[-1]) for record in self._records],
            checkpoint=max(map(torch.load, self._checkpoints()), key=lambda saved: saved["epoch"]),
            steps=[
                [line for line in process.lines if line.startswith("step ") or JOINED_AGAIN in line]
                for process in self.started
                if process.name.startswith("ps-worker")
            ],
            mixed=self._mixed(),
        )

    def _checkpoints(self) -> list[Path]:
        """What workers have saved; one that was away from the best epoch on has an older one, or none."""
        saved = [record.with_suffix(".best") for record in self._records]
        return [checkpoint for checkpoint in saved if checkpoint.exists()]

    def _mixed(self) -> int:
        """Steps that closed otherwise than the job's workers have, by chance.

        With a push of one that had not come everywhere; where one was evicted since this machine is busy;
        where all were in `finish()` when the job went back: each ended with 75, and came again by itself.
        """
        tables = [table for shard in range(2) for table in self._servers.figures(shard).tables]
        mixed = sum(table.mixed_steps for table in tables if table.job == self._job)
        mixed += sum("ps-worker: RolledBack" in process.text for process in self.started)
        if self._plan.num_workers > 1 and not self._plan.evicts:
            mixed += sum(process.text.count(" event=evict ") for process in self.started)
        return mixed

    def close(self) -> None:
        for process in self.started:
            process.signal(signal.SIGCONT)
            process.kill()
        self._resources.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _spawn(self, *command: str, **environment: str) -> Process:
        self.started.append(self._start_process(*command, environment=environment))
        return self.started[-1]

    def _begin_server(self, *command: str) -> Process:
        if self._plan.has({Way.PART}) and "--coordinator" in command:
            at = command.index("--coordinator") + 1
            self._between = self._resources.enter_context(Proxy(command[at]))
            command = (*command[:at], self._between.address, *command[at + 1 :])
        self._commands.append(command)
        return self._spawn(*command)

    def _begin(self, worker: int) -> Process:
        plan = self._plan
        environment, servers = {}, self._servers.option
        if plan.has({Way.HANG, *OF_NETWORK}):
            environment = {"TESTS_INSTALL": limits.__name__, limits.LIMITS: NOTICED}
        if self._links:
            environment |= self._links[worker].environment
            environment["TESTS_INSTALL"] = f"{links.__name__},{limits.__name__}"
            servers = servers.replace("127.0.0.1", self._links[worker].host)
        return self._spawn(
            "ps-worker",
            *("--servers", servers, "--job", self._job, "--consistency", plan.consistency),
            *("--num-workers", str(plan.num_workers), "--worker", str(worker), "--lease", str(self._lease_s)),
            *(SCRIPT, str(self._records[worker])),
            **environment,
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
            return self._is_over()

        until(are_over, "all workers have finished")
        for process in self._workers:
            assert "Traceback" not in process.text, process.text

    def _is_over(self) -> bool:
        return all(process.is_over and process.wait_end(LIMIT_S) == 0 for process in self._workers)

    def _interrupt(self, way: Way, who: int, shard: int) -> None:
        whom = range(self._plan.num_workers) if way.name.startswith("ALL") else [who]
        if way in OF_WORKERS:
            for worker in whom:
                self._workers[worker].signal(OF_WORKERS[way])
            for worker in whom:
                if self._workers[worker].wait_end(LIMIT_S) != 0:
                    self._go_on(worker)
            return
        match way:
            case Way.ALL_PAUSE | Way.ONE_PAUSE | Way.BLINK:
                everybody = range(self._plan.num_workers)
                self._pause(everybody if way is Way.BLINK else whom, evicted=way is not Way.BLINK)
            case Way.CUT | Way.CUT_BLINK | Way.SILENCE | Way.LOSS:
                with self._network(way, self._links[who]):
                    self._wait_noticed(way, who)
            case Way.HANG:
                self._hang(shard)
            case Way.PART:
                assert self._between is not None
                self._between.cut()
                self._between.wait_tries(TRIES)
                self._between.mend()
            case Way.FULL:
                self._fill_disk()
            case _:
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

    @contextlib.contextmanager
    def _network(self, way: Way, link: Link) -> Iterator[None]:
        begin, end = {
            Way.CUT: (link.cut, link.mend),
            Way.CUT_BLINK: (link.cut, link.mend),
            Way.SILENCE: (link.silence, link.speak),
            Way.LOSS: (link.lose, link.lose_no_more),
        }[way]
        begin()
        try:
            yield
        finally:
            end()

    def _wait_noticed(self, way: Way, worker: int) -> None:
        """Until the way has done what it is to do, or cannot: where the worker is out of the job."""
        process, link = self._workers[worker], self._links[worker]
        said = len(re.findall(NETWORK_SAID, process.text))
        noticed: dict[Way, Callable[[], object]] = {
            Way.CUT: lambda: False,
            Way.CUT_BLINK: lambda: True,
            Way.SILENCE: lambda: len(re.findall(NETWORK_SAID, process.text)) > said,
            Way.LOSS: link.lost,
        }
        until(
            lambda: noticed[way]() or process.is_over or not self._trains(worker),
            f"{way}: worker {worker} has noticed, or was evicted",
        )

    def _hang(self, shard: int) -> None:
        server, said = self._servers.processes[shard], f"shard {shard} at .* does not answer"

        def count() -> int:
            return sum(len(re.findall(said, process.text)) for process in self.started)

        before = count()
        server.signal(signal.SIGSTOP)
        try:
            until(lambda: count() > before or self._is_over(), f"a worker says that shard {shard} hangs")
        finally:
            server.signal(signal.SIGCONT)

    def _fill_disk(self) -> None:
        assert self._disk is not None
        coordinator, said = self._servers.processes[0], "NO SNAPSHOT.*No space left"
        before = len(re.findall(said, coordinator.text))

        def failed() -> bool:
            self._disk.fill()  # an older snapshot may be deleted meanwhile, and leave room for one more
            return len(re.findall(said, coordinator.text)) > before or self._is_over()

        self._disk.fill()
        try:
            until(failed, "a snapshot fails")
        finally:
            self._disk.empty()

    def _end_servers(self, way: Way, shard: int) -> None:
        """And starts them again; where none has a snapshot yet, nothing happens."""
        if way is not Way.SERVER_TERM and not manifests(self._snapshots):
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


def undisturbed(start: Start, folder: Path, consistency: str, num_workers: int) -> Ended:
    """What a run ends with that nobody disturbs."""
    plan = Plan(consistency=consistency, num_workers=num_workers, ways=())
    run = Run(start, folder, plan, LONG_LEASE_S)
    try:
        found = run.run()
    finally:
        run.close()
    check_alike(found)
    check(plan, found, found)
    return found


def main() -> None:
    """So many runs; what fails says how it is run again, and keeps its logs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.resume", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", type=int, help="this run alone")
    parser.add_argument("--plain", action="store_true", help="without ways of networks and disks")
    given = parser.parse_args()
    if given.plain:
        os.environ.pop(INSIDE, None)
    elif INSIDE not in os.environ:
        if (reason := links.refusal()) is None:
            raise SystemExit(in_namespace(sys.argv[1:]))
        say(f"no ways of networks and disks: {reason}")
    else:
        links.ip("link", "set", "lo", "up")
    folder = Path(tempfile.mkdtemp(prefix="resume-"))
    zygote = Zygote()
    expected: dict[tuple[str, int], Ended] = {}
    figures: Counter[str] = Counter()
    failed = []
    try:
        for number in range(given.runs) if given.only is None else [given.only]:
            plan = draw(given.seed, number, namespaces=INSIDE in os.environ)
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
            figures.update(f"{way}" for way, *_ in plan.ways)
            say(f"run {number}: {plan}")
    finally:
        zygote.close()
    exact, alike = figures.pop("exact", 0), figures.pop("alike", 0)
    say(f"{exact} to the bit, {alike} alike, {len(failed)} failed: {failed}")
    say("; ".join(f"{count} times {way}" for way, count in sorted(figures.items())))
    if failed:
        sys.exit(f"logs: {folder}")
    shutil.rmtree(folder)


def in_namespace(words: list[str]) -> int:
    """Does it in a namespace; the exit code."""
    command = [*links.UNSHARE, sys.executable, "-m", "tests.faults.resume", *words]
    return subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode


def run_one(start: Start, folder: Path, plan: Plan, expected: Ended) -> int:
    """One run; returns how many of its steps were mixed. Where it fails its logs stay in `folder`."""
    run = Run(start, folder, plan)
    try:
        found = run.run()
        check(plan, found, expected)
    finally:
        for number, process in enumerate(run.started):
            (folder / f"{number:02}-{process.name.split()[0]}.log").write_text(process.text + "\n")
        run.close()
    shutil.rmtree(folder)
    return found.mixed


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
