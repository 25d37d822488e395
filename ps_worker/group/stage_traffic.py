"""The traffic of one table between the stages of a pipeline: each stage meets the shards with what it holds.

A partition is owned by the stage that holds most of it, which pushes and pulls it. Where stages are cut as
the table is, nothing travels between them. Two kinds of pieces do: those of a partition that belongs to two
stages, for the job's first worker has cut the table elsewhere, and parameters that two stages hold (tied
weights), whose gradients are added in rank order. Their gradients go to the owner before its push, and their
weights come back point to point.

A stage pushes and pulls as soon as its own schedule is over, and goes on as soon as its own weights are here:
it waits for another stage for pieces of both alone. What it says of its weights, the others hear when they
wait for those of the next step; by then all stages have been through the schedule that lies between. All say
the same things in the same order, and hear what all have said: so all decide the same. A rider goes along
with these words: what it says when a step is over is heard before the one after the next begins.

It must not know modules, nor frames. Used by the script's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from ps_wire.process import trace
from ps_wire.spec.consistency import Consistency
from ps_wire.spec.plan import Partition, Piece, Plan
from ps_worker.group.arrived_weights import ArrivedWeights, Versions, spread_of
from ps_worker.group.channel import Channel, Said, Saying
from ps_worker.group.ending import Ending
from ps_worker.group.step_header import Rider, check_hyper

NO_GRADIENT = -1.0  # of a piece: in place of the weight of its push

Present = Sequence[Sequence[bool]]
Holders = Sequence[Sequence[int]]  # by parameter of a table: the ranks that hold it, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReduced:
    """The part of one bucket that one stage pushes, in its flat gradients.

    Attributes:
        partitions: their numbers.
        weight: of the push.
        present: by partition, whether a piece has a gradient on the stages that hold it.
        terms: none: it lies in its flat gradients.
    """

    partitions: Sequence[int]
    weight: float
    present: Present
    terms: Sequence[tuple[memoryview, ...]] = ()


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
    """

    holders: Holders

    def buckets_of(self, rank: int, plan: Plan) -> frozenset[int]:
        """The buckets in which a rank holds parameters: of the others it writes and reads nothing."""
        return frozenset(
            bucket.index
            for bucket in plan.buckets
            if any(rank in self.holders[it.parameter] for it in bucket.placements)
        )


