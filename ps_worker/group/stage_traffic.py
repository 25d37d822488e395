"""The traffic of one table between the stages of a pipeline: each stage meets the shards with what it holds.

A partition is owned by the stage that holds most of it, which pushes and pulls it. Where stages are cut as
the table is, nothing travels between them. Two kinds of pieces do: those of a partition that belongs to two
stages, for the job's first worker has cut the table elsewhere, and parameters that two stages hold (tied
weights), whose gradients are added in rank order. Their gradients go to the owner before its push, and their
weights come back point to point.

All stages say the same things in the same order, and hear what all have said: so all decide the same. A step
is pushed by all stages, or by none. It must not know modules, nor frames. Used by the script's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ps_wire.errors import PsError, facts_to_json, from_wire
from ps_wire.process import trace
from ps_wire.spec.plan import Partition, Piece, Plan
from ps_worker.group.channel import Channel
from ps_worker.group.ending import Ending
from ps_worker.group.step_header import StepHeader

Present = Sequence[Sequence[bool]]
Holders = Sequence[Sequence[int]]  # by parameter of a table: the ranks that hold it, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReduced:
    """The part of one bucket that one stage pushes, in its flat gradients.

    Attributes:
        partitions: their numbers.
        weight: of the push.
        present: by partition, whether a piece has a gradient on the stages that hold it.
    """

    partitions: Sequence[int]
    weight: float
    present: Present


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loan:
    """A piece that another rank than its partition's owner holds.

    Attributes:
        rank: that holds it.
        owner: that pushes and pulls it.
        adds: another that brings the first weights holds it, too.
        place: of it among the pieces of its partition.
    """

    rank: int
    owner: int
    adds: bool
    partition: Partition
    piece: Piece
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """A table of a pipeline, as one stage knows it.

    Attributes:
        holders: of each parameter.
        trains: whether this stage has a parameter of it that can have a gradient.
    """

    holders: Holders
    trains: Callable[[], bool]


class StageTraffic:
    """The way of one table's gradients and weights in a pipeline, as one stage has it.

    Attributes:
        owned: the partitions that this rank pushes and pulls, ascending.
        brings: the same: each stage brings the first weights of what it owns.
        sums: flat gradients are never of all ranks.
    """

    sums = False

    def __init__(
        self,
        channel: Channel,
        ending: Ending,
        table: int,
        gradients: Sequence[torch.Tensor],
        plan: Plan,
        stage: StageTable,
    ) -> None:
        """Nothing is under way.

        Args:
            channel: to the other ranks.
            ending: whether the pipeline is to end after a step.
            table: its number, for people.
            gradients: flat, by bucket.
            plan: how the table is cut.
            stage: what this rank holds.
        """
        holders = stage.holders
        self._channel = channel
        self._ending = ending
        self._table = table
        self._gradients = gradients
        self._trains = stage.trains
        self._rank, self._size = channel.ranks.rank, channel.ranks.size
        self._header = StepHeader(channel, ending, table)
        self._partitions = [plan.partition(index) for index in range(plan.num_partitions)]
        self._pieces = pieces = [plan.pieces(partition) for partition in self._partitions]
        self._owners = [_owner_of(of, holders) for of in pieces]
        self.owned = [index for index, owner in enumerate(self._owners) if owner == self._rank]
        self.brings = self.owned
        self._of_bucket: list[list[Partition]] = [[] for _ in gradients]
        for partition in self._partitions:
            self._of_bucket[partition.bucket].append(partition)
        self._loans: list[list[_Loan]] = [[] for _ in gradients]  # of this rank as the one or the other
        self._reduced: set[int] = set()  # buckets of this step
        for partition, owner, of in zip(self._partitions, self._owners, pieces, strict=True):
            for loan in _loans(partition, owner, of, holders):
                if self._rank in (loan.rank, loan.owner):
                    self._loans[partition.bucket].append(loan)

    # -- gradients -------------------------------------------------------------------------------------

    @trace.traced("reduce")
    def push(
        self, bucket: int, *, step: int, weight: float, hyper: int, present: Present
    ) -> StageReduced | None:
        """The flat gradients of a bucket are there on this stage; waits for what it owns and others hold.

        Returns:
            What this rank owns of it; None: another stage that trains has no gradient, so none is pushed.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        self._begin(step, there=True, weight=weight, hyper=hyper)
        return self._reduce(bucket, present) if self._complete else None

    def abstain(self, step: int) -> list[StageReduced]:
        """This stage has nothing in this step, and nor has the pipeline, unless this stage never has.

        Raises:
            GroupBroken: as `push`; or a part of the step has left.
        """
        if self._header.step == step:
            if self._header.mine and self._complete and len(self._reduced) < len(self._gradients):
                raise self._channel.broken(
                    f"step {step} of stage {self._rank} was broken off, of which a part had left"
                )
            return []
        self._begin(step, there=not self._trains(), weight=0.0, hyper=None)
        if not self._complete:
            return []
        nothing = [[[False] * len(self._pieces[it.index]) for it in of] for of in self._of_bucket]
        return [_there(self._reduce(bucket, nothing[bucket])) for bucket in range(len(self._gradients))]

    def _begin(self, step: int, *, there: bool, weight: float, hyper: int | None) -> None:
        if self._header.begin(step, there=there, weight=weight, hyper=hyper):
            self._reduced.clear()

    @property
    def _complete(self) -> bool:
        """Whether every stage that trains has a gradient in this step."""
        return len(self._header.there) == self._size and self._header.weight > 0

    def _reduce(self, bucket: int, present: Present) -> StageReduced:
        """Gives what this rank owns of a bucket; `present` is this rank's."""
        self._reduced.add(bucket)
        parts = self._of_bucket[bucket]
        there = {it.index: list(of) for it, of in zip(parts, present, strict=True)}
        self._add(bucket, there)
        mine = [it for it in parts if self._owners[it.index] == self._rank]
        return StageReduced(
            partitions=[it.index for it in mine],
            weight=self._header.weight,
            present=[there[it.index] for it in mine],
        )

    def _add(self, bucket: int, there: dict[int, list[bool]]) -> None:
        """Takes in what other ranks hold of what this one owns, and gives what it holds of theirs.

        Args:
            bucket: its number.
            there: by partition, whether a piece has a gradient here; of what this rank owns, anywhere.
        """
        sends: list[tuple[int, torch.Tensor]] = []
        receives: list[tuple[int, torch.Tensor]] = []
        taken: list[tuple[_Loan, torch.Tensor, torch.Tensor]] = []
        for loan in self._loans[bucket]:
            mine = _slice(self._gradients, loan)
            if loan.owner == self._rank:
                known = torch.zeros(1, dtype=torch.uint8, device="cpu")
                received = torch.empty_like(mine)
                receives += [(loan.rank, known), (loan.rank, received)]
                taken.append((loan, known, received))
            else:
                flag = torch.tensor(
                    [there[loan.partition.index][loan.place]], dtype=torch.uint8, device="cpu"
                )
                sends += [(loan.owner, flag), (loan.owner, mine)]
        self._channel.swap(sends, receives)
        for loan, known, received in taken:
            if known.item():
                present = there[loan.partition.index]
                mine = _slice(self._gradients, loan)
                if present[loan.place]:
                    mine.add_(received)  # of two ranks, so in whichever order
                else:
                    mine.copy_(received)
                present[loan.place] = True

    # -- weights ---------------------------------------------------------------------------------------

    def bring(self, weights: Sequence[torch.Tensor]) -> None:
        """First weights of what this rank owns and others alone hold come here, in place.

        Args:
            weights: flat, by bucket.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        loans = [loan for of in self._loans for loan in of if not loan.adds]
        self._channel.swap(
            [(loan.owner, _slice(weights, loan)) for loan in loans if loan.rank == self._rank],
            [(loan.rank, _slice(weights, loan)) for loan in loans if loan.owner == self._rank],
        )

    def brought(self) -> None:
        """Waits until all stages have their first weights on the shards."""
        self._channel.share(f"first weights of table {self._table}")

    @trace.traced("spread weights")
    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
    ) -> list[int]:
        """The weights of a step are on all stages; see `RankTraffic`.

        Raises:
            PsError: some cannot come, on whichever stage; raised on all of them.
            GroupBroken: a rank does something else, or has gone.
        """
        mine: dict[str, Any] = {}
        try:
            versions = list(arrive())
            mine["versions"] = [versions[index] for index in self.owned]
            mine["mapped"] = sorted(mapped())
        except PsError as error:
            mine["error"] = [type(error).__name__, error.message, facts_to_json(error)]
        said = self._channel.share(f"weights of table {self._table} at clock {step}", mine)
        for one in said:
            failed = one.fields.get("error")
            if isinstance(failed, list) and len(failed) == 3:
                raise from_wire(*map(str, failed))
        sees = [frozenset(one.fields.get("mapped") or ()) for one in said]
        flat = weights()
        loans = [loan for of in self._loans for loan in of if loan.partition.shard not in sees[loan.rank]]
        self._channel.swap(
            [(loan.rank, _slice(flat, loan)) for loan in loans if loan.owner == self._rank],
            [(loan.owner, _slice(flat, loan)) for loan in loans if loan.rank == self._rank],
        )
        if self._ending.decided:
            self._ending.agree()
        told = [iter(one.fields.get("versions") or ()) for one in said]
        return [int(next(told[owner])) for owner in self._owners]


def _owner_of(pieces: Sequence[Piece], holders: Holders) -> int:
    """The rank that holds most of a partition first; of equals the lowest."""
    held: dict[int, int] = {}
    for piece in pieces:
        first = holders[piece.parameter][0]
        held[first] = held.get(first, 0) + piece.numel
    return min(held, key=lambda rank: (-held[rank], rank), default=0)


def _loans(partition: Partition, owner: int, pieces: Sequence[Piece], holders: Holders) -> Iterator[_Loan]:
    for place, piece in enumerate(pieces):
        of = holders[piece.parameter]
        for rank in of:
            if rank != owner:
                yield _Loan(
                    rank=rank,
                    owner=owner,
                    adds=owner in of or rank != of[0],
                    partition=partition,
                    piece=piece,
                    place=place,
                )


def _there(reduced: StageReduced) -> StageReduced:
    """Those of its partitions that have a gradient at all."""
    kept = [index for index, of in enumerate(reduced.present) if any(of)]
    return StageReduced(
        partitions=[reduced.partitions[index] for index in kept],
        weight=reduced.weight,
        present=[reduced.present[index] for index in kept],
    )


def _slice(flat: Sequence[torch.Tensor], loan: _Loan) -> torch.Tensor:
    start = loan.partition.offset + loan.piece.offset
    return flat[loan.partition.bucket][start : start + loan.piece.numel]
