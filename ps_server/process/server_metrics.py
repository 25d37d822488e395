"""The metrics of a server for one scrape, from its shard and, on shard 0, from the coordinator.

`text` runs on the thread of the endpoint: the shard is asked under its locks, the coordinator on its loop.
What has series of its own is bounded: `MOST_JOBS` jobs, those first that have members, and `MOST_WORKERS`
workers of all of them; how many others there are `ps_left_out` says.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from ps_server.agreement.gate import Gate
from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.figures import JobFigures
from ps_server.coordinator.jobs.phase import JobState
from ps_server.events import MEANING, Event
from ps_server.shard.job import ShardJob
from ps_server.shard.partition.inputs import Ledger
from ps_server.shard.partition.totals import Totals
from ps_server.shard.shard import Shard
from ps_server.shard.table.table import ShardTable
from ps_wire.frames.frame import FIRST_READER, PROTOCOL
from ps_wire.metrics.families import SERVER, SHARD
from ps_wire.metrics.histogram import UPDATES, Histogram
from ps_wire.metrics.page import Page

MOST_JOBS = 64
MOST_WORKERS = 100  # with a series of their own: 1,000 would take 40 ms of each scrape to write
TOO_OLD_S = 3600.0  # a snapshot, where they are not taken by time
SEEN_BY_SHARDS = frozenset({Event.RETRY.value, Event.RESTORE.value, Event.LOSE.value})
NO_EVENTS = frozenset({"snapshot", "snapshot_failed"})  # which have a metric of their own
LOOP_LIMIT_S = 5.0  # for the event loop to answer; Prometheus waits for 10 s
_OUTCOMES = {
    "received": "received",
    "applied": "applied",
    "dropped": "dropped",
    "abstained": "abstained",
    "duplicate": "duplicates",
    "refused": "refused",
    "missed": "missed",
}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ServerMetrics:
    """The metrics of one server process."""

    def __init__(
        self,
        shard: Shard,
        coordinator: Coordinator | None,
        loop: asyncio.AbstractEventLoop,
        *,
        ready: Callable[[], bool],
        snapshot_every_s: float,
    ) -> None:
        """Takes what is asked.

        Args:
            shard: of the process.
            coordinator: on shard 0.
            loop: of the coordinator.
            ready: whether the server takes part in its service.
            snapshot_every_s: as a person typed it; 0: not by time.
        """
        self._shard = shard
        self._coordinator = coordinator
        self._loop = loop
        self._ready = ready
        self._too_old_s = 3 * snapshot_every_s + 60 if snapshot_every_s else TOO_OLD_S
        self._version = importlib.metadata.version("torch-parameter-server")

    def text(self) -> bytes:
        """All of them now, in the text format.

        Raises:
            TimeoutError: the event loop does not answer.
        """
        page = Page(SHARD if self._coordinator is None else SERVER)
        self._put_process(page)
        self._put_connections(page)
        jobs = sorted(self._shard.jobs(), key=lambda job: (not job.members, job.name))  # who trains first
        page.put("ps_tables", sum(len(job.tables) for job in jobs), self._shard.index)
        places = itertools.islice(itertools.count(), MOST_WORKERS)
        left_out = sum(self._put_job(page, job, places) for job in jobs[:MOST_JOBS])
        page.put("ps_left_out", left_out, self._shard.index, "workers")
        page.put("ps_left_out", max(len(jobs) - MOST_JOBS, 0), self._shard.index, "jobs")
        if self._coordinator is not None:
            for figures in self._asked(self._coordinator):
                self._put_figures(page, figures)
        return page.text()

    def _asked(self, coordinator: Coordinator) -> tuple[JobFigures, ...]:
        async def ask() -> tuple[JobFigures, ...]:
            return coordinator.figures(most_jobs=MOST_JOBS, most_members=MOST_WORKERS)

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return asked.result(LOOP_LIMIT_S)
        except FutureTimeoutError:
            asked.cancel()
            raise TimeoutError from None

    # -- the process -----------------------------------------------------------------------------------

    def _put_process(self, page: Page) -> None:
        shard = self._shard
        page.put("ps_server_info", 1, shard.index, shard.num_shards, self._version, PROTOCOL)
        page.put("ps_server_ready", self._ready(), shard.index)
        page.put("ps_num_shards", shard.num_shards, shard.index)
        if shard.memory_limit_bytes is not None:
            page.put("ps_memory_limit_bytes", shard.memory_limit_bytes, shard.index)
        page.put("ps_resident_bytes", _resident_bytes(), shard.index)
        page.put("ps_cpu_seconds_total", time.process_time(), shard.index)

    def _put_connections(self, page: Page) -> None:
        index = self._shard.index
        for carrier, figures in sorted(self._shard.traffic.figures().items()):
            page.put("ps_carrier_bytes_total", figures.received_bytes, index, carrier, "in")
            page.put("ps_carrier_bytes_total", figures.sent_bytes, index, carrier, "out")
            page.put("ps_connections", figures.connections, index, carrier)
            page.put("ps_queued_bytes", figures.queued_bytes, index, carrier)
        for kind, count in self._shard.refusals().items():
            page.put("ps_refused_total", count, index, kind.value)

    # -- the shard -------------------------------------------------------------------------------------

    def _put_job(self, page: Page, job: ShardJob, places: Iterable[int]) -> int:
        """A job's part of this shard; returns how many members have no series of their own."""
        index = self._shard.index
        members = sorted(worker for worker in job.members if worker < FIRST_READER)
        shown = [worker for worker, _ in zip(members, places, strict=False)]
        page.put("ps_members", len(members), index, job.name)
        page.put("ps_reserved_bytes", job.memory_bytes, index, job.name)
        bound = staleness_bound(job.gate, len(members))
        if bound is not None:
            page.put("ps_staleness_bound_updates", bound, index, job.name)
        if self._coordinator is None:  # else the coordinator's are put beside them
            for kind in sorted({*SEEN_BY_SHARDS, *job.events}):
                page.put("ps_events_total", job.events.get(kind, 0), index, job.name, kind)
        for table in tuple(job.tables.values()):
            self._put_table(page, job.name, table, members, shown)
        return len(members) - len(shown)

    def _put_table(
        self, page: Page, job: str, table: ShardTable, members: list[int], shown: list[int]
    ) -> None:
        totals = table.totals()
        labels = (self._shard.index, job, table.spec.number)
        page.put("ps_rounds_total", totals.newest, *labels)
        page.put("ps_version_spread_updates", totals.newest - totals.oldest, *labels)
        page.put("ps_pulls_total", totals.meters.pulls, *labels)
        page.put("ps_weight_bytes", totals.weight_bytes, *labels)
        page.put("ps_optimizer_bytes", totals.optimizer_bytes, *labels)
        page.put_histogram("ps_apply_seconds", totals.meters.applies, *labels)
        page.put_histogram("ps_gate_wait_seconds", totals.meters.gate_waits, *labels)
        page.put_histogram("ps_clock_gap_steps", totals.meters.gaps, *labels)
        page.put_histogram("ps_staleness_updates", Histogram.of(UPDATES, totals.tau), *labels)
        ledgers = totals.ledgers.values()
        for outcome, name in _OUTCOMES.items():
            page.put("ps_pushes_total", _sum(ledgers, name), *labels, outcome)
        self._put_clocks(page, labels, totals, members, shown)

    @staticmethod
    def _put_clocks(
        page: Page, labels: tuple[object, ...], totals: Totals, members: list[int], shown: list[int]
    ) -> None:
        here = [worker for worker in members if worker in totals.lowest]
        if here:
            page.put("ps_clock_steps", min(totals.lowest[worker] for worker in here), *labels, "min")
            page.put("ps_clock_steps", max(totals.highest[worker] for worker in here), *labels, "max")
        for worker in shown:
            if worker in totals.lowest:
                page.put("ps_member_clock_steps", totals.lowest[worker], *labels, worker)

    # -- the coordinator -------------------------------------------------------------------------------

    def _put_figures(self, page: Page, job: JobFigures) -> None:
        page.put("ps_job_info", 1, job.name, job.consistency, job.state)
        page.put("ps_job_wanted_workers", job.wanted, job.name)
        for state, count in sorted(job.states.items()):
            page.put("ps_job_workers", count, job.name, state)
        here: Mapping[str, int] = next((it.events for it in self._shard.jobs() if it.name == job.name), {})
        for kind in sorted({*MEANING, *job.events, *here} - NO_EVENTS):
            count = job.events.get(kind, 0) + here.get(kind, 0)
            page.put("ps_events_total", count, self._shard.index, job.name, kind)
        for member in job.members:
            whose = (job.name, member.worker)
            page.put("ps_member_steps_total", member.steps, *whose)
            page.put("ps_member_samples_total", member.samples, *whose)
            page.put("ps_member_waited_seconds_total", member.waited_s, *whose)
            page.put("ps_member_heartbeat_age_seconds", member.heartbeat_age_s, *whose)
            page.put("ps_member_stalled", member.stalled, *whose)
            if member.lease_left_s is not None:
                page.put("ps_member_lease_left_seconds", member.lease_left_s, *whose)
        if job.snapshot is not None:
            if job.state == JobState.RUNNING:  # else there is nothing new to keep
                page.put("ps_snapshot_age_seconds", job.snapshot.age_s, job.name)
                page.put("ps_snapshot_limit_seconds", self._too_old_s, job.name)
            for outcome, kind in (("taken", "snapshot"), ("failed", "snapshot_failed")):
                page.put("ps_snapshots_total", job.events.get(kind, 0), job.name, outcome)
            if job.snapshot.step is not None:
                page.put("ps_snapshot_duration_seconds", job.snapshot.duration_s, job.name)
                page.put("ps_snapshot_bytes", job.snapshot.nbytes, job.name)


def staleness_bound(gate: Gate, members: int) -> int | None:
    """The largest tau of a push that is applied, with so many members (law 6); None: there is no bound."""
    if gate.aggregates:
        return 0
    if gate.staleness is not None:
        return (2 * gate.staleness + 1) * max(members - 1, 0)
    return gate.max_delay


def _sum(ledgers: Iterable[Ledger], name: str) -> int:
    return sum(getattr(ledger, name) for ledger in ledgers)


def _resident_bytes() -> int:
    """Of this process; 0 where the system does not say it as Linux does."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
