"""The processes of one run of a bench: servers, workers, peers, limits. Nothing of them is left behind.

All that happens comes through the cluster's one queue: an answer, an end, a signal. Every wait is bounded,
and a process that ends before its time ends the run, with its last lines of output.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ps_lab.bench import usage
from ps_lab.bench.figures import Round
from ps_lab.bench.turns import FINISH, TURN, parse_answer
from ps_lab.cluster.child import Child
from ps_lab.cluster.cluster import Cluster, Exited, Job, threads_per_process
from ps_lab.cluster.host import LOCAL, Host
from ps_lab.cluster.interrupts import Signalled, signals_into
from ps_lab.errors import BenchFailed, Interrupted, process_failed

LAST_LINES = 15  # of a process that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """A process of a peer or a limit, before it is started.

    Attributes:
        name: unique in the run: "gloo 1".
        command: a program's absolute path and its arguments.
        configuration: the line that it reads first; None for one that reads nothing.
        takes_turns: does its part of each round when told to; others serve those that do.
        environment: added to ours.
        host: on which it runs.
    """

    name: str
    command: tuple[str, ...]
    configuration: Mapping[str, object] | None = None
    takes_turns: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    host: Host = LOCAL


def run_module(module: str) -> tuple[str, ...]:
    """The command that runs one of our modules."""
    return (sys.executable, "-m", module)


@dataclass(frozen=True, slots=True)
class _Said:
    """A process answered."""

    process: str
    answer: dict[str, Any]


class ProcessParty:
    """A `Party` of processes; see there.

    Attributes:
        name: of the party.
        pids: of all its processes.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        workers: Sequence[Child],
        servers: Sequence[Child],
        limit_s: float,
    ) -> None:
        """Its first round comes after `Session.wait_ready`.

        Args:
            session: that started them.
            name: of the party.
            workers: who are told, and answer.
            servers: who are only counted.
            limit_s: for a round.
        """
        self.name = name
        self._session = session
        self._workers = tuple(workers)
        self.pids = tuple(child.pid for child in (*workers, *servers))
        self._limit_s = limit_s

    def round(self) -> Round:
        """See `Party.round`."""
        before_s = usage.cpu_s(self.pids)
        begin_s, end_s = self.window()
        after_s = usage.cpu_s(self.pids)
        return Round(
            seconds=end_s - begin_s,
            cpu_s=None if before_s is None or after_s is None else after_s - before_s,
        )

    def finish(self) -> None:
        """Ends its job; it takes no rounds any more, and its processes stay. Raises what `round` raises."""
        self._turn(FINISH)

    def window(self) -> tuple[float, float]:
        """As `round`; says when it began and ended, by the monotonic clock."""
        return self._turn(TURN)

    def _turn(self, what: str) -> tuple[float, float]:
        for worker in self._workers:
            worker.tell(what)
        answers = self._session.answers(self._workers, limit_s=self._limit_s)
        return min(said["begin_s"] for said in answers), max(said["end_s"] for said in answers)


