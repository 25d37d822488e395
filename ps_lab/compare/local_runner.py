"""Runs of a comparison on this machine: one job per run, on servers that stay up between runs.

A run ends by its script, or by its stop rule: then its workers get SIGTERM, end their step and leave. A
worker that its profile has killed is started again where the profile says so. It knows neither folders nor
reports: what came of a run is a value.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from ps_lab.bench.link import check_available
from ps_lab.cluster.child import Child
from ps_lab.cluster.cluster import Cluster, Event, Job, interrupted
from ps_lab.cluster.interrupts import Signalled
from ps_lab.cluster.other_programs import OtherPrograms
from ps_lab.cluster.ports import free_ports
from ps_lab.cluster.team import Team
from ps_lab.compare.host_links import LinkProcesses, check_links, links_of
from ps_lab.compare.outcome import Ending, EvaluationPoint, Fault, RunOutcome, WorkerCounts
from ps_lab.compare.progress import LoggedTarget, Progress, RecordsProgress, Seen, ServersProgress, of_job
from ps_lab.compare.run_log import RunLog
from ps_lab.errors import Interrupted, OutputFailed, process_failed
from ps_lab.experiments.experiment import BASELINES, DDP, Evaluation, Experiment
from ps_lab.experiments.plan import Run
from ps_lab.jobs.calls import drop
from ps_lab.status.observer import ask
from ps_lab.status.status import Job as JobStatus
from ps_lab.status.watch import Watch
from ps_wire.errors import JobUnknown, PsError, UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.frames.carrier import Carrier
from ps_wire.spec.stragglers import Crash
from ps_worker.job import own_servers
from ps_worker.settings import STORE

TICK_S = 0.25
LAST_LOOK_S = 10.0  # for an evaluation of the final weights, when all workers have ended
GRACE_S = 20.0  # from SIGTERM until a worker is killed: its step may be a long one
KILLED = 128 + 9  # as a shell says it
ALONE = "none"  # instead of addresses: workers without servers
BACKUP = "bsp:backup="
THROUGH_LINKS = (Carrier.TCP, Carrier.GRPC)


def check(experiment: Experiment) -> None:
    """Refuses what cannot be run here, before anything runs.

    Raises:
        UsageError: the experiment asks for it; the key is named.
        BenchFailed: there are to be links, and this machine has but one address of loopback.
    """
    setup = experiment.setup
    refused = [
        (
            "record",
            bool(experiment.baselines) and not experiment.record,
            "baselines have no servers that would say how far they are: their records do",
        ),
        (
            "group_size",
            setup.group_size > 1 and bool(experiment.baselines),
            "in the baselines each process is a worker",
        ),
        (
            "group_size",
            setup.group_size > 1 and any(model.startswith(BACKUP) for model in experiment.models),
            "groups have no backup, and a model has",
        ),
        (
            "group_size",
            setup.group_size > 1
            and any(isinstance(part, Crash) for it in experiment.profiles for part in it.straggler.parts),
            "a profile kills processes, and a group ends with any of its ranks",
        ),
        (
            "hosts",
            bool(setup.hosts) and bool(experiment.baselines),
            "links are between workers and servers, and baselines have no servers",
        ),
        (
            "hosts",
            bool(setup.hosts) and setup.carrier not in (carriers.AUTO, *THROUGH_LINKS),
            f"data over {setup.carrier} passes by links: take carrier tcp",
        ),
    ]
    for key, is_there, why in refused:
        if is_there:
            raise UsageError(f"{key}: {why}; take it out to run the rest", key=key)
    if setup.hosts:
        check_available()
    for profile in experiment.profiles:
        try:
            check_links(setup.hosts, profile.straggler, max(setup.workers))
        except UsageError as error:
            raise UsageError(f"profiles: {profile.name}: {error.message}", key="profiles") from None


class LocalRunner:
    """A context manager: servers start with the first run, and end with it. Runs one run at a time."""

    def __init__(
        self,
        scripts: Path,
        *,
        events: queue.SimpleQueue[Event],
        on_progress: Callable[[str], None],
        fresh: bool = False,
    ) -> None:
        """Starts nothing yet.

        Args:
            scripts: the folder that scripts are named from.
            events: into which whoever takes signals puts them.
            on_progress: shows a line about the run that is under way.
            fresh: see `Cluster`.
        """
        self._scripts = scripts
        self._events = events
        self._on_progress = on_progress
        self._fresh = fresh
        self._cluster: Cluster | None = None
        self._lines: Callable[[str, str], None] = _nobody

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def run(self, run: Run, *, records: Path, log: Path) -> RunOutcome:
        """Runs one run to its end; one that a process of it has failed is an outcome, too.

        Args:
            run: which.
            records: where workers write their records, if they do.
            log: takes the output of all processes.

        Raises:
            Interrupted: a signal came; the run is not over.
            OutputFailed: the log, or a record, cannot be written; the run is not over.
        """
        began_s = time.time()
        with RunLog(log) as lines:
            self._lines = lines.add

            def on_progress(line: str) -> None:
                lines.check()
                self._on_progress(line)

            try:
                running = _Running(self._servers(run), run, self._scripts, records, self._lines)
                outcome = running.to_its_end(began_s, on_progress)
                lines.check()
            except (Interrupted, OutputFailed):
                self._stop()
                raise
            except PsError as error:
                self._stop()  # a server ended, or did not start: the next run has others
                return RunOutcome(
                    ending=Ending.FAILED,
                    reason=f"{error.message}; {log} has its output",
                    started_unix_s=began_s,
                    ended_unix_s=time.time(),
                )
            finally:
                self._lines = _nobody
            return outcome

    def _servers(self, run: Run) -> Cluster:
        count = run.servers
        if self._cluster is not None and len(self._cluster.addresses) != count:
            self._stop()
        if self._cluster is None:
            cluster = Cluster(
                num_servers=count,
                data_ports=free_ports(count) if run.hosts else (),
                on_line=self._said,
                fresh=self._fresh,
                events=self._events,
            )
            self._cluster = cluster.__enter__()
        return self._cluster

    def _said(self, name: str, line: str) -> None:
        self._lines(name, line)

    def _stop(self) -> None:
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.stop()


def _nobody(_name: str, _line: str) -> None:
    """Takes lines between two runs."""


class _Running:
    """One run under way."""

    def __init__(
        self, cluster: Cluster, run: Run, scripts: Path, records: Path, on_line: Callable[[str, str], None]
    ) -> None:
        self._cluster = cluster
        self._on_line = on_line
        self._run = run
        self._records = records
        self._serves = run.model not in BASELINES
        # The baseline none is one group without servers.
        ranks = run.group_size if self._serves or run.model == DDP else run.workers
        environment = {"PS_STRAGGLER": str(run.profile.stragglers(run.seed))}
        if run.record:
            environment["PS_RECORD"] = str(records.absolute())
        self._job = Job(
            name=f"run-{run.id.rpartition('-')[2]}",
            consistency=run.model if self._serves else "bsp",
            num_workers=run.workers if self._serves else run.workers // ranks,
            group_size=ranks,
            script=scripts / run.script,
            arguments=run.arguments,
            carrier=run.carrier,
            wire_dtype=run.wire_dtype,
            servers=None if self._serves else (ALONE,),
            environment=environment,
        )
        self._scripts = scripts
        self._places: dict[str, str] = {}  # added to the environment of all processes of this run
        self._killed: Counter[int] = Counter()  # how often each worker was, by its profile
        self._links: tuple[Child, ...] = ()
        self._evaluator: Child | None = None
        self._evaluations: list[EvaluationPoint] = []
        self._faults: list[Fault] = []
        target = run.stop.target
        self._logged = (
            None
            if target is None or run.evaluation is not None or not run.record
            else LoggedTarget(records, target, run.workers)
        )
        self._first_step_s: float | None = None
        self._asked_s: float | None = None  # when its workers were asked to leave
        self._reason = ""

    def to_its_end(self, began_s: float, on_progress: Callable[[str], None]) -> RunOutcome:
        """Starts it, and returns what came of it.

        Raises:
            Interrupted: a signal came.
            ProcessFailed: a server ended.
            ServerUnreachable: a server does not answer.
        """
        with self._placed():
            return self._ran(began_s, on_progress)

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        """A place of its own for the workers of a baseline, where they meet; servers know the job."""
        self._forget()
        if self._serves:
            links = LinkProcesses(links_of(self._run), self._cluster, self._on_line)
            try:
                self._job = replace(self._job, reached_by=links.addresses())
                self._links = links.children
                yield
            finally:
                links.close()
        elif self._run.model != DDP:
            listening, address = own_servers.listen()
            store = own_servers.keep_store(listening)
            self._places = {STORE: address}
            yield
            del store
        else:
            with tempfile.TemporaryDirectory(prefix="ps-ddp-") as folder:
                self._places = {"PS_DDP": folder}
                yield
        self._forget()

    def _ran(self, began_s: float, on_progress: Callable[[str], None]) -> RunOutcome:
        others = OtherPrograms((*self._cluster.servers, *self._links))
        served_s = {server: server.used_s() for server in self._cluster.servers}
        team = Team(self._cluster, replace(self._job, environment={**self._job.environment, **self._places}))
        if self._run.evaluation is not None:
            self._evaluator = self._evaluate(self._run.evaluation)
        with self._progress() as progress:
            while not team.over:
                self._happened(team, self._cluster.next_event(TICK_S))
                team.look()
                seen = progress.seen
                on_progress(progress.line)
                self._look(team, seen, time.monotonic())
            seen = progress.seen
        ended_s = time.time()
        beside = () if self._evaluator is None else (self._evaluator,)
        others_s = others.used_s((*team.ended, *beside))  # before an evaluation of the final weights
        if self._evaluator is not None:
            self._last_look(self._evaluator)
        status = self._status()
        if status is not None:
            seen = of_job(status)
        return RunOutcome(
            ending=Ending.FAILED if self._reason else Ending.FINISHED,
            reason=self._reason,
            started_unix_s=began_s,
            ended_unix_s=ended_s,
            metrics={} if seen is None else seen.metrics,
            evaluations=tuple(self._evaluations),
            counts=() if status is None else _counts(status),
            cpu_s=_used_s((*team.ended, *beside), served_s),
            other_cpu_s=others_s,
            faults=tuple(self._faults),
        )

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Progress]:
        if not self._serves:
            yield RecordsProgress(self._records, self._run.workers)
            return
        with Watch(self._cluster.addresses, self._job.name, self._cluster.access) as watch:
            yield ServersProgress(watch)

    def _status(self) -> JobStatus | None:
        if not self._serves:
            return None
        return ask(self._cluster.addresses, self._cluster.access).job(self._job.name)

    def _happened(self, team: Team, event: Event | None) -> None:
        if event is None:
            return
        if isinstance(event, Signalled):
            raise interrupted(event)
        child = event.child
        assert child.exit_code is not None
        if child in self._cluster.servers:
            raise process_failed(child.name, child.exit_code)
        number = team.left(child)
        if number is None:
            return
        crash = self._crash(number) if child.exit_code == KILLED and self._asked_s is None else None
        if crash is not None:
            self._killed[number] += 1
            self._faults.append(Fault(kind=crash.KIND, worker=number, unix_s=time.time()))
            if crash.restart_s < math.inf:
                team.again(number, crash.restart_s)
        elif child.exit_code != 0 and self._asked_s is None:
            self._reason = process_failed(child.name, child.exit_code).message
            self._ask_to_leave(team, time.monotonic())

    def _crash(self, number: int) -> Crash | None:
        """The next one of a worker, as its profile has them."""
        mine = [
            part
            for part in self._run.profile.straggler.parts
            if isinstance(part, Crash) and (not part.workers or number in part.workers)
        ]
        mine.sort(key=lambda part: part.step)
        return mine[self._killed[number]] if self._killed[number] < len(mine) else None

    def _look(self, team: Team, seen: Seen | None, now_s: float) -> None:
        if self._asked_s is not None:
            if now_s - self._asked_s > GRACE_S:
                team.kill()
            return
        if seen is None:
            return
        if self._first_step_s is None and seen.step:
            self._first_step_s = now_s
        if self._first_step_s is not None and self._is_over(seen, now_s - self._first_step_s):
            self._ask_to_leave(team, now_s)

    def _ask_to_leave(self, team: Team, now_s: float) -> None:
        self._asked_s = now_s
        team.terminate()

    def _is_over(self, seen: Seen, passed_s: float) -> bool:
        """Whether a stop rule is met; the exact moment is read from the records afterwards."""
        stop = self._run.stop
        if stop.time_s is not None and passed_s >= stop.time_s:
            return True
        if stop.samples is not None and seen.samples >= stop.samples:
            return True
        if stop.target is None or stop.goes_on:
            return False
        if self._run.evaluation is None:
            value = seen.metrics.get(stop.target.metric)
            if self._logged is not None:
                return self._logged.met(value)
        else:
            looks = [look.values.get(stop.target.metric) for look in list(self._evaluations)]
            value = looks[-1] if looks else None
        return value is not None and stop.target.met(value)

    def _last_look(self, evaluator: Child) -> None:
        """Lets the evaluation see the final weights, where the job has any, and ends it."""
        assert self._run.evaluation is not None
        until_s = time.monotonic() + self._run.evaluation.every_s + LAST_LOOK_S
        while self._asked_s is None and evaluator.exit_code is None and time.monotonic() < until_s:
            event = self._cluster.next_event(TICK_S)
            if isinstance(event, Signalled):
                raise interrupted(event)
        evaluator.kill()
        evaluator.join()

    def _forget(self) -> None:
        with contextlib.suppress(JobUnknown):
            if self._serves:
                drop(self._cluster.addresses[0], self._job.name, self._cluster.access, force=True)

    def _evaluate(self, evaluation: Evaluation) -> Child:
        """Its script reads the job's weights as it likes, and prints a JSON object at each look."""

        def said(name: str, line: str) -> None:
            if (point := _point(line)) is not None:
                self._evaluations.append(point)
            self._on_line(name, line)

        return self._cluster.start_beside(
            "evaluator",
            [sys.executable, str(self._scripts / evaluation.script), *evaluation.arguments],
            {
                "PS_SERVERS": ",".join(self._job.servers or self._cluster.addresses),
                "PS_JOB": self._job.name,
                "PS_EVALUATE_EVERY": f"{evaluation.every_s:g}",
                **self._places,
            },
            said,
        )