class StageTraffic:
    """The way of one table's gradients and weights in a pipeline, as one stage has it.

    Attributes:
        owned: the partitions that this rank pushes and pulls, ascending.
        brings: the same: each stage brings the first weights of what it owns.
        sums: flat gradients are never of all ranks.
        descriptors: none: what a stage pushes lies in its flat gradients.
        beside: none: buckets leave in `step()`.
        by_bucket: never.
    """

    by_bucket = False
    sums = False
    beside = None
    descriptors: Sequence[int] = ()

    def __init__(
        self,
        channel: Channel,
        ending: Ending,
        table: int,
        gradients: Sequence[torch.Tensor],
        plan: Plan,
        stage: StageTable,
        consistency: Consistency,
        rider: Rider | None = None,
    ) -> None:
        """Nothing is under way.

        Args:
            channel: to the other ranks.
            ending: whether the pipeline is to end after a step.
            table: its number, for people.
            gradients: flat, by bucket.
            plan: how the table is cut.
            stage: what this rank holds.
            consistency: between pipelines.
            rider: what goes along with what stages say of their weights; None: nothing does.
        """
        self._rider = rider
        holders = stage.holders
        self._channel = channel
        self._ending = ending
        self._table = table
        self._gradients = gradients
        self._one_version = consistency.lockstep
        self._rank = channel.ranks.rank
        self._partitions = [plan.partition(index) for index in range(plan.num_partitions)]
        self._pieces = pieces = [plan.pieces(partition) for partition in self._partitions]
        self._owners = [_owner_of(of, holders) for of in pieces]
        self.owned = [index for index, owner in enumerate(self._owners) if owner == self._rank]
        self.brings = self.owned
        self._of_bucket: list[list[Partition]] = [[] for _ in gradients]
        for partition in self._partitions:
            self._of_bucket[partition.bucket].append(partition)
        every = [
            loan
            for partition, owner, of in zip(self._partitions, self._owners, pieces, strict=True)
            for loan in _loans(partition, owner, of, holders)
        ]
        self._at_once = bool(every)  # all hear of each other before they go on
        self._loans: list[list[_Loan]] = [[] for _ in gradients]  # of this rank as the one or the other
        for loan in every:
            if self._rank in (loan.rank, loan.owner):
                self._loans[loan.partition.bucket].append(loan)
        self._step = -1  # whose gradients left last
        self._hyper: int | None = None  # that its pushes took
        self._left: set[int] = set()  # buckets of it
        self._arrived_at = -1  # step in which its script has said so
        self._arrived = ArrivedWeights(self._owners, self._rank)
        self._versions = [0] * len(self._owners)
        self._clock = self._spread = 0  # of the newest weights of which all versions are known
        self._said: tuple[int, Saying] | None = None  # of which clock, and not heard of others yet
        self._ends = False  # a stage was told to end, as all have heard

    # -- gradients -------------------------------------------------------------------------------------

    def arrive(self, step: int) -> None:
        """See `RankTraffic`: who is in its schedule meanwhile, and waits for this stage there, finds it."""
        if step != self._arrived_at:
            self._arrived_at = step
            self._channel.stand(f"step {step} of table {self._table}")

    @trace.traced("reduce")
    def push(
        self,
        bucket: int,
        *,
        step: int,
        weight: float,
        hyper: int,
        present: Present,
        apart: bool = False,  # noqa: ARG002 - it has no terms
        waits: bool = False,  # noqa: ARG002 - it always does
    ) -> list[StageReduced]:
        """The flat gradients of a bucket are there on this stage; waits for what it owns and others hold.

        Returns:
            What this rank owns of it.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        self._begin(step)
        self._hyper = hyper
        return [self._reduce(bucket, present, weight)]

    def rest(self) -> list[StageReduced]:
        """See `RankTraffic`: nothing was kept back."""
        return []

    def abstain(self, step: int) -> list[StageReduced]:
        """This stage has nothing more in this step; what others have of what it owns. May be called again.

        Raises:
            GroupBroken: as `push`.
        """
        self._begin(step)
        nothing = [[[False] * len(self._pieces[it.index]) for it in of] for of in self._of_bucket]
        rest = [bucket for bucket in range(len(self._gradients)) if bucket not in self._left]
        return [_there(self._reduce(bucket, nothing[bucket], NO_GRADIENT)) for bucket in rest]

    def _begin(self, step: int) -> None:
        if step != self._step:
            self._step, self._hyper = step, None
            self._left.clear()

    def _reduce(self, bucket: int, present: Present, weight: float) -> StageReduced:
        """Gives what this rank owns of a bucket; `present` and `weight` are this rank's."""
        self._left.add(bucket)
        parts = self._of_bucket[bucket]
        there = {it.index: list(of) for it, of in zip(parts, present, strict=True)}
        weight = max([weight, *self._add(bucket, there, weight)])
        mine = [it for it in parts if self._owners[it.index] == self._rank]
        return StageReduced(
            partitions=[it.index for it in mine],
            weight=weight,
            present=[there[it.index] for it in mine],
        )

    def _add(self, bucket: int, there: dict[int, list[bool]], weight: float) -> list[float]:
        """Takes in what other ranks hold of what this one owns, and gives what it holds of theirs.

        Args:
            bucket: its number.
            there: by partition, whether a piece has a gradient here; of what this rank owns, anywhere.
            weight: of this rank's pushes.

        Returns:
            The weights of other ranks' pushes.
        """
        sends: list[tuple[int, torch.Tensor]] = []
        receives: list[tuple[int, torch.Tensor]] = []
        taken: list[tuple[_Loan, torch.Tensor, torch.Tensor]] = []
        for loan in self._loans[bucket]:
            mine = _slice(self._gradients, loan)
            if loan.owner == self._rank:
                known = torch.zeros(1, dtype=torch.float64, device="cpu")
                received = torch.empty_like(mine)
                receives += [(loan.rank, known), (loan.rank, received)]
                taken.append((loan, known, received))
            else:
                said = weight if there[loan.partition.index][loan.place] else NO_GRADIENT
                sends += [
                    (loan.owner, torch.tensor([said], dtype=torch.float64, device="cpu")),
                    (loan.owner, mine),
                ]
        self._channel.swap(sends, receives)
        weights = []
        for loan, known, received in taken:
            weights.append(known.item())
            if weights[-1] != NO_GRADIENT:
                present = there[loan.partition.index]
                mine = _slice(self._gradients, loan)
                if present[loan.place]:
                    mine.add_(received)  # of two ranks, so in whichever order
                else:
                    mine.copy_(received)
                present[loan.place] = True
        return weights

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

    def want_by_bucket(self, wanted: bool) -> None:
        """See `RankTraffic`: what this rank wants makes no difference."""

    @trace.traced("spread weights")
    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[int], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
        bucket: int | None = None,  # noqa: ARG002 - all of them at once
    ) -> Versions:
        """The weights of a step are here, and those of pieces that this rank holds and another owns.

        Raises:
            PsError: some cannot come; on all stages, or where stages go on by themselves, on one of them, and
                the group ends.
            GroupBroken: a rank does something else, or has gone.
        """
        said, self._said = self._said, None
        if said is not None:
            self._heard(said[0], self._channel.hear_all(said[1]))
        mine = self._arrived.wait(arrive, mapped)
        mine |= {"hyper": self._hyper, "ends": self._ending.asked()}
        if self._rider is not None:
            mine |= self._rider.say(self._table, step - 1)
        what = f"weights of table {self._table} at clock {step}"
        if step and not self._at_once:
            if self._arrived.error is not None:
                self._channel.broken(f"stage {self._rank}: {self._arrived.error.message}")
                raise self._arrived.error
            self._said = step, self._channel.say(what, mine)
        else:  # late, too: of one stage in its schedule, of another before that
            every = self._channel.hear_all(self._channel.say(what, mine))
            self._heard(step, every)
            self._bring_back(weights(max(self._versions, default=0)), self._arrived.mapped(every))
        if self._ends:
            self._ending.agree()
        for index, version in zip(self.owned, mine["versions"], strict=True):
            self._versions[index] = version
        return Versions(newest=self._versions, clock=self._clock, spread=self._spread)

    def _heard(self, clock: int, said: Sequence[Said]) -> None:
        """All stages have said this of their weights at a clock."""
        self._versions, self._clock = self._arrived.versions(said), clock
        hypers = [one.fields.get("hyper") for one in said]
        check_hyper(self._channel, hypers, f"step {self._step} of table {self._table}")
        self._ends = any(one.fields.get("ends") for one in said)
        self._spread = spread_of(self._versions)
        if self._spread and self._one_version:
            raise self._channel.broken(
                f"table {self._table}: stages have weights of versions {min(self._versions)} to "
                f"{max(self._versions)}, and under bsp all are of one"
            )
        if self._rider is not None:
            self._rider.hear([one.fields for one in said], self._channel)

    def _bring_back(self, flat: Sequence[torch.Tensor], sees: Sequence[Collection[int]]) -> None:
        """The weights of pieces that one rank holds and another owns."""
        loans = [loan for of in self._loans for loan in of if loan.partition.shard not in sees[loan.rank]]
        self._channel.swap(
            [(loan.rank, _slice(flat, loan)) for loan in loans if loan.owner == self._rank],
            [(loan.owner, _slice(flat, loan)) for loan in loans if loan.rank == self._rank],
        )


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
