"""The gradients of one table on their way to the ranks that own them, and the weights on their way back.

    gloo    point to point: an owner receives one rank after the other, and adds in rank order

The mean is `((g0 + g1) + ...) / G` over the ranks that have a gradient in this step, every sum and quotient
rounded once, as the servers take it; of 16 bits it is taken in float32, and rounded at the end. Rank 0 owns
all partitions. It must not know frames, nor shards.

Used by the script's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import or_

import torch

from ps_wire.process import trace
from ps_worker.group.channel import Channel, Said
from ps_worker.group.ending import Ending

NARROW = (torch.bfloat16, torch.float16)

Present = Sequence[Sequence[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The mean of one bucket, which lies in the owner's flat gradients.

    Attributes:
        bucket: its number.
        weight: of the push.
        present: by partition, whether a piece had a gradient on any rank.
    """

    bucket: int
    weight: float
    present: Present


class GradientReduce:
    """The way of one table's gradients and weights between ranks."""

    def __init__(
        self,
        channel: Channel,
        ending: Ending,
        table: int,
        gradients: Sequence[torch.Tensor],
        pieces: Sequence[Sequence[int]],
    ) -> None:
        """Nothing is under way.

        Args:
            channel: to the other ranks.
            ending: whether the group is to end after a step.
            table: its number, for people.
            gradients: flat, by bucket; the owner's are summed in place.
            pieces: of each partition of each bucket, how many parameters' pieces it has.
        """
        self._channel = channel
        self._ending = ending
        self._table = table
        self._gradients = gradients
        self._pieces = pieces
        self._step = -1
        self._there: list[int] = []  # on the leader: ranks that have a gradient in this step
        self._weight = 1.0
        self._reduced: set[int] = set()  # buckets of this step
        self._mine = False  # this rank has one
        self._scratch: dict[int, torch.Tensor] = {}

    @property
    def owns(self) -> bool:
        """Whether this rank pushes and pulls."""
        return self._channel.ranks.leads

    # -- gradients -------------------------------------------------------------------------------------

    @trace.traced("reduce")
    def push(self, bucket: int, *, step: int, weight: float, hyper: int, present: Present) -> Reduced | None:
        """The flat gradients of a bucket are there on this rank; waits for those of the others.

        Returns:
            On the owner the mean, in its flat gradients; None on the others, whose memory is free again.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        self._begin(step, there=True, weight=weight, hyper=hyper)
        if not self.owns:
            self._reduced.add(bucket)
            self._channel.announce(self._name(bucket), {"present": [list(map(int, it)) for it in present]})
            self._channel.send_tensor(self._gradients[bucket], 0)
            return None
        return self._sum(bucket, present)

    def abstain(self, step: int) -> list[Reduced]:
        """This rank has nothing in this step; on the owner, what the others have."""
        if self._step == step:
            if self._mine and len(self._reduced) < len(self._gradients):
                raise self._channel.broken(
                    f"step {step} of rank {self._channel.ranks.rank} was broken off, of which a part had left"
                )
            return []
        self._begin(step, there=False, weight=0.0, hyper=0)
        if not self.owns or not self._there:
            return []
        return [self._sum(bucket, None) for bucket in range(len(self._gradients))]

    def _begin(self, step: int, *, there: bool, weight: float, hyper: int) -> None:
        """Every rank says whether it has a gradient in this step, and whether it is asked to end."""
        if step == self._step:
            return
        mine = {"there": there, "weight": weight, "hyper": hyper, "ends": self._ending.asked()}
        heard = self._channel.gather(f"step {step} of table {self._table}", mine)
        self._step, self._mine = step, there
        self._reduced.clear()
        if self.owns:
            said = [mine, *(one.fields for one in heard)]
            self._there = [rank for rank, one in enumerate(said) if one.get("there")]
            if len({said[rank].get("hyper") for rank in self._there}) > 1:
                raise self._channel.broken(
                    f"param_groups differ between ranks at step {step} of table {self._table}; schedulers "
                    "must do the same on all ranks"
                )
            self._weight = next((float(said[rank]["weight"]) for rank in self._there), 0.0)
            self._ending.heard(any(one.get("ends") for one in said))

    def _sum(self, bucket: int, present: Present | None) -> Reduced:
        """The mean of a bucket, in place; `present` is this rank's, None: it has no gradient.

        In rank order: ranks that have no gradient are not heard of.
        """
        self._reduced.add(bucket)
        mean = self._gradients[bucket]
        narrow = mean.dtype in NARROW
        total = mean.float() if narrow else mean  # where rank 0 has none it is overwritten
        union = None if present is None else [list(map(bool, it)) for it in present]
        for rank in self._there:
            if rank == 0:
                continue
            theirs, part = self._hear_present(bucket, rank), self._buffer(bucket)
            self._channel.receive_tensor(part, rank)
            if union is None:
                union = theirs
                total.copy_(part)
            else:
                union = [list(map(or_, *both)) for both in zip(union, theirs, strict=True)]
                total.add_(part)
        if len(self._there) > 1:
            total.div_(len(self._there))
        if narrow:
            mean.copy_(total)
        assert union is not None
        return Reduced(bucket=bucket, weight=self._weight, present=union)

    def _hear_present(self, bucket: int, rank: int) -> list[list[bool]]:
        said = self._channel.hear_from(rank, self._name(bucket))
        found = said.fields.get("present")
        sizes = self._pieces[bucket]
        if not isinstance(found, list) or [len(it) for it in found if isinstance(it, list)] != list(sizes):
            raise self._channel.broken(f"rank {rank} has another table {self._table} than rank 0")
        return [list(map(bool, it)) for it in found]

    def _name(self, bucket: int) -> str:
        return f"step {self._step} of table {self._table}, bucket {bucket}"

    def _buffer(self, bucket: int) -> torch.Tensor:
        """Memory for another rank's part of a bucket; kept, for no step allocates."""
        like = self._gradients[bucket]
        kept = self._scratch.get(like.element_size())
        if kept is None or kept.numel() < like.numel():
            kept = self._scratch[like.element_size()] = torch.empty_like(like)
        return kept[: like.numel()].view(like.dtype)

    # -- weights ---------------------------------------------------------------------------------------

    @trace.traced("spread weights")
    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[], Sequence[torch.Tensor]],
    ) -> list[int]:
        """The weights of a step reach all ranks.

        Args:
            step: the clock at which they were asked for.
            arrive: on the owner, waits until they are here, and gives their versions by partition.
            weights: flat, by bucket, once they are here; written in place where this rank owns none.

        Returns:
            The versions.

        Raises:
            PsError: they cannot come; on all ranks.
            GroupBroken: a rank does something else, or has gone.
        """

        def ask(_: list[Said]) -> Said:
            return Said({"versions": list(arrive()), "ends": self._ending.decided})

        said = self._channel.relay(f"weights of table {self._table} at clock {step}", ask)
        for tensor in weights():
            if self.owns:
                for rank in range(1, self._channel.ranks.size):
                    self._channel.send_tensor(tensor, rank)
            else:
                self._channel.receive_tensor(tensor, 0)
        if said.fields.get("ends"):
            self._ending.agree()
        return list(map(int, said.fields["versions"]))


REDUCES: Mapping[str, type[GradientReduce]] = {"gloo": GradientReduce}
