"""Chaos over real processes: faults drawn from a seed, and at the end the ledger holds.

    python -m tests.faults.chaos --seed 1 --minutes 2

A round is a job. In half of the time, where this machine permits it, each worker has a network of its own,
which is cut and slow. What failed says its seed, its schedule, where the logs are, and how it is run again:
`--seed 1 --only 7`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ps_wire.snapshot import MANIFEST
from tests.integration.processes import LIMIT_S, Process, Start, Zygote
from tests.integration.servers import until

from . import links
from .controller import Faults, Stop
from .links import Link
from .middle import Fault, Middle
from .schedule import Act, Event, Round, draw
from .world import World

COMPUTE_S = 0.004  # of a step: who comes back finds the others still training
STEPS = 400
SLOW = "20mbit"
EVERY_STEPS = 10  # between snapshots, where servers are killed
ROUND_LIMIT_S = 100.0  # for its workers to end; what a fault waits for has 40 s
INSIDE = "FAULTS_INSIDE"  # of the environment: this process is in a namespace that was made for it


class Chaos:
    """One round.

    Attributes:
        happened: events that came to their point, in that order.
    """

    def __init__(
        self, world: World, faults: Faults, plan: Round, networks: list[Link], snapshots: Path | None
    ) -> None:
        self.happened: list[Event] = []
        self._world = world
        self._faults = faults
        self._plan = plan
        self._networks = networks
        self._snapshots = snapshots
        self._reach: dict[int, str] = {}
        self._workers: dict[int, Process] = {}
        self._killed: list[Process] = []
        self._lock = threading.Lock()  # guards who is which worker
        self._errors: list[BaseException] = []

    def run(self) -> None:
        """From the start of the job until all have ended, and the laws hold."""
        events = {
            self._faults.arm(event.process, event.point, since=event.step): event
            for event in self._plan.events
        }
        with self._middle() as middle:
            if middle is not None:
                self._reach[1] = f"{self._world.servers.addresses[0]},{middle.address}"
            for worker in range(self._plan.num_workers):
                self._begin(worker)
            stopping = threading.Event()
            doing = threading.Thread(target=self._do_all, args=(events, stopping), daemon=True)
            doing.start()
            until_s = time.monotonic() + ROUND_LIMIT_S
            try:
                for worker in range(self._plan.num_workers):
                    self._wait(worker, until_s)
            finally:
                stopping.set()
                doing.join(LIMIT_S)
                for process in self._killed:
                    process.wait_end()
        if self._errors:
            raise self._errors[0]
        self._world.check(*range(self._plan.num_workers))

    @contextlib.contextmanager
    def _middle(self) -> Iterator[Middle | None]:
        if not self._plan.frames:
            yield None
            return
        wanted = [Fault(kind=frame.kind, step=frame.step, do=frame.do) for frame in self._plan.frames]
        for fault in wanted:
            fault.go()  # what is delayed gives way to other threads, and goes on
        with Middle(self._world.servers.addresses[1], self._world.data_ports[1], wanted) as middle:
            yield middle

    def _begin(self, worker: int) -> None:
        extra: dict[str, str] = {"COMPUTE_S": str(COMPUTE_S)} | (
            {"ROLLBACKS": "1"} if self._snapshots else {}
        )
        reach = self._reach.get(worker)
        if self._networks:
            extra |= self._networks[worker].environment
            reach = self._world.servers.option.replace("127.0.0.1", self._networks[worker].host)
        self._workers[worker] = self._world.begin(
            worker,
            f"{self._plan.num_workers}",
            carrier=self._carrier(worker),
            steps=self._plan.steps,
            reach=reach,
            extra=extra,
        )

    def _carrier(self, worker: int) -> str:
        return "auto" if self._networks else self._plan.carriers[worker]

    def _wait(self, worker: int, until_s: float) -> None:
        """Until the process that is this worker last has ended."""
        while True:
            process = self._workers[worker]
            try:
                code = process.wait_end(max(until_s - time.monotonic(), 1.0))
            except TimeoutError:
                raise AssertionError(f"worker {worker} never ended:\n{process.text}") from None
            with self._lock:
                if self._workers[worker] is process:
                    assert code == 0, f"worker {worker} ended with {code}:\n{process.text}"
                    return

    def _do_all(self, events: dict[Stop, Event], stopping: threading.Event) -> None:
        threads = []
        while not stopping.is_set():
            stop = self._faults.poll_stop()
            if stop is not None:
                threads.append(threading.Thread(target=self._do, args=(events[stop], stop), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(LIMIT_S)

    def _do(self, event: Event, stop: Stop) -> None:
        try:
            self._act(event, stop)
        except BaseException as error:  # noqa: BLE001 - it is raised again by `run`
            self._errors.append(error)

    def _act(self, event: Event, stop: Stop) -> None:
        self.happened.append(event)
        side, number = event.process.split()
        if side == "server":
            self._kill_server(int(number), stop)
            return
        worker = int(number)
        process = self._workers[worker]
        match event.act:
            case Act.KILL:
                with self._lock:
                    process.signal(signal.SIGKILL)
                    self._begin(worker)
                    self._killed.append(process)
            case Act.PAUSE | Act.SLEEP:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGSTOP)
                stop.go()
                try:
                    until(lambda: is_stopped(process), f"{process.name} is stopped")
                    if event.act is Act.SLEEP:
                        self._wait_evicted(worker)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        process.signal(signal.SIGCONT)
            case Act.CUT | Act.BLINK:
                self._networks[worker].cut()
                stop.go()
                try:
                    if event.act is Act.CUT:
                        self._wait_evicted(worker)
                finally:
                    self._networks[worker].mend()

    def _kill_server(self, shard: int, stop: Stop) -> None:
        """And starts it again, at the same address; not before there is a snapshot to go back to."""
        assert self._snapshots is not None
        if not any(self._snapshots.rglob(MANIFEST)):
            stop.go()
            return
        self._world.servers.processes[shard].signal(signal.SIGKILL)
        self._killed.append(self._world.begin_server_again(shard))

    def _wait_evicted(self, worker: int) -> None:
        """A job that went back to a snapshot may have no worker of this number, or wait for it to return."""
        gone = lambda: self._world.state(worker) not in ("running", "joining", "unknown")  # noqa: E731
        until(gone, f"worker {worker} is evicted")


def is_stopped(process: Process) -> bool:
    """Whether SIGSTOP has arrived, or the process is gone."""
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return True


def kills_servers(plan: Round) -> bool:
    return any(event.process.startswith("server") for event in plan.events)


def run_round(start: Start, folder: Path, plan: Round, *, networks: bool) -> list[Event]:
    """One round; returns what happened. On an error the logs are in `folder`."""
    folder.mkdir()
    started: list[Process] = []

    def spawn(*command: str, **environment: str) -> Process:
        started.append(start(*command, environment=environment))
        return started[-1]

    with contextlib.ExitStack() as stack:
        faults = stack.enter_context(Faults(folder))
        made = [stack.enter_context(Link(worker + 1)) for worker in range(plan.num_workers * networks)]
        if made:
            made[0].slow(SLOW)
        options = ("--host", "0.0.0.0", "--insecure") if networks else ()
        snapshots = folder / "snapshots" if kills_servers(plan) else None
        if snapshots is not None:
            options += ("--snapshot-dir", str(snapshots), "--snapshot-every", f"{EVERY_STEPS}steps")
        try:
            world = World(spawn, faults, folder, plan.consistency, options)
            chaos = Chaos(world, faults, plan, made, snapshots)
            chaos.run()
            world.close()
        finally:
            for number, process in enumerate(started):
                with contextlib.suppress(OSError):  # one that was waited for in vain: it goes with the zygote
                    process.kill()
                name = "-".join(process.name.split()[:1])
                (folder / f"{number:02}-{name}.log").write_text(f"{process.name}\n{process.text}\n")
    return chaos.happened


def run(
    start: Start,
    folder: Path,
    *,
    seed: int,
    numbers: Iterable[int],
    until_s: float,
    steps: int,
) -> list[list[Event]]:
    """Rounds until it is past `until_s` of the monotonic clock; returns what happened in each."""
    inside = INSIDE in os.environ
    rounds: list[list[Event]] = []
    for number in numbers:
        if time.monotonic() > until_s:
            break
        plan = draw(seed, number, steps=steps, links=inside)
        place = folder / f"round-{number}"
        try:
            rounds.append(run_round(start, place, plan, networks=inside))
        except BaseException:
            again = f"--seed {seed} --only {number} --steps {steps}" + " --links" * inside
            say(
                f"chaos with seed {seed} failed in round {number} ({again}); logs and ledger: {place}\n{plan}"
            )
            raise
        say(f"round {number}: {len(rounds[-1])} of {len(plan.events)} events; {str(plan).splitlines()[0]}")
    return rounds


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Half of the time plain rounds, half of it rounds with networks, which a namespace is made for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--only", type=int, help="this round alone")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--links", action="store_true", help="rounds with networks alone")
    given = parser.parse_args()
    both = not given.links and given.only is None
    if given.links and INSIDE not in os.environ:
        raise SystemExit(with_links(sys.argv[1:]))
    if given.links:
        links.ip("link", "set", "lo", "up")
    minutes = given.minutes / 2 if both else given.minutes
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    zygote = Zygote(folder)
    numbers = itertools.count() if given.only is None else [given.only]
    until_s = time.monotonic() + 60 * minutes
    try:
        rounds = run(
            zygote.start,
            folder,
            seed=given.seed,
            numbers=numbers,
            until_s=until_s,
            steps=given.steps,
        )
    finally:
        zygote.close()
    shutil.rmtree(folder)
    say(f"{len(rounds)} rounds{' with networks of their own' * given.links} held")
    if both:
        words = f"--seed {given.seed} --steps {given.steps} --minutes {minutes} --links"
        raise SystemExit(with_links(words.split()))


def with_links(words: list[str]) -> int:
    """Does it in a namespace, where that is permitted; the exit code."""
    if reason := links.refusal():
        say(f"no rounds with networks: {reason}")
        return 0
    command = [*links.UNSHARE, sys.executable, "-m", "tests.faults.chaos", *words]
    return subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode


if __name__ == "__main__":
    main()
