"""Coordinators for a search of all states of the service: the real decisions, one input at a time.

A node is what a coordinator has in one state: its job with members and mailboxes, kept as what it hands off
when it stops (`coordinator_state`); its agenda; who its shards are (`Shards`, `Standings`); whether the job is
going back (`Recovery`). Carried out here is what else waits for something: an order for the answers of all
shards, a recovery for all shards to follow. What a member is told comes out when it hears it.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, cast

from ps_server import coordinator_state
from ps_server.agenda import Agenda
from ps_server.following import Following
from ps_server.generations import Generations
from ps_server.mailbox import LAST_WORDS
from ps_server.member import Action, ToMember, TwoRounds
from ps_server.member_streams import MemberStreams
from ps_server.membership import Job
from ps_server.orders import Shards
from ps_server.readers import Readers
from ps_server.recovery import Recovery, floor_of, restoration
from ps_server.room import Room
from ps_server.saved_job import SavedJob
from ps_server.shard import Shard
from ps_server.snapshot_policy import NO_SNAPSHOTS
from ps_server.state_store import StateStore
from ps_server.takings import Takings
from ps_wire.errors import Evicted, JobFull, PsError, ServerNotReady, WorkerNumberTaken
from ps_wire.frame import PROTOCOL
from ps_wire.messages import refused_from_proto, refused_to_proto, table_to_proto
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

from .search_shards import JOB, NUM_SHARDS, SPEC, Input, Output

LEASE_S = 10.0
AT_ONCE = ("waiting", "notice", "joined", "table_made", "table_started", "upload_final", "ended")

Sent = tuple[bytes, bytes, tuple[bytes | None, ...]]  # an order, the boot of shard 1, the answers so far


class OnDisk(Generations):
    """Numbers of a state directory that is part of the state that is searched."""

    def __init__(self, last: int, own: int | None = None) -> None:
        """Takes the last number there is; `own` is None where a coordinator starts."""
        super().__init__(None)
        self._last, self.own = last, own or 0
        if own is None:
            self.own = self.next()

    @property
    def lasting(self) -> bool:
        return True


class Desk(Room):
    """A room whose agenda the search carries out."""

    def do(self, actions: Sequence[Action]) -> None:
        self._agenda.add(actions)


@dataclass(slots=True, eq=False, repr=False)
class CoordinatorNode:
    """See the module's docstring.

    Attributes:
        members: worker -> its incarnation and state.
        heard: (worker, incarnation) of those who have a mailbox.
        told: of those, who have something to hear.
        complete: all shards follow.
        recovers: "", "waits" for all shards, "loads".
        idle: nothing is under way: it can be handed on.
    """

    number: int
    room: dict[str, Any] | None
    agenda: Agenda
    standings: Mapping[int, tuple[bytes, int]]
    last: int
    own: int
    own_shard: int
    complete: bool
    recovers: str
    again: bool
    sent: Sent | None
    waits: pb.Order | None
    members: dict[int, tuple[int, str]] = field(default_factory=dict)
    heard: frozenset[tuple[int, int]] = frozenset()
    told: frozenset[tuple[int, int]] = frozenset()
    state: str = ""
    memo: dict[Input, tuple[CoordinatorNode, tuple[Output, ...]]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self.recovers and self.sent is self.waits is None and self.agenda.empty


@dataclass(slots=True)
class Coordinators:
    """All nodes that were met; `saved`: snapshots by name."""

    consistency: str
    workers: int
    at_least: int = 0  # so many start
    known: dict[object, CoordinatorNode] = field(default_factory=dict)
    saved: dict[str, SavedJob] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        return Job(JOB, self.consistency, self.workers, min_workers=self.at_least)

    def start(self, present: int) -> CoordinatorNode:
        """Of a job that runs with the first workers, and has heard what it was told."""
        visit = _Visit(self, None)
        visit.shards.standings.known[1] = _boot(1), 2
        visit.follows()
        visit.room = visit.room_of(self.job.spec)
        for worker in range(present):
            visit.join(worker, 0)
        for worker in range(present):
            visit.give(("make", worker, 1))
        visit.give(("uploaded", 0, 1))
        visit.settle(answers=True)
        return self._node(visit)

    def crashed(self, node: CoordinatorNode) -> CoordinatorNode:
        """The process that is started in its place, with nothing but the state directory and snapshots."""
        visit = _Visit(self, None, last=node.last)
        visit.recovers = "waits"
        return self._node(visit)

    def stopped(self, node: CoordinatorNode) -> CoordinatorNode:
        """The successor of one that has handed on what it had."""
        assert node.idle
        visit = _Visit(self, None, last=node.last)
        visit.shards.standings.known.update(node.standings)
        visit.take_up(node.room)
        return self._node(visit)

    def step(self, node: CoordinatorNode, given: Input) -> tuple[CoordinatorNode, tuple[Output, ...]]:
        """The node after an input, and what came out."""
        found = node.memo.get(given)
        if found is None:
            visit = _Visit(self, node)
            visit.give(given)
            visit.settle()
            found = node.memo[given] = self._node(visit), tuple(visit.outputs)
        return found

    def _node(self, visit: _Visit) -> CoordinatorNode:
        room, shards = visit.room, visit.shards
        visit.forget_gone()
        facts = None if room is None else coordinator_state._room_facts(room)
        agenda = visit.agenda
        complete = shards._complete.is_set()
        known = dict(shards.standings.known)
        generations = shards.standings.generations
        key = (
            json.dumps(_plain(facts), sort_keys=True),
            agenda.frozen,
            tuple(map(_action_key, agenda._actions)),
            None if agenda._change is None else _action_key(agenda._change),
            tuple(sorted(known.items())),
            generations._last,
            generations.own,
            shards.own.generation,
            complete,
            visit.recovers,
            visit.again,
            visit.sent,
            None if visit.waits is None else visit.waits.SerializeToString(deterministic=True),
        )
        if key not in self.known:
            members = room.job.roster.members.values() if room is not None else ()
            boxes = room.mailboxes if room is not None else {}
            self.known[key] = CoordinatorNode(
                number=len(self.known),
                room=facts,
                agenda=agenda,
                standings=known,
                last=generations._last,
                own=generations.own,
                own_shard=shards.own.generation,
                complete=complete,
                recovers=visit.recovers,
                again=visit.again,
                sent=visit.sent,
                waits=visit.waits,
                members={it.worker: (it.incarnation, it.state.value) for it in members},
                heard=frozenset(boxes),
                told=frozenset(key for key, box in boxes.items() if box._kept),
                state="" if room is None else room.job.state.value,
            )
        return self.known[key]


def _action_key(action: Action) -> object:
    if isinstance(action, ToMember):
        return action.worker, action.incarnation, action.reply.SerializeToString(deterministic=True)
    order = action.first if isinstance(action, TwoRounds) else action.order
    return type(action).__name__, order.SerializeToString(deterministic=True)


def _plain(facts: dict[str, Any] | None) -> object:
    """What decides a job's future."""
    if facts is None:
        return None
    boxes = [
        (box["worker"], box["incarnation"], [_said(text) for text in box["kept"]])
        for box in facts["mailboxes"]
    ]
    members = sorted(facts["members"], key=lambda it: it["worker"])
    left_out = {"mailboxes", "events", "members", "plain"}
    plain = {name: it for name, it in facts["plain"].items() if name != "epoch"}
    kept = {name: it for name, it in facts.items() if name not in left_out}
    return {**kept, "plain": plain, "boxes": sorted(boxes), "members": members}


