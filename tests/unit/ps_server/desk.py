"""A coordinator's desk: one `Job`, its actions carried out in order, its orders answered as the test says.

As in `room`: actions queue up, one order is under way at a time, and what follows from its outcome goes to
the end of the queue. A member that is told `refused` or `left` is gone afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ps_server.coordinator.jobs.actions import Action, ToMember, TwoRounds
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.shard.orders import execute_order
from ps_server.shard.shard import Shard
from ps_wire.errors import PsError
from ps_wire.frames.messages import refused_from_proto
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

LAST_WORDS = ("left", "refused")


def table(number: int = 0, *, lr: float = 0.1, numel: int = 4) -> TableSpec:
    """A small table."""
    return TableSpec(
        number=number,
        parameters=(ParameterSpec(name="w", shape=(numel,)),),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", lr),),))),
    )


class Desk:
    """See the module's docstring.

    Attributes:
        told: what each incarnation of each worker was sent, in order.
        orders: what the shards were told, by kind.
        held: orders wait until `carry_out` is called.
        clocks: what shards answer to a removal.
        refusals: orders that were refused, and why.
    """

    def __init__(
        self,
        num_workers: int = 1,
        *,
        consistency: str = "bsp",
        shards: Sequence[Shard] = (),
        min_workers: int = 0,
    ) -> None:
        self.job = Job("j", consistency, num_workers, min_workers=min_workers)
        self.told: dict[tuple[int, int], list[pb.MemberReply]] = {}
        self.orders: list[pb.Order] = []
        self.held = False
        self.clocks: dict[int, int] = {}
        self.refusals: list[PsError] = []
        self._shards = shards
        self._actions: deque[Action] = deque()

    # -- inputs ----------------------------------------------------------------------------------------

    def join(
        self,
        worker: int | None = None,
        *,
        consistency: str | None = None,
        num_workers: int | None = None,
        nonfinite: str | None = None,
        before: int = 0,
        ranks: int = 1,
    ) -> Member:
        member, actions = self.job.join(
            spec_pb2.Job(
                consistency=consistency or str(self.job.consistency),
                num_workers=num_workers or self.job.num_workers,
                nonfinite=nonfinite or self.job.nonfinite,
                min_workers=self.job.min_workers,
            ),
            worker=worker,
            host="h",
            pid=7,
            before=before,
            ranks=ranks,
        )
        self.told[member.worker, member.incarnation] = []
        self.do(actions)
        return member

    def make(self, member: Member, number: int = 0, **options: float) -> None:
        self.do(self.job.make_table(member, table(number, **options)))

    def upload(self, member: Member, number: int = 0) -> None:
        self.do(self.job.starts.uploaded(member, number))

    def upload_final(self, member: Member) -> None:
        self.do(self.job.uploaded_final(member))

    def finish(self, *members: Member) -> None:
        for member in members:
            self.do(self.job.finish(member))

    def leave(self, *members: Member, reason: str = "") -> None:
        for member in members:
            self.do(self.job.leave(member, reason))

    def lose(self, *members: Member) -> None:
        for member in members:
            self.do(self.job.lost(member))

    def start(self, num_tables: int = 1) -> list[Member]:
        """All workers join, make their tables and begin."""
        members = [self.join(number) for number in range(self.job.num_workers)]
        for number in range(num_tables):
            for member in members:
                self.make(member, number)
            self.upload(members[0], number)
        return members

    # -- outcomes --------------------------------------------------------------------------------------

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, ToMember):
                self._check_told(action)
        self._actions.extend(actions)
        if not self.held:
            self.settle()

    def settle(self) -> None:
        while self._actions:
            self.carry_out()

    @property
    def under_way(self) -> bool:
        """Whether actions wait."""
        return bool(self._actions)

    def carry_out(self, error: PsError | None = None) -> None:
        """Delivers up to the next order, and has the shards carry that one out, or refuse it."""
        while self._actions:
            action = self._actions.popleft()
            if isinstance(action, ToMember):
                self._deliver(action)
                continue
            order = action.first if isinstance(action, TwoRounds) else action.order
            outcome = error or self._ask(order, least=isinstance(action, TwoRounds) and action.least)
            if isinstance(action, TwoRounds) and not isinstance(outcome, PsError):
                order = action.second(outcome)
                outcome = self._ask(order)
            if isinstance(outcome, PsError):
                self.refusals.append(outcome)
                self.do_later(self.job.failed(order, outcome))
            else:
                self.do_later(self.job.done(order, outcome))
            return

    def do_later(self, actions: Sequence[Action]) -> None:
        """What follows from an outcome queues up."""
        held, self.held = self.held, True
        self.do(actions)
        self.held = held

    def _ask(self, order: pb.Order, *, least: bool = False) -> PsError | dict[int, int]:
        self.orders.append(order)
        if not self._shards:
            return self.clocks if order.WhichOneof("kind") in ("remove", "fence", "evict", "prepare") else {}
        clocks: dict[int, int] = {}
        extreme = min if least else max
        for shard in self._shards:
            done = execute_order(shard, order)
            if done.HasField("refused"):
                return refused_from_proto(done.refused)
            for number, clock in done.clocks.items():
                clocks[number] = extreme(clocks.get(number, clock), clock)
        return clocks

    def _deliver(self, action: ToMember) -> None:
        told = self.told[action.worker, action.incarnation]
        if told and told[-1].WhichOneof("kind") in LAST_WORDS:
            return
        told.append(action.reply)
        member = self.job.roster.members[action.worker]
        kind = action.reply.WhichOneof("kind")
        if kind in LAST_WORDS and member.incarnation == action.incarnation and member.present:
            self.do_later(self.job.lost(member))

    def _check_told(self, action: ToMember) -> None:
        member = self.job.roster.members[action.worker]
        if action.reply.WhichOneof("kind") not in LAST_WORDS:
            assert member.incarnation == action.incarnation, "only the latest incarnation is spoken to"
            assert member.present, action

    # -- what came of it -------------------------------------------------------------------------------

    def kinds(self, member: Member) -> list[str]:
        """What a member was told, by kind."""
        return [str(reply.WhichOneof("kind")) for reply in self.told[member.worker, member.incarnation]]

    def last(self, member: Member, kind: str) -> pb.MemberReply:
        """The last reply of this kind."""
        return [r for r in self.told[member.worker, member.incarnation] if r.WhichOneof("kind") == kind][-1]

    def error(self, member: Member) -> PsError:
        """Why a member was refused."""
        return refused_from_proto(self.last(member, "refused").refused)

    @property
    def order_kinds(self) -> list[str]:
        """What the shards were told, by kind."""
        return [str(order.WhichOneof("kind")) for order in self.orders]


def alone(job: Job) -> JobRunner:
    """A room without shards: nothing is ordered here."""
    return JobRunner(job, fleet=None, on_empty=lambda _: None)  # type: ignore[arg-type]
