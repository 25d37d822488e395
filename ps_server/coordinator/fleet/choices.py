"""Backup workers: the choosers of all jobs on the coordinator.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ps_server.agreement.attendance import Choose, TableAttendance
from ps_server.agreement.chooser import Chooser
from ps_server.agreement.clipping import holders
from ps_server.agreement.gate import gate_of
from ps_server.agreement.messages import TableOpening, choice_from_proto, choice_to_proto
from ps_wire.spec import consistency
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

FIRST_ROUNDS, SECOND_ROUNDS = frozenset({"prepare", "fence"}), frozenset({"enter", "evict"})


@dataclass(slots=True)
class Choices:
    """Choosers by table. Not thread-safe."""

    num_shards: int
    _backup: dict[str, int] = field(default_factory=dict)  # by job
    _choosers: dict[tuple[str, int], tuple[int, Chooser]] = field(default_factory=dict)

    def admitted(self, job: spec_pb2.Job) -> None:
        """The shards are told of a member of this job."""
        self._backup[job.name] = gate_of(consistency.parse(job.consistency)).backup

    def opened(self, job: str, spec: TableSpec, opening: int, step: int = 0) -> None:
        """The shards are told to open a table, whose first step is `step`: one before it is void."""
        self._choosers.pop((job, spec.number), None)
        backup = self._backup.get(job, 0)
        if backup:
            chooser = Chooser(backup, holders(Plan(spec, self.num_shards)))
            if step > 0:
                chooser.last = Choose(step=step - 1, workers=frozenset())  # no shard asks for that
            self._choosers[job, spec.number] = opening, chooser

    def capture(self) -> list[str]:
        """The last choices about each table, for JSON: a shard may not have heard them."""
        made = [
            choice_to_proto(TableOpening(job, table, opening), choice)
            for (job, table), (opening, chooser) in self._choosers.items()
            for choice in chooser.made
        ]
        return [order.SerializeToString().hex() for order in made]

    def restore(self, captured: Iterable[str]) -> None:
        """What a coordinator before this one has chosen, of tables that are open."""
        for text in captured:
            order = pb.Order.FromString(bytes.fromhex(text))
            choice: pb.Choose | pb.CatchUp = getattr(order, order.WhichOneof("kind") or "")
            _, chooser = self._choosers[choice.job, choice.table]
            chooser.remember(choice_from_proto(choice))

    def dropped(self, job: str) -> None:
        """The shards are told to forget a job."""
        self._backup.pop(job, None)
        for key in [key for key in self._choosers if key[0] == job]:
            del self._choosers[key]

    def hold(self, job: str) -> None:
        """A change of members begins, in two rounds: nothing is chosen until `release`."""
        for _, chooser in self._of(job).values():
            chooser.hold()

    def release(self, job: str) -> list[tuple[pb.Order, tuple[int, ...]]]:
        """It has ended: orders that follow from what was reported meanwhile, and whom each goes to."""
        orders = []
        for number, (opening, chooser) in self._of(job).items():
            place = TableOpening(job, number, opening)
            orders += [(choice_to_proto(place, choice), shards) for choice, shards in chooser.release()]
        return orders

    def _of(self, job: str) -> dict[int, tuple[int, Chooser]]:
        return {number: known for (name, number), known in self._choosers.items() if name == job}

    def reported(self, shard: int, attended: TableAttendance) -> list[tuple[pb.Order, tuple[int, ...]]]:
        """What a shard's report leads to: orders, and the shards that each goes to."""
        opening, chooser = self._choosers.get((attended.job, attended.table), (-1, None))
        if chooser is None or opening != attended.opening or shard not in chooser.holders:
            return []
        sent = chooser.reported(shard, attended.report)
        place = TableOpening(attended.job, attended.table, opening)
        return [(choice_to_proto(place, choice), shards) for choice, shards in sent]
