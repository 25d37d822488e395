"""Servers and workers on this machine, as child processes of ours.

A context manager: it leaves no process behind, however it is left. The servers listen on loopback and hold
any number of jobs, one after the other or at once. Everything that happens arrives as an event in one queue,
which one thread reads: a process ended, a signal came.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from ps_lab.cluster.child import Child
from ps_lab.cluster.host import LOCAL, Host
from ps_lab.cluster.interrupts import Signalled
from ps_lab.cluster.ports import free_ports
from ps_lab.errors import CommandMissing, Interrupted, process_failed
from ps_lab.status.observer import is_serving
from ps_wire.access.access import from_environment
from ps_wire.errors import StartLimitExceeded
from ps_wire.frames.carrier import AUTO, Carrier

POLL_S = 0.1  # between two looks at a server that starts
START_LIMIT_S = (
    120.0  # a server imports torch first: 2 s, more than 40 s beside nine busy processes on two cores
)
GRACE_S = 10.0  # between SIGTERM and SIGKILL
DRAIN_LIMIT_S = 5.0  # of it, for a worker's step to end
SHORTCUTS = (None, AUTO)  # carriers that would find a way past a slow link


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has ended and its output is complete."""

    child: Child


Event: TypeAlias = Exited | Signalled


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that a cluster's workers run.

    Attributes:
        name: of the job on the servers.
        consistency: as typed, `ssp:3`.
        num_workers: processes.
        script: a training script.
        arguments: of the script.
        nonfinite: what is done with gradients that hold NaN or infinity.
        carrier: of gradients and weights, as typed; None leaves it to `PS_CARRIER`.
        wire_dtype: in which these travel, as typed; None leaves it to `PS_WIRE_DTYPE`.
        servers: addresses under which its workers reach the servers; None: the cluster's.
        reached_by: those of single workers, whose data then goes over TCP: they are behind a slow link.
        environment: of its workers, added to the cluster's.
        group_size: processes that are one worker together.
        pipeline: each of them is one stage of a pipeline.
        hosts: of its workers, which go round them.
    """

    name: str
    consistency: str
    num_workers: int
    script: Path
    arguments: tuple[str, ...] = ()
    nonfinite: str = "error"
    carrier: str | None = None
    wire_dtype: str | None = None
    servers: tuple[str, ...] | None = None
    reached_by: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    group_size: int = 1
    pipeline: bool = False
    hosts: tuple[Host, ...] = (LOCAL,)


class Cluster:
    """Servers on loopback, and workers of jobs on them.

    Attributes:
        addresses: of the servers, in shard order.
        data_ports: of the servers, for data over TCP; none: they take any.
        access: what the environment says of certificates and a token; for who asks the servers.
        events: what happened; read by `next_event`, and by whoever else puts signals into it.
    """

    def __init__(
        self,
        *,
        num_servers: int,
        on_line: Callable[[str, str], None],
        server_options: Sequence[str] = (),
        data_ports: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        fresh: bool = False,
        hosts: Sequence[Host] = (LOCAL,),
        events: queue.SimpleQueue[Event] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            num_servers: shards.
            on_line: takes each line of output, with the name of its process; called from threads.
            server_options: added to each server's command.
            data_ports: one per server, for data over TCP; any free ones where there are none.
            environment: of all processes; ours if None.
            fresh: each process imports torch anew; else it is forked from one that has, where it can be.
            hosts: of the servers, which go round them.
            events: of whoever puts signals there before it is entered; its own if None.

        Raises:
            TokenRefused, TlsRefused: a file that the environment names is not what it should be.
        """
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue() if events is None else events
        self._hosts = [hosts[shard % len(hosts)] for shard in range(num_servers)]
        self.addresses: tuple[str, ...] = tuple(
            f"{host.address}:{port}" for host, port in zip(self._hosts, free_ports(num_servers), strict=True)
        )
        self._on_line = on_line
        self._server_options = tuple(server_options)
        self.data_ports = tuple(data_ports)
        self._environment = dict(os.environ if environment is None else environment)
        self.access = from_environment(self._environment, lambda line: on_line("certificates", line))
        self._fresh = fresh
        self._servers: list[Child] = []
        self._workers: list[Child] = []
        self._beside: list[Child] = []

    def __enter__(self) -> Self:
        """Starts the servers and returns when all of them serve.

        Raises:
            ProcessFailed: one of them ended instead.
            StartLimitExceeded: one does not serve within `START_LIMIT_S`.
            Interrupted: a signal came.
        """
        try:
            self._start_servers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def servers(self) -> tuple[Child, ...]:
        """The server processes, in shard order; none before it is entered."""
        return tuple(self._servers)

    def start(self, job: Job, *, with_stdin: bool = False) -> tuple[Child, ...]:
        """Starts the workers of a job; `with_stdin`, their scripts read what `Child.tell` writes.

        They are named for their number, and beside a job that runs for their job, too.
        """
        environment = self._of(job)
        alone = all(worker.exit_code is not None for worker in self._workers)
        started = []
        for number in range(job.num_workers):
            name = f"worker {number}" if alone else f"worker {number} of {job.name}"
            started.append(self._start_worker(job, number, name, environment, with_stdin=with_stdin))
        return tuple(started)

    def start_again(self, job: Job, number: int) -> Child:
        """Starts one worker of a job, whose process has ended."""
        return self._start_worker(job, number, f"worker {number}", self._of(job))

    def start_beside(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str, str], None],
        *,
        with_stdin: bool = False,
    ) -> Child:
        """Starts a process that is neither server nor worker, with an environment added to that of all.

        Whoever starts it ends it; `stop` ends it, too.
        """
        child = self._spawn(
            name, command, {**self._environment, **environment}, with_stdin=with_stdin, on_line=on_line
        )
        self._beside.append(child)
        return child

    def _of(self, job: Job) -> dict[str, str]:
        return {
            "OMP_NUM_THREADS": str(threads_per_process(job.num_workers * job.group_size)),
            "PS_DRAIN_LIMIT": str(DRAIN_LIMIT_S),
            **self._environment,
            **job.environment,
        }

    def _start_worker(
        self, job: Job, number: int, name: str, environment: Mapping[str, str], *, with_stdin: bool = False
    ) -> Child:
        host = job.hosts[number % len(job.hosts)]
        servers = job.reached_by.get(number, job.servers or self.addresses)
        carrier = Carrier.TCP if number in job.reached_by and job.carrier in SHORTCUTS else job.carrier
        command = [
            *host.enter,
            command_path("ps-worker"),
            *("--servers", ",".join(servers)),
            *("--job", job.name),
            *("--consistency", job.consistency),
            *("--num-workers", str(job.num_workers)),
            *("--worker", str(number)),
            *("--nonfinite", job.nonfinite),
            *(("--carrier", carrier) if carrier is not None else ()),
            *(("--wire-dtype", job.wire_dtype) if job.wire_dtype is not None else ()),
            *(_of_group(job, fresh=self._fresh) if job.group_size > 1 else ()),
            str(job.script),
            *job.arguments,
        ]
        environment = {**environment, **(host.environment if host is not LOCAL else {})}
        worker = self._spawn(name, command, environment, with_stdin=with_stdin)
        self._workers.append(worker)
        return worker

    def next_event(self, timeout_s: float) -> Event | None:
        """Waits for what happens next; None if nothing does within `timeout_s`."""
        try:
            return self.events.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def wait(self, workers: Sequence[Child], *, timeout_s: float, on_tick: Callable[[], None]) -> None:
        """Waits until all of these workers have ended well, calling `on_tick` every `timeout_s`."""
        running = {worker for worker in workers if worker.exit_code != 0}
        while running:
            event = self.next_event(timeout_s)
            if event is None:
                on_tick()
            else:
                running.discard(self._ended_well(event))

    def stop(self) -> None:
        """Ends everything: workers, what is beside them, then servers; each is killed after `GRACE_S`.

        Or at a signal. What did not end as asked is said in a line of its output.
        """
        self._stop([*self._workers, *self._beside])
        self._stop(self._servers)
        for server in self._servers:
            if server.exit_code:
                self._on_line(server.name, f"(ended with code {server.exit_code})")
        self._workers, self._beside, self._servers = [], [], []

    def _stop(self, children: Sequence[Child]) -> None:
        for child in children:
            child.terminate()
        deadline_s = time.monotonic() + GRACE_S
        while any(child.exit_code is None for child in children):
            event = self.next_event(deadline_s - time.monotonic())
            if isinstance(event, Signalled) or time.monotonic() >= deadline_s:
                break
        for child in children:
            if child.exit_code is None:
                self._on_line(child.name, "(did not end when asked: killed)")
                child.kill()
        for child in children:
            child.join()

    def _start_servers(self) -> None:
        count = len(self.addresses)
        for shard, (host, address) in enumerate(zip(self._hosts, self.addresses, strict=True)):
            command = [
                *host.enter,
                command_path("ps-server"),
                *("--shard", f"{shard}/{count}"),
                *("--host", host.address),
                *("--port", address.rpartition(":")[2]),
                *(("--coordinator", self.addresses[0]) if shard else ()),
                *(("--data-port", str(self.data_ports[shard])) if self.data_ports else ()),
                *self._server_options,
            ]
            self._servers.append(self._spawn(f"server {shard}", command, self._environment))
        deadline_s = time.monotonic() + START_LIMIT_S
        for server, address in zip(self._servers, self.addresses, strict=True):
            while not is_serving(address, self.access):
                if time.monotonic() >= deadline_s:
                    raise StartLimitExceeded(
                        f"{server.name} on {address} does not serve after {START_LIMIT_S:.0f} s",
                        address=address,
                    )
                event = self.next_event(POLL_S)
                if event is not None:
                    self._ended_well(event)

    def _spawn(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        with_stdin: bool = False,
        on_line: Callable[[str, str], None] | None = None,
    ) -> Child:
        return Child(
            name=name,
            command=command,
            environment={**environment, "PYTHONUNBUFFERED": "1"},
            on_line=self._on_line if on_line is None else on_line,
            on_exit=lambda child: self.events.put(Exited(child)),
            with_stdin=with_stdin,
            fresh=self._fresh,
        )

    def _ended_well(self, event: Event) -> Child:
        """The worker that ended with 0; anything else that can happen ends the run."""
        if isinstance(event, Signalled):
            raise interrupted(event)
        child = event.child
        assert child.exit_code is not None
        if child.exit_code != 0 or child in self._servers:
            raise process_failed(child.name, child.exit_code)
        return child


def _of_group(job: Job, *, fresh: bool) -> tuple[str, ...]:
    size = str(job.group_size)
    what = "--pipeline-stages" if job.pipeline else "--group-size"
    return "--nproc", size, what, size, *(("--fresh",) if fresh else ())


def interrupted(event: Signalled) -> Interrupted:
    """The exception to raise for a signal that came."""
    return Interrupted(f"stopped by {signal.Signals(event.number).name}", signal=event.number)


def threads_per_process(processes: int) -> int:
    """Threads that each of so many processes takes for arithmetic: together no more than there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def command_path(name: str) -> str:
    """Where one of this project's commands is installed.

    Raises:
        CommandMissing: it is not.
    """
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise CommandMissing(
            f"{name} is neither in {beside.parent} nor on PATH; install the package: pip install -e .",
            command=name,
        )
    return found
