"""Live extras: state that workers keep to themselves while they train, for who reads a job or joins it.

A reader gets what lies outside tables (buffers, parameters without an optimizer): the lowest live worker is
asked, and puts its own as state `live` at the end of its next step. Who joins gets a position: that worker
puts it as state `position` at the beginning of its next step. If it goes meanwhile, the next one is asked.

Where it takes no step, and where nobody trains, who joins gets the position that was noted last: workers put
theirs as state `note/N` when an epoch begins, and now and then. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from ps_server.coordinator.jobs.actions import tell
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.state_store import NOTED, SAVED, StateStore
from ps_wire.errors import JobUnknown
from ps_wire.v1 import coordinator_pb2 as pb

JOINER_LIMIT_S = 10.0  # for a worker that trains to begin a step; then its note serves
LIVE, POSITION = "live", "position"  # names of states


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedExtras:
    """State outside tables.

    Attributes:
        blob: safetensors; of one table for `start`, else of all, names with the table's number before them.
        origin: the start of the table, a live worker, or the end of the job.
        step: that the live worker had taken; else 0.
    """

    blob: bytes
    origin: Literal["start", "live", "final"]
    step: int = 0


@dataclass(frozen=True, slots=True)
class Noted:
    """A worker's position.

    Attributes:
        blob: safetensors; empty where none was noted.
        clocks: table -> steps of that worker which count, where it is gone; else nothing.
    """

    blob: bytes = b""
    clocks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    member: Member
    answer: asyncio.Future[SavedExtras | None] = field(default_factory=asyncio.Future)


class LiveExtras:
    """The requests for extras of workers that train, and those who wait for them."""

    def __init__(self, states: StateStore) -> None:
        self._states = states
        self._asked: dict[tuple[str, str], _Asked] = {}  # by job and name of the state

    async def get(self, runner: JobRunner, table: int) -> SavedExtras:
        """The final state; while the job runs, a worker's; else that of the table's start.

        Waits for a step of a worker, without a limit of its own.
        """
        job = runner.job
        while True:
            try:
                return SavedExtras(blob=self._states.get(job.name, "final"), origin="final")
            except JobUnknown:
                pass
            if job.state is not JobState.RUNNING:
                return SavedExtras(blob=self._states.get(job.name, f"start/{table}"), origin="start")
            asked = self._asked.get((job.name, LIVE)) or self._ask(runner, LIVE)
            if asked is None:  # all have finished: the last state is on its way
                await self._states.change(job.name)
            elif (found := await self._answered((job.name, LIVE), asked)) is not None:
                return found

    async def _answered(self, key: tuple[str, str], asked: _Asked) -> SavedExtras | None:
        try:
            return await asyncio.shield(asked.answer)
        except asyncio.CancelledError:  # it may not have come through: the next one asks again
            if self._asked.get(key) is asked:
                del self._asked[key]
                asked.answer.set_result(None)  # others who wait for it ask again, too
            raise

    async def for_joiner(self, runner: JobRunner, joiner: Member) -> Noted:
        """The position of a worker that trains, at the beginning of its next step; else as `noted`.

        Raises:
            Evicted: the joiner was evicted meanwhile: what it would hear is older than where it will enter.
        """
        key = runner.job.name, POSITION
        with suppress(TimeoutError):
            async with asyncio.timeout(JOINER_LIMIT_S):
                while any(member is not joiner for member in self._trained(runner)):
                    asked = self._asked.get(key) or self._ask(runner, POSITION)
                    if asked is not None and (found := await self._answered(key, asked)) is not None:
                        return Noted(found.blob)
                await runner.settle()  # then it is known how many steps count of who was evicted last
        if (over := runner.job.over(joiner.worker, joiner.incarnation)) is not None:
            raise over
        return self.noted(runner, joiner)

    def noted(self, runner: JobRunner, joiner: Member) -> Noted:
        """The position that the lowest worker which trains has noted last; else who had come furthest.

        Where all who are here have finished, it is that of the lowest of them: behind its loops.
        """
        job = runner.job
        trained = sorted(self._trained(runner), key=lambda member: member.worker)
        for member in (*trained, *job.roster.behind_their_data()):
            if member is not joiner and (blob := self._note(job.name, member.worker)):
                return Noted(blob)
        gone = [worker for worker in job.ends if self._note(job.name, worker)]
        if not gone:  # of a job that is back at a snapshot, that of the lowest worker which it has
            kinds = (name.partition("/") for name in self._states.names(job.name))
            saved = [int(number) for kind, _, number in kinds if kind == SAVED]
            return Noted(self._states.get(job.name, f"{SAVED}/{min(saved)}")) if saved else Noted()
        last = max(gone, key=lambda worker: (max(job.ends[worker].values(), default=0), -worker))
        return Noted(self._note(job.name, last), job.ends[last])

    def _note(self, job: str, worker: int) -> bytes:
        try:
            return self._states.get(job, f"{NOTED}/{worker}")
        except JobUnknown:
            return b""

    @staticmethod
    def _trained(runner: JobRunner) -> list[Member]:
        """Those who take steps: one that came late does once it has all tables."""
        here, num_tables = runner.job.roster.here(), runner.job.num_tables
        return [member for member in here if member.num_tables == num_tables > 0]

    def _ask(self, runner: JobRunner, name: str) -> _Asked | None:
        here = self._trained(runner)
        if not here:
            return None
        key = runner.job.name, name
        asked = self._asked[key] = _Asked(min(here, key=lambda member: member.worker))
        runner.do([tell(asked.member, upload_live=pb.UploadLive(begins=name == POSITION))])
        return asked

    def uploaded(self, job: str, member: Member, step: int, *, begins: bool) -> None:
        """A worker has put state `live`, which is that of this step, or its `position`.

        Raises:
            JobUnknown: it has not.
        """
        name = POSITION if begins else LIVE
        blob = self._states.pop(job, name)
        self._answer((job, name), member, SavedExtras(blob=blob, origin="live", step=step))

    def gone(self, job: str, member: Member) -> None:
        """A worker takes no more steps."""
        for name in (LIVE, POSITION):
            self._answer((job, name), member, None)

    def _answer(self, key: tuple[str, str], member: Member, answer: SavedExtras | None) -> None:
        asked = self._asked.get(key)
        if asked is not None and asked.member is member:
            del self._asked[key]
            asked.answer.set_result(answer)