def _said(text: str) -> str:
    reply = pb.MemberReply.FromString(bytes.fromhex(text))
    return str(reply.WhichOneof("kind"))


def _boot(number: int) -> bytes:
    return number.to_bytes(4, "big")


class _Visit:
    """One input to a coordinator, and what comes out of it."""

    def __init__(self, of: Coordinators, before: CoordinatorNode | None, *, last: int = 0) -> None:
        self.of = of
        self.outputs: list[Output] = []
        known = before.last if before is not None else last
        generations = OnDisk(known, None if before is None else before.own)
        if before is None and last == 0:
            generations._last = 2
        self.shards = Shards(
            Shard(index=0, num_shards=NUM_SHARDS, memory_limit_bytes=None),
            "shard0:1",
            cast(asyncio.AbstractEventLoop, None),
            generations,
            cast(Executor, self),
        )
        self.recovers, self.again = "", False
        self.sent: Sent | None = None
        self.waits: pb.Order | None = None  # of a second round: it is sent once all shards follow
        self.rooms: dict[str, Room] = {}
        self.states = StateStore()
        self.room: Desk | None = None
        self.agenda = Agenda()
        self.recovery = Recovery(self.shards, self.rooms, self.states, self.room_of)
        readers = Readers(self.shards, self.rooms, self.states)
        takings = Takings(
            self.shards, self.rooms, self.states, store=None, policy=NO_SNAPSHOTS, lock_of=readers.lock_of
        )
        self.members = MemberStreams(self.shards, self.rooms, readers, takings, self.room_of)
        self.members.recovery = self.recovery
        self.shards.on_lost_state = self._lost_state
        if before is not None:
            self._go_on_from(before)

    def _go_on_from(self, before: CoordinatorNode) -> None:
        self.shards.standings.known.update(before.standings)
        self.shards.own.generation = before.own_shard
        if before.complete:
            self.follows()
        self.recovers, self.again = before.recovers, before.again
        self.sent, self.waits = before.sent, before.waits
        was = before.agenda
        agenda = Agenda(was.frozen, deque(was._actions), was._change)
        if before.room is not None:
            self.take_up(before.room)
            assert self.room is not None
            self.room._agenda = agenda
        self.agenda = agenda

    def take_up(self, facts: dict[str, Any] | None) -> None:
        """A job that was handed on; every lease is granted anew, and every member listens."""
        if facts is None:
            return
        self.room = self.room_of(spec_pb2.Job.FromString(bytes.fromhex(facts["spec"])))
        coordinator_state._restore_room(facts, self.room)
        for mailbox in self.room.mailboxes.values():
            mailbox.attach()
        self.check_leases()

    def check_leases(self) -> None:
        """Whoever is awaited by a coordinator that was started again, or after a rollback, has a full term."""
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
            self.agenda = room._agenda
        return cast(Desk, room)

    def _forget(self, room: Room) -> None:
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
        self.recovery._task = cast("asyncio.Task[None] | None", self.recovers or None)
        getattr(self, f"_on_{name}")(*what)

    def join(self, worker: int, before: int) -> None:
        """As `MemberStreams._join`."""
        self.members._check_recovered()
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
        self.members._take(request, self.room, member, self.room.mailboxes[worker, incarnation])

    def _on_make(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, make_table=pb.MakeTable(table=table_to_proto(SPEC)))

    def _on_uploaded(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, uploaded=pb.Uploaded(table=0))

    def _on_finish(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, finish=pb.Finish())

    def _on_final(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, uploaded=pb.Uploaded(final=True))

    def _on_leave(self, worker: int, incarnation: int) -> None:
        self._say(worker, incarnation, leave=pb.Leave())

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

    # -- shards --------------------------------------------------------------------------------------

    def follows(self) -> None:
        """Shard 1 does."""
        self.shards._registered[1] = Following("shard1:1", asyncio.Queue())
        self.shards._complete.set()

    def _on_broke(self) -> None:
        """The stream of shard 1 has ended."""
        self.shards.unregister(1, self.shards._registered[1].outbox)

    def _on_register(self, text: bytes) -> None:
        register = pb.Register.FromString(text)
        outbox = self.shards.register(register)
        granted = cast(pb.Order, outbox.get_nowait()).granted
        self.outputs.append(("granted", granted.generation, granted.coordinator))
        if self.sent is None or self.sent[2][1] is not None:
            return
        order, boot, answers = self.sent
        if boot == self.shards.standings.known[1][0]:
            self.outputs.append(("order", (1,), order))
        else:  # as `Shards._answer`
            gone = refused_to_proto(ServerNotReady("shard 1 is gone"))
            self.sent = order, boot, (answers[0], pb.OrderDone(refused=gone).SerializeToString())
            self._answered()

    def _lost_state(self, _: int) -> None:
        """As `Recovery.lost`."""
        if self.recovers == "loads":
            self.again = True
        else:
            self._go_back()

    def _go_back(self) -> None:
        self.recovers, self.again = "waits", False
        self.agenda.freeze()

    def _on_recover(self, snapshot: str) -> None:
        """All shards follow, and nothing is under way: as `Recovery._restore`."""
        assert self.recovers == "waits" and self.sent is self.waits is None and self.shards._complete.is_set()
        self.recovers = "loads"
        self._order(restoration(self.of.saved[snapshot], self.shards.raise_generation()))

    def _order(self, order: pb.Order) -> None:
        """As `Shards.order`."""
        if not self.shards._complete.is_set():
            self.waits = order
            return
        self.waits = None
        text = order.SerializeToString(deterministic=True)
        message = pb.Order(number=zlib.crc32(text))  # of two that come one after the other, they differ
        message.MergeFrom(order)
        text = message.SerializeToString(deterministic=True)
        self.sent = text, self.shards.standings.known[1][0], (None, None)
        self.outputs.append(("order", (0, 1), text))

    def _on_done(self, shard: int, text: bytes) -> None:
        assert self.sent is not None
        order, boot, answers = self.sent
        self.sent = order, boot, (text, answers[1]) if shard == 0 else (answers[0], text)
        restore = pb.Order.FromString(order)
        if shard == 0 and restore.WhichOneof("kind") == "restore":
            self.shards.own.generation = restore.restore.generation
        self._answered()

    def _answered(self) -> None:
        assert self.sent is not None
        order, _, answers = self.sent
        if None in answers:
            return
        self.sent = None
        outcomes = [pb.OrderDone.FromString(cast(bytes, text)) for text in answers]
        for outcome in outcomes:
            if outcome.HasField("refused"):
                self._refused(refused_from_proto(outcome.refused))
                return
        if self.recovers == "loads":
            self._restored(pb.Order.FromString(order).restore)
            return
        extreme = min if self.agenda.least else max
        figures: dict[int, int] = {}
        for outcome in outcomes:
            for number, clock in outcome.clocks.items():
                figures[number] = extreme(clock, figures.get(number, clock))
        assert self.room is not None
        following = self.agenda.answered(self.room.job, figures)
        if following is not None:
            self._order(following)

    def _refused(self, error: PsError) -> None:
        if self.recovers == "loads":
            assert isinstance(error, ServerNotReady), error
            self._go_back()
            return
        assert self.room is not None
        assert self.agenda.frozen, ("everybody would be told that the job cannot go on", error)
        self.agenda.refused(self.room.job, error)

    def _restored(self, restore: pb.Restore) -> None:
        """As `Recovery._recover` goes on."""
        saved = self.of.saved[restore.snapshot]
        room = self.room = self.room or self.room_of(saved.job)
        self.recovery._go_on(room, saved, floor_of(restore.generation))
        self.recovers = ""
        for member in room.job.roster.returning():
            assert room.leases._terms_s[member.worker, member.incarnation] > 0
        if self.again:
            self._go_back()

    # -- what follows --------------------------------------------------------------------------------

    def settle(self, *, answers: bool = False) -> None:
        """As `Room._run`, until an order is under way; members hear what changes nothing for them to hear later."""
        while self.room is not None:
            self.hear_at_once()
            if self.sent is not None and answers:
                done = pb.OrderDone().SerializeToString()
                self._on_done(0, done)
                self._on_done(1, done)
                continue
            if self.waits is not None and self.shards._complete.is_set():
                self._order(self.waits)
            if self.sent is not None or self.waits is not None:
                return
            first = self.agenda._actions[0] if self.agenda._actions else None
            if not isinstance(first, ToMember) and not self.shards._complete.is_set():
                return
            action = self.agenda.next()
            if action is None:
                return
            if isinstance(action, ToMember):
                self.room._deliver(action)
            else:
                self._order(action)

    def hear_at_once(self) -> None:
        """Of each mailbox the first words, as far as they are such."""
        assert self.room is not None
        for (worker, incarnation), box in list(self.room.mailboxes.items()):
            while box._kept and box._kept[0].WhichOneof("kind") in AT_ONCE:
                self._on_hear(worker, incarnation)
