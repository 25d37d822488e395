"""The collectives of one table between the devices of a group's ranks: gradients to owners, weights to all.

    gradients   of each bucket, partitions of one size, of each rank one, go in a reduce-scatter; any other is
                reduced to its owner. What a rank owns, and nothing else, goes to the host, and is pushed
    weights     what an owner has pulled goes to its device, from where all ranks gather it

Calls are those of torch's process groups; they wait on a device, or in C++, for ranks that may be dead. So
they run where `Channel.run` has them run, in one order on all ranks, and the host waits for the end of each.
They add as their backend does: NCCL in an order of its own.

It must not know what reads the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from ps_wire.spec.plan import Partition
from ps_wire.text import one_line
from ps_worker.group.channel import Channel
from ps_worker.memory.device_memory import DeviceMemory
from ps_worker.memory.staging import Ticket

Round = Sequence[Partition]  # of each rank one, by rank; or a single one


class DeviceCalls(Protocol):
    """The calls of one of torch's process groups that are used; each begins at once, and its result waits."""

    def reduce_scatter(self, output_tensors: torch.Tensor, input_tensor: list[torch.Tensor]) -> Any:
        """Adds what all ranks have for this one."""

    def reduce(self, tensor: torch.Tensor, root: int) -> Any:
        """Adds, in place on the root."""

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Any:
        """Gathers from each rank its tensor, all of one size."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Copies the root's, in place on all others."""

    def abort(self) -> None:
        """Ends calls that wait."""


class DeviceCollectives:
    """The collectives of one table, as one rank takes part in them. Used by the thread that pushes."""

    def __init__(
        self,
        channel: Channel,
        calls: DeviceCalls,
        memory: DeviceMemory,
        gradients: Sequence[torch.Tensor],
        partitions: Sequence[Partition],
        owners: Sequence[int],
    ) -> None:
        """Nothing is under way.

        Args:
            channel: to the other ranks, which all make the same calls.
            calls: between their devices.
            memory: of the table, on this rank's.
            gradients: flat, by bucket, on the host; those that this rank owns become the mean.
            partitions: of the table.
            owners: by partition, its owner rank.
        """
        self._channel = channel
        self._calls = calls
        self._memory = memory
        self._gradients = gradients
        self._owners = owners
        self._rank = channel.ranks.rank
        of_bucket: list[list[Partition]] = [[] for _ in gradients]
        for it in partitions:
            of_bucket[it.bucket].append(it)
        self._rounds = [rounds(of, owners, channel.ranks.size) for of in of_bucket]
        flats = memory.gradients.tensors
        self._whole = _Scratch(flats)  # of a bucket
        self._part = _Scratch([_part(flats, it) for it in partitions])

    def reduce(self, bucket: int, *, mine: bool, count: int) -> None:
        """Takes the mean of a bucket, as far as this rank owns it, into the host's gradients.

        Args:
            bucket: its number.
            mine: this rank has a gradient; else it adds zeros.
            count: of ranks that have one.

        Raises:
            GroupBroken: a rank has gone, or the group has ended.
        """
        mark = self._memory.lane.mark()
        self._run(partial(self._reduce, bucket, mark, mine=mine, count=count))

    def gather(self, weights: Sequence[torch.Tensor]) -> None:
        """The weights of all ranks' partitions come to all devices.

        Args:
            weights: flat, by bucket, on the host; of them those are read that this rank owns.

        Raises:
            GroupBroken: a rank has gone, or the group has ended.
        """
        self._run(partial(self._gather, weights, self._memory.lane.mark()))

    # -- inside ----------------------------------------------------------------------------------------

    def _run(self, call: Callable[[], None]) -> None:
        def made() -> None:
            try:
                call()
            except RuntimeError as error:
                raise self._channel.broken(
                    f"a collective of rank {self._rank} has failed: {one_line(str(error))}"
                ) from None

        self._channel.run(made)

    def _reduce(self, bucket: int, mark: Ticket, *, mine: bool, count: int) -> None:
        with self._memory.lane.after(mark):
            flat = self._memory.gradients.tensors[bucket]
            terms = self._whole.like(flat)
            if mine:
                terms.copy_(flat)
            else:
                terms.zero_()
            for of in self._rounds[bucket]:
                total = self._total(of, [_slice(terms, it) for it in of])
                own = self._own(of)
                if own is not None:
                    _part(self._gradients, own).copy_(total.div_(count), non_blocking=True)

    def _total(self, of: Round, terms: list[torch.Tensor]) -> torch.Tensor:
        """The sum of a round's partition that this rank owns; if it owns none, nothing of meaning."""
        if len(of) == 1:
            self._calls.reduce(terms[0], self._owners[of[0].index]).wait()
            return terms[0]
        total = self._part.like(terms[self._rank])
        self._calls.reduce_scatter(total, terms).wait()
        return total

    def _gather(self, weights: Sequence[torch.Tensor], mark: Ticket) -> None:
        with self._memory.lane.after(mark):
            for bucket, every in enumerate(self._rounds):
                for of in every:
                    self._spread(of, weights[bucket], self._memory.weights.tensors[bucket])

    def _spread(self, of: Round, weights: torch.Tensor, shown: torch.Tensor) -> None:
        own = self._own(of)
        if len(of) == 1:
            if own is not None:
                _slice(shown, own).copy_(_slice(weights, own), non_blocking=True)
            self._calls.broadcast(_bytes(_slice(shown, of[0])), self._owners[of[0].index]).wait()
            return
        assert own is not None
        mine = self._part.like(_slice(shown, own))
        mine.copy_(_slice(weights, own), non_blocking=True)
        self._calls.allgather([_bytes(_slice(shown, it)) for it in of], _bytes(mine)).wait()

    def _own(self, of: Round) -> Partition | None:
        return next((it for it in of if self._owners[it.index] == self._rank), None)


def rounds(partitions: Sequence[Partition], owners: Sequence[int], ranks: int) -> list[Round]:
    """Cuts the partitions of a bucket into rounds, the same on all ranks.

    Args:
        partitions: of one bucket.
        owners: by partition of the table, its owner rank.
        ranks: of the group.

    Returns:
        Of each rank one, by rank and all of one size; then, each by itself, those that are left.
    """
    made: list[Round] = []
    alone: list[Round] = []
    for numel in dict.fromkeys(it.numel for it in partitions):
        of_rank: list[list[Partition]] = [[] for _ in range(ranks)]
        for it in partitions:
            if it.numel == numel:
                of_rank[owners[it.index]].append(it)
        whole = min(map(len, of_rank)) if ranks > 1 else 0
        made += list(zip(*(of[:whole] for of in of_rank), strict=True))
        alone += [(it,) for of in of_rank for it in of[whole:]]
    return made + alone


class _Scratch:
    """Memory of a device for one tensor at a time, as large as the largest; kept, for no step allocates."""

    def __init__(self, largest: Sequence[torch.Tensor]) -> None:
        nbytes = max((it.nbytes for it in largest), default=0)
        device = largest[0].device if largest else torch.device("cpu")
        self._memory = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for as many elements of the same dtype."""
        return self._memory[: tensor.nbytes].view(tensor.dtype)


def _slice(flat: torch.Tensor, partition: Partition) -> torch.Tensor:
    return flat[partition.offset : partition.offset + partition.numel]


def _part(flat: Sequence[torch.Tensor], partition: Partition) -> torch.Tensor:
    return _slice(flat[partition.bucket], partition)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)
