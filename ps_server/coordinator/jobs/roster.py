"""The members of a job: numbers, incarnations, and who of them trains, has finished or only reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ps_server.coordinator.jobs.member import Member, MemberState
from ps_wire.errors import JobFull, JobUnknown, WorkerNumberTaken


@dataclass(slots=True)
class Roster:
    """The latest incarnation of every worker of one job. Not thread-safe.

    Attributes:
        floor: incarnations up to this one are over, whoever had them.
    """

    job: str
    num_workers: int
    members: dict[int, Member] = field(default_factory=dict)
    floor: int = 0

    def holders(self, wanted: int | None) -> list[Member]:
        """The members that hold this number, or all numbers: nobody where a new worker can have it."""
        present = self.present()
        if wanted is not None:
            return [member for member in present if member.worker == wanted]
        return present if len(present) >= self.num_workers else []

    def number(self, wanted: int | None, before: int = 0) -> int:
        """The number that a joining worker gets: the wanted one, else the lowest free one.

        One that had it as incarnation `before`, and was told to come back, gets it again.

        Raises:
            JobFull: the number is not one of the job's, or none is free.
            WorkerNumberTaken: the number is held; its holder is named.
        """
        taken = {member.worker for member in self.present() if not member.returns_from(before)}
        if wanted is None:
            free = [number for number in range(self.num_workers) if number not in taken]
            if free:
                return free[0]
            raise JobFull(
                f"job {self.job} has all the workers of its --num-workers {self.num_workers}; "
                "start another --job, or more workers from the beginning"
            )
        if wanted >= self.num_workers:
            raise JobFull(
                f"worker {wanted}: job {self.job} has --num-workers {self.num_workers}, "
                f"numbered 0 to {self.num_workers - 1}"
            )
        if wanted in taken:
            holder = self.members[wanted]
            raise WorkerNumberTaken(
                f"{holder.holder} holds this number in job {self.job}",
                worker=wanted,
                host=holder.host,
                pid=holder.pid,
            )
        return wanted

    def add(
        self,
        number: int,
        *,
        host: str,
        pid: int,
        reader: bool,
        late: bool = False,
        lease_s: float = 0.0,
        ranks: int = 0,
        state: MemberState = MemberState.JOINING,
    ) -> Member:
        """A new incarnation under a number that is free."""
        before = self.members.get(number)
        member = Member(
            worker=number,
            incarnation=max(before.incarnation if before is not None else 0, self.floor) + 1,
            host=host,
            pid=pid,
            state=state,
            reader=reader,
            late=late,
            lease_s=lease_s,
            ranks=ranks,
        )
        if before is not None and before.present:
            before.become(MemberState.LOST)
        self.members.pop(number, None)  # so that the order is that of arrival
        self.members[number] = member
        return member

    def member(self, worker: int, incarnation: int) -> Member:
        """The present member of that number.

        Raises:
            JobUnknown: there is none with this incarnation.
        """
        member = self.members.get(worker)
        if member is None or member.incarnation != incarnation or not member.present:
            raise JobUnknown(f"worker {worker}, incarnation {incarnation}, is not in job {self.job}")
        return member

    def end_incarnations(self, floor: int) -> None:
        """Incarnations up to this one are over, and no other gets such a number."""
        self.floor = floor

    @property
    def newest_incarnation(self) -> int:
        """The largest that a worker has had."""
        return max([self.floor, *(member.incarnation for member in self.members.values())])

    def present(self) -> list[Member]:
        """Those who are connected, as far as they have said."""
        return [member for member in self.members.values() if member.present]

    def heard(self) -> list[Member]:
        """Those of them of whom something was heard."""
        return [member for member in self.members.values() if member.present and not member.unheard]

    def here(self) -> list[Member]:
        """Those who have joined and not begun to go."""
        return [member for member in self.members.values() if member.state is MemberState.JOINED]

    def returning(self) -> list[Member]:
        """Those who were told to come back and have not yet."""
        return [member for member in self.members.values() if member.state is MemberState.RETURNING]

    def training(self) -> list[Member]:
        """Those whom the job waits for."""
        return [member for member in self.members.values() if member.trains]

    def finished(self) -> list[Member]:
        """Those who wait for the others to finish."""
        return [member for member in self.members.values() if member.state is MemberState.FINISHED]

    def behind_their_data(self) -> list[Member]:
        """Those, and who are about to be: they want no more data. By number."""
        states = (MemberState.FINISHING, MemberState.FINISHED)
        return [member for _, member in sorted(self.members.items()) if member.state in states]

    def first_finished(self) -> Member | None:
        """The lowest of them: it is asked for the last state."""
        return min(self.finished(), key=lambda member: member.worker, default=None)

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {"floor": self.floor, "members": [member.dump() for member in self.members.values()]}

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped."""
        self.floor = facts["floor"]
        self.members = {known["worker"]: Member.load(known) for known in facts["members"]}
