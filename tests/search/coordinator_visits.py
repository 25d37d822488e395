"""One input to a coordinator in a search of all states of the service, and what comes out of it.

Carried out here is what waits for something in between: an order for the answers of all shards, as
`Fleet.order` sends it, a recovery for all shards to follow, as `Recovery` goes about it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import cast

from ps_server.agreement.messages import attendance_from_proto
from ps_server.coordinator.fleet.ballots import FIRST_ROUNDS, SECOND_ROUNDS, Decision
from ps_server.coordinator.fleet.fleet import _tables_of
from ps_server.coordinator.jobs.actions import ToMember, ToShards
from ps_server.coordinator.recovery import restoration
from ps_wire.errors import PsError, ServerNotReady
from ps_wire.frames.messages import refused_from_proto, refused_to_proto
from ps_wire.v1 import coordinator_pb2 as pb
from tests.search.coordinators import AT_ONCE
from tests.search.member_visits import MemberVisit
from tests.search.shards import JOB, refusal_of


class CoordinatorVisit(MemberVisit):
    """See the module's docstring."""

    # -- shards --------------------------------------------------------------------------------------

    def _on_broke(self) -> None:
        """The stream of shard 1 has ended."""
        self.shards.unregister(1, self.shards._registered[1].outbox)

    def _on_register(self, text: bytes) -> None:
        register = pb.Register.FromString(text)
        outbox, lost = self.shards.register(register)
        if lost:
            self._lost_state()
        granted = cast(pb.Order, outbox.get_nowait()).granted
        self.outputs.append(("granted", granted.generation, granted.coordinator))
        if self.sent is None or self.sent[2][1] is not None:
            return
        order, boot, answers = self.sent
        if boot == self.shards.registry.known[1][0]:
            self.outputs.append(("order", (1,), order))
        else:  # as `Fleet._answer`
            gone = refused_to_proto(ServerNotReady("shard 1 is gone"))
            self.sent = order, boot, (answers[0], pb.OrderDone(refused=gone).SerializeToString())
            self._answered()

    def _lost_state(self) -> None:
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
        assert self.recovers == "waits"
        assert self.sent is self.waits is None
        assert self.shards._complete.is_set()
        self.recovers = "loads"
        self._order(restoration(self.of.saved[snapshot], self.shards.registry.generations.next()))

    def _on_report(self, shard: int, text: bytes) -> None:
        """As `Fleet.reported`; a shard that does not follow is not heard."""
        if shard > 0 and shard not in self.shards._registered:
            return
        attended = attendance_from_proto(pb.Attendance.FromString(text))
        self._send(self.shards._ballots.reported(shard, attended))

    def _send(self, decisions: Iterable[Decision]) -> None:
        """As `Fleet._send_decisions`."""
        for decision in decisions:
            there = tuple(
                shard for shard in decision.shards if shard == 0 or shard in self.shards._registered
            )
            self.outputs.append(("order", there, decision.order.SerializeToString(deterministic=True)))

    def _order(self, order: pb.Order) -> None:
        """As `Fleet.order`."""
        kind = order.WhichOneof("kind") or ""
        if kind in FIRST_ROUNDS:
            self.shards._ballots.hold(JOB)
        if not self.shards._complete.is_set():
            self.waits = order
            return
        self.waits = None
        text = order.SerializeToString(deterministic=True)
        message = pb.Order(number=zlib.crc32(text))  # of two that come one after the other, they differ
        message.MergeFrom(order)
        self.shards._note(message, _tables_of(message))
        text = message.SerializeToString(deterministic=True)
        self.sent = text, self.shards.registry.known[1][0], (None, None)
        self.outputs.append(("order", (0, 1), text))

    def _on_missed(self, shard: int) -> None:
        """As `Fleet._answer_once`, when a limit is over."""
        assert self.sent is not None
        self._on_done(shard, refusal_of(self.sent[0]))

    def _on_done(self, shard: int, text: bytes) -> None:
        """As `Fleet.answered`: an answer that nobody waits for any more is not news."""
        if self.sent is None or self.sent[2][shard] is not None:
            return
        order, boot, answers = self.sent
        if pb.OrderDone.FromString(text).number != pb.Order.FromString(order).number:
            return
        self.sent = order, boot, (text, answers[1]) if shard == 0 else (answers[0], text)
        self._answered()

    def _answered(self) -> None:
        assert self.sent is not None
        order, _, answers = self.sent
        if None in answers:
            return
        self.sent = None
        outcomes = [pb.OrderDone.FromString(cast(bytes, text)) for text in answers]
        kind = pb.Order.FromString(order).WhichOneof("kind") or ""
        refused = any(outcome.HasField("refused") for outcome in outcomes)
        if kind in SECOND_ROUNDS or (refused and kind in FIRST_ROUNDS):
            self._send(self.shards._ballots.release(JOB))
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
        change = self.agenda._change
        assert change is not None
        admits = isinstance(change, ToShards) and change.order.HasField("admit")
        assert admits or self.agenda.frozen, ("everybody would be told that the job cannot go on", error)
        self.agenda.refused(self.room.job, error)

    def _restored(self, restore: pb.Restore) -> None:
        """As `Recovery._recover` goes on."""
        if self.again:
            self._go_back()
            return
        saved = self.of.saved[restore.snapshot]
        room = self.room = self.room or self.room_of(saved.job)
        self.recovery._go_on(room, saved, restore.incarnation)
        self.recovers = ""
        for member in room.job.roster.returning():
            assert room.leases._terms_s[member.worker, member.incarnation] > 0

    # -- what follows --------------------------------------------------------------------------------

    def settle(self, *, answers: bool = False) -> None:
        """As `JobRunner._run`, until an order is under way; members hear what they may as well hear now."""
        while self.room is not None:
            self.hear_at_once()
            if self.sent is not None and answers:
                done = pb.OrderDone(number=pb.Order.FromString(self.sent[0]).number).SerializeToString()
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