class Session:
    """A context manager around a cluster and all other processes. For the main thread: it takes signals.

    Attributes:
        cluster: the project's servers and workers.
    """

    def __init__(
        self,
        *,
        num_servers: int,
        on_line: Callable[[str, str], None],
        server_options: Sequence[str] = (),
        data_ports: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        hosts: Sequence[Host] = (LOCAL,),
    ) -> None:
        """Starts nothing yet.

        Args:
            num_servers: of the project.
            on_line: takes the last lines of a process that failed, with its name.
            server_options: as of `Cluster`.
            data_ports: as of `Cluster`.
            environment: of servers and workers, added to ours.
            hosts: of the servers, which go round them.
        """
        self.cluster = Cluster(
            num_servers=num_servers,
            on_line=self._line,
            server_options=(*server_options, *(() if all(it is LOCAL for it in hosts) else ("--insecure",))),
            hosts=hosts,
            data_ports=data_ports,
            environment={**os.environ, **(environment or {})},
        )
        self._events: queue.SimpleQueue[Any] = self.cluster.events
        self._on_line = on_line
        self._lines: dict[str, deque[str]] = {}
        self._children: list[Child] = []
        self._starting: list[Child] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Starts the servers and returns when they serve.

        Raises:
            PsError: what `Cluster` raises.
        """
        with ExitStack() as stack:
            stack.enter_context(signals_into(self._events))
            try:
                stack.enter_context(self.cluster)
            except BaseException:
                self._show(*(name for name in self._lines if name.startswith("server")))
                raise
            stack.callback(self._kill)  # the first to end: a server that stops needs the cores
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def start_workers(
        self, job: Job, configuration: Mapping[str, object], *, name: str, limit_s: float
    ) -> ProcessParty:
        """Starts the workers of a job.

        Args:
            job: whose script takes turns (see `turns`).
            configuration: what the script reads first.
            name: of the party.
            limit_s: for a round.
        """
        workers = self.cluster.start(job, with_stdin=True)
        for worker in workers:
            worker.tell(json.dumps(dict(configuration)))
        self._starting += workers
        return ProcessParty(self, name, workers=workers, servers=self.cluster.servers, limit_s=limit_s)

    def start(self, name: str, plans: Sequence[ProcessPlan], *, limit_s: float) -> ProcessParty:
        """Starts a party of other processes.

        Args:
            name: of the party.
            plans: of its processes, in the order of their start.
            limit_s: for a round.
        """
        threads = str(threads_per_process(max(1, sum(plan.takes_turns for plan in plans))))
        workers: list[Child] = []
        servers: list[Child] = []
        environment = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **os.environ}
        for plan in plans:
            child = Child(
                name=plan.name,
                command=(*plan.host.enter, *plan.command),
                environment={**environment, **plan.host.environment, **plan.environment},
                on_line=self._line,
                on_exit=lambda ended: self._events.put(Exited(ended)),
                with_stdin=True,
                fresh=False,
            )
            self._children.append(child)
            (workers if plan.takes_turns else servers).append(child)
            if plan.configuration is not None:
                child.tell(json.dumps(dict(plan.configuration)))
            if plan.configuration is not None or plan.takes_turns:
                self._starting.append(child)
        return ProcessParty(self, name, workers=workers, servers=servers, limit_s=limit_s)

    def wait_ready(self, *, limit_s: float) -> dict[str, dict[str, Any]]:
        """Waits until every process that was started, and that answers, has said that it is ready.

        Returns:
            The answers, by the processes' names.

        Raises:
            PsError: see `answers`.
        """
        answers = self.answers(self._starting, limit_s=limit_s)
        names = [child.name for child in self._starting]
        self._starting.clear()
        return dict(zip(names, answers, strict=True))

    def answers(self, children: Sequence[Child], *, limit_s: float) -> list[dict[str, Any]]:
        """Waits for one answer of each of these processes.

        Raises:
            BenchFailed: one did not answer in time.
            ProcessFailed: a process, of whichever party, ended.
            Interrupted: a signal came.
        """
        said: dict[str, dict[str, Any]] = {}
        deadline_s = time.monotonic() + limit_s
        while missing := [child.name for child in children if child.name not in said]:
            event = self._next(deadline_s - time.monotonic())
            if isinstance(event, _Said):
                said[event.process] = event.answer
            elif event is None:
                self._show(*missing)
                raise BenchFailed(f"{', '.join(missing)} did not answer within {limit_s:.0f} s")
        return [said[child.name] for child in children]

    def _next(self, timeout_s: float) -> object:
        event: object = self.cluster.next_event(timeout_s)
        if isinstance(event, Signalled):
            raise Interrupted(f"stopped by {signal.Signals(event.number).name}", signal=event.number)
        if isinstance(event, Exited):
            assert event.child.exit_code is not None
            self._show(event.child.name)
            raise process_failed(event.child.name, event.child.exit_code, before="the bench was over")
        return event

    def _line(self, process: str, text: str) -> None:
        """Takes a line of output; called from the processes' reader threads."""
        answer = parse_answer(text)
        if answer is None:
            self._lines.setdefault(process, deque(maxlen=LAST_LINES)).append(text)
        else:
            self._events.put(_Said(process, answer))

    def _show(self, *processes: str) -> None:
        for process in processes:
            for line in tuple(self._lines.get(process, ())):
                self._on_line(process, line)

    def _kill(self) -> None:
        """Peers and limits hold nothing that is worth an orderly end."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.join()
