"""One job's runner on the coordinator: mailboxes and leases of its members, and the task that acts in order.

The decisions are the `Job`'s. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ps_server.coordinator.fleet.fleet import ORDER_LIMIT_S, RESTART_LIMIT_S, Fleet
from ps_server.coordinator.jobs.action_queue import ActionQueue
from ps_server.coordinator.jobs.actions import Action, ToMember
from ps_server.coordinator.jobs.event_log import Events
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.leases import Leases
from ps_server.coordinator.jobs.mailbox import Mailbox
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_server.events import Event
from ps_server.log import logger
from ps_wire.errors import InternalError, PsError, ServerNotReady
from ps_wire.process import watched
from ps_wire.v1 import coordinator_pb2 as pb

UNKNOWN_HOST = "?"  # a worker says it when it joins
MAX_JOBS = 1024  # that have one
ALL_TAKEN = 1 << 62  # more than anybody says


class JobRunner:
    """The task that carries out the actions of one job in order, with its members' mailboxes and leases.

    Attributes:
        cutting: held while the job is cut, for a reader or a snapshot.
    """

    def __init__(self, job: Job, fleet: Fleet, on_empty: Callable[[JobRunner], None]) -> None:
        self.job = job
        self.events = Events(job.name)
        self.leases = Leases()
        self.cutting = asyncio.Lock()
        self.mailboxes: dict[tuple[int, int], Mailbox] = {}
        self.progress: dict[int, pb.Progress] = {}
        self.heard_s: dict[int, float] = {}
        self._asked_s = 0.0  # when members were last asked for heartbeats
        self._changed = asyncio.Event()
        self._fleet = fleet
        self._on_empty = on_empty
        self._actions = ActionQueue()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing is on its way to members or shards."""
        return self._task is None and self._actions.empty

    def admit(self, member: Member, actions: Sequence[Action]) -> Mailbox:
        """Makes the mailbox of a member that has just joined, then does what follows."""
        mailbox = self.mailboxes[member.worker, member.incarnation] = Mailbox()
        self.progress.pop(member.worker, None)
        self.heard_s[member.worker] = time.monotonic()
        self.do(actions)
        return mailbox

    def note_progress(self, member: Member, progress: pb.Progress) -> None:
        """How far a member says that it has come."""
        self.progress[member.worker] = progress

    def take_back(self, member: Member, resume: pb.Resume) -> Mailbox:
        """A member of the job that the coordinator before this one knew is here, to be told to come back.

        Nothing that it has sent to that one is to be sent again.
        """
        self.leases.end(member.worker, member.incarnation)
        member.be_known(resume.incarnation, UNKNOWN_HOST)
        mailbox = Mailbox(session=resume.session, number=resume.heard, taken=ALL_TAKEN)
        self.mailboxes[member.worker, member.incarnation] = mailbox
        self.leases.grant(member.worker, member.incarnation, member.lease_s, time.monotonic())
        mailbox.put(self.job.go_back(member).reply)
        return mailbox

    def dump(self) -> dict[str, Any]:
        """The job, what its members have not heard, and counts of events, for JSON, while it is `idle`.

        Leases are left out: who takes over grants full terms.
        """
        return {
            "spec": self.job.spec.SerializeToString().hex(),
            **self.job.dump(),
            "mailboxes": [
                {"worker": worker, "incarnation": incarnation} | mailbox.dump()
                for (worker, incarnation), mailbox in self.mailboxes.items()
            ],
            "events": dict(self.events.counts),
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped of a job that is the same."""
        self.job.load(facts)
        self.events.load(facts["events"])
        now_s = time.monotonic()
        for box in facts["mailboxes"]:
            key = box["worker"], box["incarnation"]
            self.mailboxes[key] = Mailbox.load(box)
            holder = self.job.roster.members.get(key[0])
            if holder is not None and holder.incarnation == key[1] and holder.present:
                self.leases.grant(*key, holder.lease_s, now_s)
                self.heard_s[key[0]] = now_s

    def halt(self) -> None:
        """Does nothing any more."""
        if self._task is not None:
            self._task.cancel()

    async def settle(self) -> None:
        """Returns once nothing is on its way to members or shards."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def loses(self, shard: int) -> None:
        """A shard has lost its part: no order is sent any more, and what became of one is of no interest."""
        self.events.say(Event.LOSE, shard=shard)
        self._actions.freeze()

    async def freeze(self) -> None:
        """Does nothing more, for the job goes back; returns once nothing is on its way."""
        self._actions.freeze()
        if self._task is not None:
            await asyncio.wait([self._task])

    def roll_back(self, saved: SavedJob, *, floor: int) -> None:
        """The shards have the snapshot's part of the job: it goes on, with what follows for its members."""
        actions, phase = self.job.roll_back(saved, floor=floor), self.job.phase
        self.events.say(Event.RESTORE, snapshot=saved.snapshot, step=saved.step)
        now_s = time.monotonic()
        for member in self.job.roster.returning():  # each has a full term
            self.leases.grant(member.worker, member.incarnation, member.lease_s, now_s)
            self.events.record(
                Event.ROLL_BACK, member, membership_epoch=phase.membership_epoch, detail=saved.snapshot
            )
        self.thaw(actions)

    def thaw(self, actions: Sequence[Action]) -> None:
        """Goes on, with these."""
        self._actions.thaw(actions)
        self.do([])

    def heard(self, member: Member) -> None:
        """A member is alive."""
        now_s = self.heard_s[member.worker] = time.monotonic()
        self.leases.renew(member.worker, member.incarnation, now_s)
        self.wake()

    async def changed(self) -> None:
        """Waits until a member is heard, or goes, or a call of all workers is complete."""
        await self._changed.wait()

    def wake(self) -> None:
        """Whoever waits for a change looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def ask(self, members: Iterable[Member], every_s: float) -> None:
        """Wants a heartbeat of these at once, if it has not asked for `every_s` seconds."""
        now_s = time.monotonic()
        if now_s - self._asked_s < every_s:
            return
        self._asked_s = now_s
        for member in members:
            mailbox = self.mailboxes.get((member.worker, member.incarnation))
            if mailbox is not None:
                mailbox.ask(pb.MemberReply(prove=pb.Prove()))

    def evict_silent(self, now_s: float) -> list[Member]:
        """Evicts those whose leases are over, and returns them."""
        silent: list[Member] = []
        unheard: list[Member] = []
        for worker, incarnation in self.leases.expired(now_s):
            member = self.job.roster.members.get(worker)
            if member is not None and member.incarnation == incarnation and member.present:
                (unheard if member.unheard else silent).append(member)
        if unheard:
            self.give_up(unheard)
        for member in silent:
            self.evict(member)
        return silent

    def give_up(self, unheard: Sequence[Member]) -> None:
        """Those who have not come back since servers did: nobody has them in a gate, so they go together."""
        for member in unheard:
            self.events.record(Event.EVICT, member, membership_epoch=self.job.phase.membership_epoch + 1)
        self.do(self.job.give_up(unheard))

    def evict(self, member: Member) -> None:
        """A member's lease is over: the others go on without it."""
        why = f"was evicted: silent for longer than its lease of {member.lease_s:g} s; we go on"
        self.events.record(Event.EVICT, member, membership_epoch=self.job.phase.membership_epoch + 1)
        self.do(self.job.lost(member, why))

    def do(self, actions: Sequence[Action]) -> None:
        """Queues actions; one task carries them out, one change at a time."""
        self._actions.add(actions)
        if self._task is None and not self._actions.empty:
            self._task = watched.endless_task(f"the tasks of job {self.job.name}", self._run, log=logger)

    async def _run(self) -> None:
        try:
            while (action := self._actions.next()) is not None:
                if isinstance(action, ToMember):
                    self._deliver(action)
                else:
                    await self._order(action)
        finally:
            if not isinstance(sys.exception(), Exception):  # else it begins again, with what comes next
                self._task = None
        self.say_epochs()
        self.wake()
        self._check_empty()

    def say_epochs(self) -> None:
        """Says what became of the samples of epochs that have come to their end."""
        for use in self.job.epochs.over():
            self.events.record_epoch(use)

    def close(self, member: Member) -> None:
        """A member has heard its last word: its mailbox goes."""
        self.mailboxes.pop((member.worker, member.incarnation), None)
        self.leases.end(member.worker, member.incarnation)
        self._check_empty()

    def _check_empty(self) -> None:
        if self.idle and self.job.forgotten and not self.mailboxes:
            self._on_empty(self)

    def _deliver(self, action: ToMember) -> None:
        kind = action.reply.WhichOneof("kind")
        logger.debug("job %s worker %d: %s", self.job.name, action.worker, kind)
        key = action.worker, action.incarnation
        mailbox = self.mailboxes.get(key)
        if mailbox is None:
            return
        if kind == "joined":
            action.reply.joined.session = mailbox.session
            action.reply.joined.shards.extend(self._fleet.places)
            member = self.job.roster.members[action.worker]
            if member.incarnation == action.incarnation and member.state is MemberState.JOINED:
                self.leases.grant(*key, member.lease_s, time.monotonic())
        mailbox.put(action.reply)
        if mailbox.over:  # nobody is there to hear it
            del self.mailboxes[key]
            self.leases.end(*key)

    async def _order(self, order: pb.Order) -> None:
        """Has the shards carry an order out, and the one that follows from their answers."""
        actions = self._actions
        # who joins may be told to come later; all else is awaited, by workers that have limits of their own
        limit_s = ORDER_LIMIT_S if order.HasField("admit") else None
        sent = False
        try:
            await self._fleet.wait_complete(RESTART_LIMIT_S if order.HasField("admit") else None)
            sent = True
            following: pb.Order | None = order
            while following is not None:
                order = following
                figures = await self._fleet.order(order, least=actions.least, limit_s=limit_s)
                following = actions.answered(self.job, figures)
        except PsError as error:
            if isinstance(error, ServerNotReady):  # a shard that comes back empty has the job rolled back
                with suppress(ServerNotReady):
                    await self._fleet.wait_complete()
            if not actions.frozen:
                logger.warning("job %s: order %s: %s", self.job.name, order.WhichOneof("kind"), error)
            actions.refused(self.job, error, sent=sent)
        except Exception as error:  # noqa: BLE001 - else nothing would follow, and all would wait
            logger.exception("bug in order %s of job %s", order.WhichOneof("kind"), self.job.name)
            actions.refused(self.job, InternalError.of(error), sent=sent)
