"""The runners of all jobs on the coordinator: one is made for whoever brings a name that is free.

Used on the event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ps_server.agreement.refusals import too_many_jobs
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.dropped import DroppedNames
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.runner import MAX_JOBS, JobRunner
from ps_server.coordinator.state_store import StateStore
from ps_wire.errors import ServerNotReady
from ps_wire.v1 import spec_pb2


class JobRunners:
    """Runners by the name of their job.

    Attributes:
        by_name: all of them. One that has nothing to do any more takes itself out.
    """

    def __init__(self, fleet: Fleet, states: StateStore, dropped: DroppedNames) -> None:
        """Has none yet; what workers keep outside tables goes from `states` with a runner."""
        self.by_name: dict[str, JobRunner] = {}
        self._fleet = fleet
        self._states = states
        self._dropped = dropped

    def of(self, wanted: spec_pb2.Job) -> JobRunner:
        """The runner of that job, a new one if need be.

        Raises:
            JobFull: there are too many jobs for another one.
            ServerNotReady: the job that had this name is not gone yet.
        """
        name = wanted.name
        job = Job(name, wanted.consistency, wanted.num_workers, wanted.nonfinite, wanted.min_workers)
        runner = self.by_name.get(name)
        if runner is None:
            if len(self.by_name) >= MAX_JOBS:
                raise too_many_jobs(MAX_JOBS)
            job.roster.end_incarnations(self._dropped.last_incarnation(name))
            runner = self.by_name[name] = JobRunner(job, self._fleet, self._forget)
        elif runner.job.forgotten:
            if not runner.idle:  # the shards still carry out what ends the job that had this name
                raise ServerNotReady(f"job {name} is being cleared away")
            runner.job = job
        return runner

    def dump(self) -> list[dict[str, Any]]:
        """All of them, for JSON, while all are idle."""
        return [runner.dump() for runner in self.by_name.values()]

    def load(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Goes on with what was dumped."""
        for known in facts:
            self.of(spec_pb2.Job.FromString(bytes.fromhex(known["spec"]))).load(known)

    def _forget(self, runner: JobRunner) -> None:
        if self.by_name.get(runner.job.name) is runner:
            del self.by_name[runner.job.name]
            self._states.drop(runner.job.name)
