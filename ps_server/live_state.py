"""What lies outside tables (buffers, parameters without an optimizer), for who reads a job while it trains.

Workers keep it to themselves while they train. So the lowest live worker is asked: it puts its own as state
`live` at the end of its next step. If it goes meanwhile, the next one is asked. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from ps_server.member import JobState, Member, tell
from ps_server.room import Room
from ps_server.state_store import StateStore
from ps_wire.errors import JobUnknown
from ps_wire.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
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
class _Asked:
    member: Member
    answer: asyncio.Future[Outside | None] = field(default_factory=asyncio.Future)


class LiveState:
    """See the module's docstring."""

    def __init__(self, states: StateStore) -> None:
        self._states = states
        self._asked: dict[str, _Asked] = {}

    async def get(self, room: Room, table: int) -> Outside:
        """The final state; while the job runs, a worker's; else that of the table's start.

        Waits for a step of a worker, without a limit of its own.
        """
        job = room.job
        while True:
            try:
                return Outside(blob=self._states.get(job.name, "final"), origin="final")
            except JobUnknown:
                pass
            if job.state is not JobState.RUNNING:
                return Outside(blob=self._states.get(job.name, f"start/{table}"), origin="start")
            asked = self._asked.get(job.name) or self._ask(room)
            if asked is None:  # all have finished: the last state is on its way
                await self._states.change(job.name)
            elif (found := await self._answered(job.name, asked)) is not None:
                return found

    async def _answered(self, job: str, asked: _Asked) -> Outside | None:
        try:
            return await asyncio.shield(asked.answer)
        except asyncio.CancelledError:  # it may not have come through: the next one asks again
            if self._asked.get(job) is asked:
                del self._asked[job]
            raise

    async def for_joiner(self, room: Room, joiner: Member) -> bytes:
        """What a worker that is about to train gets of one that does; nothing where nobody does."""
        while any(member is not joiner for member in self._trained(room)):
            asked = self._asked.get(room.job.name) or self._ask(room)
            if asked is not None and (found := await self._answered(room.job.name, asked)) is not None:
                return found.blob
        return b""

    @staticmethod
    def _trained(room: Room) -> list[Member]:
        """Those who take steps: one that came late does once it has all tables."""
        here, num_tables = room.job.roster.here(), room.job.num_tables
        return [member for member in here if member.num_tables == num_tables > 0]

    def _ask(self, room: Room) -> _Asked | None:
        here = self._trained(room)
        if not here:
            return None
        asked = self._asked[room.job.name] = _Asked(min(here, key=lambda member: member.worker))
        room.do([tell(asked.member, upload_live=pb.UploadLive())])
        return asked

    def uploaded(self, job: str, member: Member, step: int) -> None:
        """A worker has put state `live`, which is that of this step.

        Raises:
            JobUnknown: it has not.
        """
        blob = self._states.take(job, "live")
        self._answer(job, member, Outside(blob=blob, origin="live", step=step))

    def gone(self, job: str, member: Member) -> None:
        """A worker takes no more steps."""
        self._answer(job, member, None)

    def _answer(self, job: str, member: Member, answer: Outside | None) -> None:
        asked = self._asked.get(job)
        if asked is not None and asked.member is member:
            del self._asked[job]
            asked.answer.set_result(answer)