def _used_s(ended: Sequence[Child], servers: Mapping[Child, float | None]) -> dict[str, float]:
    """Processor time by name: of a worker all its processes, of a server since then."""
    found: defaultdict[str, float] = defaultdict(float)
    for child in ended:
        found[child.name] += child.cpu_s or 0.0
    for server, before_s in servers.items():
        found[server.name] += (server.used_s() or 0.0) - (before_s or 0.0)
    return {name: seconds for name, seconds in found.items() if seconds > 0.0}


def _counts(job: JobStatus) -> tuple[WorkerCounts, ...]:
    found: dict[int, list[int]] = {}
    for table in job.tables:
        for worker in table.workers:
            sums = found.setdefault(worker.worker, [0, 0, 0, 0])
            for index, count in enumerate(
                (worker.received, worker.applied, worker.dropped, worker.abstained)
            ):
                sums[index] += count
    return tuple(
        WorkerCounts(worker=number, received=sums[0], applied=sums[1], dropped=sums[2], abstained=sums[3])
        for number, sums in sorted(found.items())
    )


def _point(line: str) -> EvaluationPoint | None:
    """Reads what an evaluation script printed, if it is a look: a JSON object of numbers.

    `held_s` and `unix_s` among them say how long it held pushes back, and when the weights were read.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    numbers = {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    held_s = numbers.pop("held_s", 0.0)
    unix_s = numbers.pop("unix_s", time.time())
    if not numbers or not (0.0 <= held_s < math.inf and 0.0 <= unix_s < math.inf):
        return None
    return EvaluationPoint(unix_s=unix_s, held_s=held_s, values=numbers)
