"""Meetings of the ranks of groups: who has come, and where rank 0 is reached.

A meeting is of one worker of one job, and complete when all ranks have come. A process asks again and again
until then; one that has stopped asking makes room for another one with its rank. Where the group trains
already, whoever comes may be of those who form it again when it has ended, and waits for that. It must not
know members: the leader of a group joins when its ranks have met. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ps_server.agreement.refusals import too_many_jobs
from ps_server.coordinator.jobs.runner import MAX_JOBS
from ps_wire.errors import ConfigurationRefused, JobMismatch, UsageError, WorkerNumberTaken
from ps_wire.process.ranks import MAX_SIZE
from ps_wire.text import one_line

MAX_WORKER = 1 << 16
MAX_MEETINGS = 1024  # of a job, that are kept at once
MAX_RANKS = 16_384  # of a job, over its meetings: each says up to 1020 characters
MAX_TEXT = 255  # characters of each text that a rank sends
MEET_S = 2.0  # that a call waits for others; then its process asks again
SILENT_S = 3 * MEET_S  # one that has not asked for so long has gone
KEPT_S = 60.0  # a meeting that is complete, for who has not heard of it yet
MAX_SHOWN = 8  # in one line, of ranks
ENDS_LEASES = 2.0  # a group of which a process has gone notices in one lease, and is evicted in another


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One process that comes to a meeting.

    Attributes:
        rank: in the group.
        size: of the group.
        host: for people.
        machine: the same on all processes of one machine.
        process: random, one for each process.
        address: of rank 0 alone.
    """

    rank: int
    size: int
    host: str
    machine: str
    process: str
    address: str

    def __post_init__(self) -> None:
        if not 2 <= self.size <= MAX_SIZE:
            raise UsageError(f"a group has 2 to {MAX_SIZE} ranks, got {self.size}")
        if not 0 <= self.rank < self.size:
            raise UsageError(f"rank {self.rank} of a group of {self.size}: ranks are numbered from 0")
        texts = (self.host, self.machine, self.process, self.address)
        if any(len(text) > MAX_TEXT for text in texts) or not self.process:
            raise UsageError(f"a rank says who it is in texts of 1 to {MAX_TEXT} characters")
        if (self.rank == 0) != bool(self.address):
            raise UsageError("rank 0 of a group, and no other, says where it is reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A group's number that a live worker has.

    Attributes:
        holder: who, for people.
        lease_s: of it; 0: it has none.
    """

    holder: str
    lease_s: float


class Meeting:
    """One meeting: who has come, and when each asked last.

    Attributes:
        complete: all ranks are there; nothing changes any more.
    """

    def __init__(self, size: int) -> None:
        """Nobody has come."""
        self.complete = asyncio.Event()
        self._size = size
        self._guests: dict[int, Guest] = {}
        self._asked_s: dict[int, float] = {}
        self._came_s: dict[int, float] = {}

    def come(self, guest: Guest, now_s: float) -> None:
        """A process asks, perhaps again.

        Raises:
            JobMismatch: it says another size than those who are there.
            WorkerNumberTaken: a live process has its rank.
        """
        self._forget(now_s)
        if guest.size != self._size:
            if self._guests:
                other = min(self._guests.values(), key=lambda it: it.rank)
                raise JobMismatch(
                    f"rank {guest.rank} on {one_line(guest.host)} is of a group of {guest.size}, and rank "
                    f"{other.rank} on {one_line(other.host)} of one of {other.size}: all ranks take the same "
                    "--group-size (of a pipeline: --pipeline-stages)",
                    expected=other.size,
                    got=guest.size,
                )
            self._size = guest.size
        known = self._guests.get(guest.rank)
        if known is not None and known.process != guest.process:
            raise WorkerNumberTaken(
                f"a live process on {one_line(known.host)} is rank {guest.rank} of this group already: give "
                "each process a rank of its own (of a pipeline: --stage)",
                rank=guest.rank,
            )
        self._guests[guest.rank], self._asked_s[guest.rank] = guest, now_s
        self._came_s.setdefault(guest.rank, now_s)
        if len(self._guests) == self._size:
            self.complete.set()

    def check_free(self, guest: Guest, held: Held, now_s: float) -> None:
        """Whoever waits while the group trains waits in vain, unless that ends soon.

        Of one without a lease nobody knows whether it lives.

        Raises:
            WorkerNumberTaken: it has waited for longer than a group takes that ends, and that one has not.
        """
        waited_s = now_s - self._came_s.get(guest.rank, now_s)
        if held.lease_s and waited_s > max(ENDS_LEASES * held.lease_s, SILENT_S):
            self._leave(guest.rank)
            raise WorkerNumberTaken(
                f"{held.holder} trains, and has its rank {guest.rank}: a process comes to a group when that "
                "has ended; give each process a rank of its own (of a pipeline: --stage), or each group "
                "another --worker",
                rank=guest.rank,
            )

    @property
    def num_guests(self) -> int:
        """How many are there."""
        return len(self._guests)

    def knows(self, guest: Guest) -> bool:
        """Whether this very process has come."""
        known = self._guests.get(guest.rank)
        return known is not None and known.process == guest.process

    def is_over(self, now_s: float) -> bool:
        """Whether nobody can be waiting for it any more."""
        return all(now_s - asked_s > KEPT_S for asked_s in self._asked_s.values())

    @property
    def guests(self) -> list[Guest]:
        """Those who are there, by rank."""
        return [self._guests[rank] for rank in sorted(self._guests)]

    def missing(self, held: Held | None = None) -> str:
        """Who is, and where those are who came, and who is such a group already, for people."""
        absent = [rank for rank in range(self._size) if rank not in self._guests]
        hosts = [f"rank {guest.rank} on {guest.host}" for guest in self.guests[:MAX_SHOWN]]
        shown = ", ".join(map(str, absent[:MAX_SHOWN])) + ", ..." * (len(absent) > MAX_SHOWN)
        here = ", ".join(hosts) + ", ..." * (len(self._guests) > MAX_SHOWN)
        trains = "" if held is None else f"; {held.holder} trains, and is not waited for"
        return one_line(f"rank {shown} of {self._size}; here: {here or 'nobody'}{trains}")

    def _forget(self, now_s: float) -> None:
        for rank in [rank for rank, asked_s in self._asked_s.items() if now_s - asked_s > SILENT_S]:
            self._leave(rank)

    def _leave(self, rank: int) -> None:
        del self._guests[rank], self._asked_s[rank], self._came_s[rank]


class Meetings:
    """The meetings of all groups, by job and worker; bounded for each job in number, size and time.

    So who may come to one job's meetings keeps nobody from those of another.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """There is none; `clock` gives seconds."""
        self._clock = clock
        self._meetings: dict[str, dict[int, Meeting]] = {}

    async def meet(
        self,
        job: str,
        worker: int,
        guest: Guest,
        wait_s: float = MEET_S,
        *,
        held: Callable[[], Held | None] = lambda: None,
    ) -> Meeting:
        """A process comes, or asks again; returns when all are there, or after a while.

        Args:
            job: of the group.
            worker: that the group is.
            guest: the process.
            wait_s: for the others.
            held: who is that worker now; None: nobody.

        Raises:
            UsageError: no worker has such a number.
            ConfigurationRefused: the job has too many meetings, or too many ranks in them.
            PsError: see `Meeting.come`.
        """
        if not 0 <= worker < MAX_WORKER:
            raise UsageError(f"workers of groups are numbered from 0 to {MAX_WORKER - 1}, got {worker}")
        now_s = self._clock()
        self._forget(now_s)
        if job not in self._meetings and len(self._meetings) >= MAX_JOBS:
            raise too_many_jobs(MAX_JOBS)
        meetings = self._meetings.get(job, {})
        meeting = meetings.get(worker)
        if meeting is None or (meeting.complete.is_set() and not meeting.knows(guest)):
            if meeting is None and len(meetings) >= MAX_MEETINGS:
                raise _come_again(f"{MAX_MEETINGS} groups of job {job}")
            meeting = Meeting(guest.size)
        if not meeting.knows(guest) and sum(it.num_guests for it in meetings.values()) >= MAX_RANKS:
            raise _come_again(f"{MAX_RANKS} ranks of job {job}")
        self._meetings.setdefault(job, meetings)[worker] = meeting
        if not meeting.complete.is_set():
            meeting.come(guest, now_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await meeting.complete.wait()
        if not meeting.complete.is_set() and (holder := held()) is not None:
            meeting.check_free(guest, holder, self._clock())
        return meeting

    def _forget(self, now_s: float) -> None:
        kept = {
            job: {worker: it for worker, it in meetings.items() if not it.is_over(now_s)}
            for job, meetings in self._meetings.items()
        }
        self._meetings = {job: meetings for job, meetings in kept.items() if meetings}


def _come_again(who: str) -> ConfigurationRefused:
    return ConfigurationRefused(f"{who} are meeting here already: come again in a minute")
