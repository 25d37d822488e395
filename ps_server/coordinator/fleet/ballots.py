"""The ballots of all tables: what the coordinator decides from what a table's shards report.

The scale of a clipped step follows from norms, the choice of a step with backup workers from attendances. A
shard that connects again reports again, and what was decided is sent to it again: nothing is lost with a
stream. A report about a table that was opened again since, or from a shard that holds no part of it, is
ignored. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ps_server.agreement.chooser import Chooser, Sent
from ps_server.agreement.clipping import Norm, coefficient, holders
from ps_server.agreement.gate import gate_of
from ps_server.agreement.messages import Report, TableOpening, choice_from_proto, choice_to_proto
from ps_wire.spec import consistency
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

FIRST_ROUNDS, SECOND_ROUNDS = frozenset({"prepare", "fence"}), frozenset({"enter", "evict"})

_Key: TypeAlias = tuple[str, int]  # job, table


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that follows from reports of shards, as an order to them.

    Attributes:
        order: it is not answered.
        shards: that it goes to.
        beside: whether it waits for no order of the job; else it has its place among them.
    """

    order: pb.Order
    shards: tuple[int, ...]
    beside: bool


@dataclass(slots=True)
class ScaleBallot:
    """The scales of one table's clipped steps. One step is open at a time (R1): one scale is remembered.

    Not thread-safe.

    Attributes:
        decided: the last scale.
    """

    of: TableOpening
    max_norm: float
    holders: tuple[int, ...]
    decided: pb.Decide | None = None
    _membership_epoch: int = 0  # of the membership that norms were computed with
    _squares: dict[int, float] = field(default_factory=dict)

    def remember(self, decided: pb.Decide) -> None:
        """The last scale, which a ballot before this one has decided."""
        self.decided = decided

    def begin(self, step: int) -> None:
        """The first step is this one: no shard asks for the one before."""
        if step > 0:
            self.decided = self._decide(step - 1, 0.0)

    def reported(self, shard: int, norm: Norm) -> list[Decision]:
        """A shard's part of a norm: the scale, once all have reported, or if the shard may not know it."""
        if norm.membership_epoch > self._membership_epoch:  # parts with a worker that was evicted are void
            self._membership_epoch = norm.membership_epoch
            self._squares.clear()
        if self.decided is not None and norm.step == self.decided.step:
            return [Decision(pb.Order(decide=self.decided), (shard,), beside=True)]
        open_step = 0 if self.decided is None else self.decided.step + 1
        if norm.step != open_step or norm.membership_epoch < self._membership_epoch:
            return []
        self._squares[shard] = norm.squares
        if len(self._squares) < len(self.holders):
            return []
        squares = sum(self._squares[holder] for holder in self.holders)
        self._squares.clear()
        self.decided = self._decide(norm.step, coefficient(self.max_norm, squares))
        return [Decision(pb.Order(decide=self.decided), self.holders, beside=True)]

    def _decide(self, step: int, scale: float) -> pb.Decide:
        of = self.of
        return pb.Decide(job=of.job, table=of.table, opening=of.opening, step=step, scale=scale)


@dataclass(slots=True)
class _TableBallot:
    of: TableOpening
    holders: tuple[int, ...]
    scale: ScaleBallot | None
    chooser: Chooser | None

    def begin(self, step: int) -> None:
        if self.scale is not None:
            self.scale.begin(step)
        if self.chooser is not None:
            self.chooser.begin(step)

    def reported(self, shard: int, report: Report) -> list[Decision]:
        if self.of.opening != report.opening or shard not in self.holders:
            return []
        if isinstance(report, Norm):
            return [] if self.scale is None else self.scale.reported(shard, report)
        return [] if self.chooser is None else self.chosen(self.chooser.reported(shard, report.report))

    def chosen(self, sent: Iterable[Sent]) -> list[Decision]:
        return [Decision(choice_to_proto(self.of, it), shards, beside=False) for it, shards in sent]


@dataclass(slots=True)
class Ballots:
    """Ballots by table. Not thread-safe."""

    num_shards: int
    _backup: dict[str, int] = field(default_factory=dict)  # by job
    _tables: dict[_Key, _TableBallot] = field(default_factory=dict)

    def admitted(self, job: spec_pb2.Job) -> None:
        """The shards are told of a member of this job."""
        self._backup[job.name] = gate_of(consistency.parse(job.consistency)).backup

    def opened(self, job: str, spec: TableSpec, opening: int, step: int = 0) -> None:
        """The shards are told to open a table, whose first step is `step`: what was known of it is void."""
        self._tables.pop((job, spec.number), None)
        backup, max_norm = self._backup.get(job, 0), spec.clip_grad_norm
        if not backup and max_norm is None:
            return
        of, shards = TableOpening(job, spec.number, opening), holders(Plan(spec, self.num_shards))
        self._tables[job, spec.number] = ballot = _TableBallot(
            of,
            shards,
            scale=None if max_norm is None else ScaleBallot(of, max_norm, shards),
            chooser=Chooser(backup, shards) if backup else None,
        )
        ballot.begin(step)

    def dropped(self, job: str) -> None:
        """The shards are told to forget a job."""
        self._backup.pop(job, None)
        for key in [key for key in self._tables if key[0] == job]:
            del self._tables[key]

    def reported(self, shard: int, report: Report) -> list[Decision]:
        """Takes a shard's report, and gives what follows."""
        ballot = self._tables.get((report.job, report.table))
        return [] if ballot is None else ballot.reported(shard, report)

    def hold(self, job: str) -> None:
        """A change of members begins, in two rounds: nothing is chosen until `release`."""
        for _, chooser in self._choosers(job):
            chooser.hold()

    def release(self, job: str) -> list[Decision]:
        """It has ended: what follows from what was reported meanwhile."""
        return [made for ballot, chooser in self._choosers(job) for made in ballot.chosen(chooser.release())]

    def _choosers(self, job: str) -> list[tuple[_TableBallot, Chooser]]:
        return [
            (ballot, ballot.chooser)
            for (name, _), ballot in self._tables.items()
            if name == job and ballot.chooser is not None
        ]

    def dump(self) -> dict[str, list[str]]:
        """The last decisions about each table, for JSON: a shard may not have heard them."""
        scales = [ballot.scale for ballot in self._tables.values() if ballot.scale is not None]
        decided = [scale.decided for scale in scales if scale.decided is not None]
        choices = [
            choice_to_proto(ballot.of, choice)
            for ballot in self._tables.values()
            for choice in (ballot.chooser.made if ballot.chooser is not None else ())
        ]
        return {
            "decisions": [made.SerializeToString().hex() for made in decided],
            "choices": [made.SerializeToString().hex() for made in choices],
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped, of tables that are open."""
        for text in facts["decisions"]:
            decided = pb.Decide.FromString(bytes.fromhex(text))
            scale = self._tables[decided.job, decided.table].scale
            assert scale is not None, decided
            scale.remember(decided)
        for text in facts["choices"]:
            order = pb.Order.FromString(bytes.fromhex(text))
            choice: pb.Choose | pb.CatchUp = getattr(order, order.WhichOneof("kind") or "")
            chooser = self._tables[choice.job, choice.table].chooser
            assert chooser is not None, choice
            chooser.remember(choice_from_proto(choice))
