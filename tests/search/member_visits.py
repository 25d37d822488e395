"""One input of a member to a coordinator in a search of all states of the service, and what comes out of it.

What a member is told comes out when it hears it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor
from copy import deepcopy
from typing import Any, cast

from ps_server.coordinator.drops import Drops
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.following import FollowerStream
from ps_server.coordinator.jobs.action_queue import ActionQueue
from ps_server.coordinator.jobs.actions import Action, ToMember
from ps_server.coordinator.jobs.dropped import DroppedNames
from ps_server.coordinator.jobs.mailbox import LAST_WORDS
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.late_joins import LateJoins
from ps_server.coordinator.lease_watch import LeaseWatch
from ps_server.coordinator.live_extras import LiveExtras
from ps_server.coordinator.member_streams import MemberStreams
from ps_server.coordinator.readers import Readers
from ps_server.coordinator.recovery import Recovery
from ps_server.coordinator.snapshots.policy import NO_SNAPSHOTS
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.coordinator.state_store import StateStore
from ps_server.process.shard_zero import ShardZero
from ps_server.shard.shard import Shard
from ps_wire.errors import Evicted, JobFull, ServerNotReady, WorkerNumberTaken
from ps_wire.frames.messages import refused_from_proto, table_to_proto
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.search.coordinators import LEASE_S, CoordinatorNode, Desk, Jobs, OnDisk, Sent
from tests.search.shards import JOB, NUM_SHARDS, SPEC, Input, Output


class NoTimers:
    """The event loop of a search: what comes later there are lines of the log, which nothing follows from."""

    def call_later(self, delay_s: float, callback: object, *arguments: object) -> None:
        pass


class MemberVisit:
    """One input to a coordinator, and what comes out of it."""

    def __init__(self, of: Jobs, before: CoordinatorNode | None, *, last: int = 0) -> None:
        self.of = of
        self.outputs: list[Output] = []
        known = before.last if before is not None else last
        generations = OnDisk(known, None if before is None else before.own)
        if before is None and last == 0:
            generations._last = 2
        self.own = Shard(index=0, num_shards=NUM_SHARDS, memory_limit_bytes=None)
        self.shards = Fleet(
            ShardZero(self.own, generations.own),
            "shard0:1",
            cast(asyncio.AbstractEventLoop, NoTimers()),
            generations,
            cast(Executor, self),
        )
        self.recovers, self.again = "", False
        self.sent: Sent | None = None
        self.waits: pb.Order | None = None  # of a second round: it is sent once all shards follow
        self.rooms: dict[str, JobRunner] = {}
        self.states = StateStore()
        self.room: Desk | None = None
        self.agenda = ActionQueue()
        live, self.late_joins = LiveExtras(self.states), LateJoins()
        scheduler = SnapshotScheduler(self.shards, self.rooms, self.states, store=None, policy=NO_SNAPSHOTS)
        self.recovery = Recovery(
            self.shards,
            self.rooms,
            self.states,
            self.room_of,
            scheduler=scheduler,
            on_restored=lambda: None,  # leases end when the search says so
        )
        readers = Readers(self.shards, self.rooms, live, on_join=self.recovery.check)
        drops = Drops(
            self.shards,
            self.rooms,
            self.states,
            DroppedNames(),
            store=None,
            readers=readers,
            recovery=self.recovery,
            scheduler=scheduler,
        )
        self.members = MemberStreams(
            self.shards,
            self.rooms,
            self.room_of,
            live=live,
            late_joins=self.late_joins,
            scheduler=scheduler,
            leases=LeaseWatch(self.rooms, [live, scheduler]),
            recovery=self.recovery,
            drops=drops,
        )
        if before is not None:
            self._go_on_from(before)

    def _go_on_from(self, before: CoordinatorNode) -> None:
        self.shards.registry.known.update(before.standings)
        self.own.generation = before.own_shard
        if before.complete:
            self.follows()
        self.recovers, self.again = before.recovers, before.again
        self.sent, self.waits = before.sent, before.waits
        self.shards._ballots = deepcopy(before.ballots)
        was = before.agenda
        agenda = ActionQueue(was.frozen, deque(map(_copied, was._actions)), was._change)
        if before.room is not None:
            self.take_up(before.room)
            assert self.room is not None
            self.room._actions = agenda
        self.agenda = agenda

    def take_up(self, facts: dict[str, Any] | None) -> None:
        """A job that was handed on; every lease is granted anew, and every member listens."""
        if facts is None:
            return
        self.room = self.room_of(spec_pb2.Job.FromString(bytes.fromhex(facts["spec"])))
        self.room.load(facts)
        for mailbox in self.room.mailboxes.values():
            mailbox.attach()
        self.check_leases()

    def check_leases(self) -> None:
        """Whoever is awaited by a coordinator that was started again has a full term."""
        assert self.room is not None
        for key in self.room.mailboxes:
            member = self.room.job.roster.members.get(key[0])
            if member is not None and member.incarnation == key[1] and member.present:
                assert self.room.leases._terms_s.get(key) == member.lease_s == LEASE_S, member

    def room_of(self, wanted: spec_pb2.Job) -> Desk:
        room = self.rooms.get(JOB)
        if room is None:
            assert wanted.name == JOB
            room = self.rooms[JOB] = Desk(self.of.job, self.shards, self._forget)
            self.agenda = room._actions
        return cast(Desk, room)

    def _forget(self, room: JobRunner) -> None:
        del self.rooms[JOB]
        self.room = None

    def forget_gone(self) -> None:
        """Nobody comes to a mailbox of an incarnation that another one of the same process has followed."""
        if self.room is not None:
            members = self.room.job.roster.members
            for (worker, incarnation), box in list(self.room.mailboxes.items()):
                joins = bool(box._kept) and box._kept[-1].WhichOneof("kind") == "refused"
                if members[worker].incarnation != incarnation and not joins:
                    self._drop(worker, incarnation)

    # -- inputs --------------------------------------------------------------------------------------

    def give(self, given: Input) -> None:
        name, *what = given
        # as `Recovery.check` looks at it
        self.recovery._going = cast(Any, {JOB: None} if self.recovers else {})
        getattr(self, f"_on_{name}")(*what)

    def join(self, worker: int, before: int) -> None:
        """As `MemberStreams._join`."""
        self.members._check_recovered(JOB)
        self.shards.check_ready()
        room = self.room = self.room_of(self.of.job.spec)
        member, actions = room.job.join(
            self.of.job.spec, worker=worker, host="h", pid=7, lease_s=LEASE_S, before=before
        )
        room.admit(member, actions).attach()

    def _on_join(self, worker: int, before: int) -> None:
        try:
            self.join(worker, before)
        except (ServerNotReady, WorkerNumberTaken, JobFull) as error:
            self.outputs.append(("not_now", worker, type(error).__name__))

    def _on_resume(self, worker: int, incarnation: int) -> None:
        try:
            resume = pb.Resume(job=JOB, worker=worker, incarnation=incarnation, session=b"s")
            self.members._resume(resume)
        except ServerNotReady as error:
            self.outputs.append(("not_now", worker, type(error).__name__))
        except Evicted as error:
            self.outputs.append(("told", worker, incarnation, "refused", type(error).__name__))
        else:
            self.check_leases()

    def _say(self, worker: int, incarnation: int, **message: Any) -> None:
        assert self.room is not None
        member = self.room.job.roster.member(worker, incarnation)
        request = pb.MemberRequest(**message)
        self.members._receive(request, self.room, member, self.room.mailboxes[worker, incarnation])

    def _on_make(self, worker: int, incarnation: int) -> None:
        assert self.room is not None
        member = self.room.job.roster.member(worker, incarnation)
        self.late_joins.make_table(self.room, member, SPEC, table_to_proto(SPEC))

    def _on_uploaded(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, uploaded=pb.Uploaded(table=0))

    def _on_finish(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, finish=pb.Finish())

    def _on_final(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, uploaded=pb.Uploaded(final=True))

    def _on_leave(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, leave=pb.Leave())

    def _on_break_up(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, leave=pb.Leave(reason="a rank has gone", torn=True))

    def _on_lost(self, worker: int, incarnation: int) -> None:
        """Its lease is over."""
        assert self.room is not None
        self.room.evict(self.room.job.roster.member(worker, incarnation))

    def _on_hear(self, worker: int, incarnation: int) -> None:
        """A member hears what it was told next."""
        assert self.room is not None
        mailbox = self.room.mailboxes[worker, incarnation]
        reply = mailbox._kept[0]
        mailbox.heard(reply.number)
        kind = str(reply.WhichOneof("kind"))
        value: object = None
        match kind:
            case "joined":
                value = (*(it.generation for it in reply.joined.shards), reply.joined.ended)
            case "table_started":
                value = reply.table_started.step
            case "rolled_back":
                value = reply.rolled_back.step
            case "refused":
                value = type(refused_from_proto(reply.refused)).__name__
            case "table_made":
                value = reply.table_made.upload
        self.outputs.append(("told", worker, incarnation, kind, value))
        if kind in LAST_WORDS:
            member = self.room.job.roster.members[worker]
            if member.incarnation == incarnation:
                self.members._gone(self.room, member)
            self.room.close(member) if member.incarnation == incarnation else self._drop(worker, incarnation)

    def _drop(self, worker: int, incarnation: int) -> None:
        assert self.room is not None
        self.room.mailboxes.pop((worker, incarnation), None)

    def follows(self) -> None:
        """Shard 1 does."""
        self.shards._registered[1] = FollowerStream("shard1:1", "shard1:1", asyncio.Queue())
        self.shards._complete.set()


def _copied(action: Action) -> Action:
    """One that can be delivered: what a member is told of shards is put in then."""
    if not isinstance(action, ToMember):
        return action
    reply = pb.MemberReply.FromString(action.reply.SerializeToString())
    return ToMember(action.worker, action.incarnation, reply)
