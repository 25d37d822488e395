"""The calls of one job that all workers make together: for whom each waits, and who is elsewhere. Pure.

What is said in a call is `Collectives`' affair. It must not know streams, or the job beyond its members,
tables and phase.
"""

from __future__ import annotations

from collections.abc import Mapping

from ps_server.coordinator.jobs.actions import named
from ps_server.coordinator.jobs.collectives import ABSENT, CallOutcome, Collectives
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import Phase
from ps_server.coordinator.jobs.roster import Roster
from ps_server.coordinator.jobs.tables import JobTables


class JobCalls:
    """The members of one job in their calls. Not thread-safe.

    Attributes:
        collectives: the calls, and what came of them.
    """

    def __init__(
        self,
        roster: Roster,
        phase: Phase,
        tables: JobTables,
        *,
        staleness: int | None,
        num_workers: int,
        min_workers: int,
    ) -> None:
        """Nobody has called.

        Args:
            roster: of the job.
            phase: of the job.
            tables: of the job.
            staleness: how far apart workers may be in steps; None: there is no bound.
            num_workers: of the job.
            min_workers: it starts with so many; 0: with all.
        """
        self.collectives = Collectives()
        self._roster = roster
        self._phase = phase
        self._tables = tables
        self._staleness = staleness
        self._num_workers = num_workers
        self._min_workers = min_workers

    def calling(self) -> dict[int, int]:
        """Whom a call that all workers make together waits for: worker -> incarnation.

        Those who are here or on their way; of a job that starts with all, before that, all. Of those who came
        in mid-run, who takes part already.
        """
        coming = (MemberState.JOINING, MemberState.JOINED, MemberState.RETURNING)
        calling = {
            member.worker: member.incarnation
            for member in self._roster.members.values()
            if member.state in coming and not member.reader and self._takes_part(member)
        }
        if not self._phase.has_state and not self._min_workers:
            present = {member.worker for member in self._roster.present()}
            calling |= {number: ABSENT for number in range(self._num_workers) if number not in present}
        return calling

    def stand(self, member: Member, number: int) -> None:
        """A member says beside its calls which one is its next."""
        if self._takes_part(member):
            self.collectives.stands(member.worker, member.incarnation, number)

    def _takes_part(self, member: Member) -> bool:
        """Whether calls wait for it: one that came in mid-run makes its first one when it is ready to."""
        return not member.late or self.collectives.takes_part(member.worker, member.incarnation)

    def settle(self, number: int) -> CallOutcome | None:
        """The outcome of a call that all workers make together, if there is one by now."""
        least = 0 if self._phase.has_state else self._min_workers
        return self.collectives.settle(number, self.calling(), at_least=least)

    def needed(self, member: Member, clocks: Mapping[int, int]) -> dict[int, int]:
        """Table -> the step that others wait for a member to come to, while it waits in a call.

        Args:
            member: who takes no steps now.
            clocks: table -> the step that it takes next.
        """
        staleness = self._staleness
        if staleness is None:
            return {}
        others = [other for other in self._roster.here() if other is not member and not other.reader]
        needed = {
            table: max((it.taken.get(table, 0) for it in others), default=0) - staleness
            for table in range(len(self._tables))
            if table in clocks
        }
        return {table: step for table, step in needed.items() if step > clocks[table]}

    def elsewhere(self) -> list[Member]:
        """Who trains, as far as is known, while others wait in a call."""
        here = [member for member in self._roster.here() if not member.reader]
        return [it for it in here if not self.collectives.waits(it.worker, it.incarnation)]

    def missing(self, number: int) -> str:
        """Who it waits for, for people."""
        members = self._roster.members
        missing = self.collectives.missing(number, self.calling())
        return named([members[it].holder if it in members else f"worker {it}" for it in missing])
