"""The gradients of one table on their way to the ranks that own them, and the weights on their way back.

    shm     on one host: an owner reads the gradients of all ranks where they lie, and adds in rank order; or
            the shard to which it pushes does, if that maps them
    gloo    all to all: each rank sends each owner its part of a bucket, and each owner adds in rank order
    nccl    each rank's gradients are on a GPU of its own: reduced there, see `devices/collectives.py`
    hosts   on several hosts: on each, for each partition, one rank adds what the host's ranks have, in rank
            order and where it lies, and sends the sum to the owner, which adds sums in the order of hosts

Weights go back point to point, to ranks that do not map them where the servers have them; with `hosts` once
to each host, and on from there; with `nccl` from device to device.

Each partition has one owner (`owners.py`), which pushes and pulls it. The mean is `((g0 + g1) + ...) / G`
over the ranks that have a gradient in this step, every sum and quotient rounded once, as the servers take it;
of 16 bits it is taken in float32, and rounded at the end. With `hosts` it is that of hosts' sums, of two
ranks each `((g0 + g1) + (g2 + g3)) / 4`: other bits; NCCL adds in an order of its own. It must not know
frames, nor more of a shard than its number.

All ranks say the same things in the same order, and hear what all have said: so all decide the same. A rank
says nothing of step v before it has the weights of version v. It says that a bucket is there, and goes on to
the next: what of it is its own leaves when all have said so, with a later bucket, or with the rest. `beside`
the script it waits for the others with each bucket. Used by one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import or_
from typing import Any

import torch

from ps_wire.frames.buffer import bytes_of
from ps_wire.process import trace
from ps_wire.process.rank_mean import NARROW, rank_mean
from ps_wire.spec.plan import Partition
from ps_worker.group.arrived_weights import ArrivedWeights, Versions, spread_of
from ps_worker.group.beside import Beside
from ps_worker.group.channel import Channel, Said, Saying
from ps_worker.group.devices.collectives import DeviceCalls, DeviceCollectives
from ps_worker.group.ending import Ending
from ps_worker.group.hosts import Hops, Hosts, acting
from ps_worker.group.lent_gradients import Lent
from ps_worker.group.owners import owners_of
from ps_worker.group.step_header import Rider, StepHeader
from ps_worker.memory.device_memory import DeviceMemory

Present = Sequence[Sequence[bool]]
Terms = tuple[memoryview, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The mean of those partitions of one bucket that this rank owns.

    Attributes:
        partitions: their numbers.
        weight: of the push.
        present: by partition, whether a piece had a gradient on any rank.
        terms: by partition, what each rank has, in rank order, of which nobody has taken the mean; none:
            it lies in this rank's flat gradients.
    """

    partitions: Sequence[int]
    weight: float
    present: Present
    terms: Sequence[Terms]


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The device of one rank's table.

    Attributes:
        calls: to the devices of the other ranks.
        memory: of the table there.
    """

    calls: DeviceCalls
    memory: DeviceMemory


@dataclass(frozen=True, slots=True)
class _Begun:
    bucket: int
    saying: Saying
    apart: bool


class GradientReduce:
    """The way of one table's gradients and weights between ranks.

    Attributes:
        owned: the partitions that this rank pushes and pulls, ascending.
        brings: the partitions whose first weights this rank brings, where the worker's start the table.
        sums: flat gradients are summed in place with those of other ranks.
        descriptors: by rank, of the memory in which terms lie; none: there are no terms.
        beside: makes calls of `push` while the script goes on; None: there is no overlap.
    """

    def __init__(
        self,
        channel: Channel,
        ending: Ending,
        table: int,
        gradients: Sequence[torch.Tensor],
        partitions: Sequence[Partition],
        pieces: Sequence[int],
        lent: Lent | None = None,
        owners: Sequence[int] | None = None,
        hosts: Hosts | None = None,
        rider: Rider | None = None,
        device: OnDevice | None = None,
        beside: Beside | None = None,
        scripts: Channel | None = None,
    ) -> None:
        """Nothing is under way.

        Args:
            channel: to the other ranks.
            ending: whether the group is to end after a step.
            table: its number, for people.
            gradients: flat, by bucket; those that this rank owns become the mean in place.
            partitions: of the table.
            pieces: how many parameters' pieces each of them has.
            lent: the flat gradients of the other ranks (with `hosts`, of those of this host), read where they
                lie; None: they are sent.
            owners: by partition, its owner rank; None: as `owners_of` shares them out.
            hosts: of the ranks, each of which sums by itself first; None: owners sum all.
            rider: what goes along with the header of each step; None: nothing does.
            device: on which ranks reduce, and gather weights; None: they do so on the host.
            beside: makes calls over this channel; closed by who gives it.
            scripts: the channel of the ranks' scripts, who say there that they have come to a step; None: it
                is the same, and nothing is beside.
        """
        self.beside = beside
        self._scripts = scripts
        self._arrived_at = -1  # the step to which this rank's script has come
        self.sums = device is None
        self._hosts = hosts
        self._lent = lent
        self._channel = channel
        self._ending = ending
        self._header = StepHeader(channel, ending, table, rider)
        self._table = table
        self._gradients = gradients
        self._partitions = partitions
        self._pieces = pieces
        self._rank, self._size = channel.ranks.rank, channel.ranks.size
        sizes_bytes = [it.numel * gradients[it.bucket].element_size() for it in partitions]
        self._owners = owners_of(sizes_bytes, self._size) if owners is None else owners
        self.owned = [index for index, owner in enumerate(self._owners) if owner == self._rank]
        self._collectives: DeviceCollectives | None = None
        if device is not None:
            self._collectives = DeviceCollectives(
                channel, device.calls, device.memory, gradients, partitions, self._owners
            )
        self.brings = list(range(len(partitions))) if channel.ranks.leads else []
        self._of_bucket: list[list[Partition]] = [[] for _ in gradients]
        for partition in partitions:
            self._of_bucket[partition.bucket].append(partition)
        self._arrived = {
            bucket: ArrivedWeights(self._owners, self._rank, [it.index for it in parts])
            for bucket, parts in enumerate(self._of_bucket)
        } | {None: ArrivedWeights(self._owners, self._rank)}
        self._wants_by_bucket = False
        self._begun: set[int] = set()  # buckets of this step that are there on this rank
        self._said: deque[_Begun] = deque()  # of them, what is not heard of all ranks
        self._scratch: dict[tuple[int, int], torch.Tensor] = {}
        self._terms: dict[int, Terms] = {}  # by partition; they lie where they lie
        self.descriptors = () if lent is None or hosts is not None else lent.descriptors

    # -- gradients -------------------------------------------------------------------------------------

    def arrive(self, step: int) -> None:
        """See `RankTraffic`."""
        if self._scripts is not None and step != self._arrived_at:
            self._arrived_at = step
            self._scripts.stand(f"step {step} of table {self._table}")

    @trace.traced("reduce")
    def push(
        self,
        bucket: int,
        *,
        step: int,
        weight: float,
        hyper: int,
        present: Present,
        apart: bool = False,
        waits: bool = False,
    ) -> list[Reduced]:
        """The flat gradients of a bucket are there on this rank. All ranks name the same ones in one order.

        Args:
            bucket: its number.
            step: the worker's clock.
            weight: of the push.
            hyper: a checksum of the hyper-parameters.
            present: by partition, whether a piece had a gradient on this rank.
            apart: who takes the push can read the `descriptors`: terms are as good as the mean.
            waits: until this bucket is there on all ranks.

        Returns:
            Of the buckets that are there on all ranks by now, and were not before: the mean of what this rank
            owns, or its terms, which stay as they are until the weights of the step are on all ranks.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        by_bucket = self._wants_by_bucket
        if self._header.begin(step, there=True, weight=weight, hyper=hyper, by_bucket=by_bucket):
            self._begun.clear()
        self._say(bucket, present, apart=apart)
        return self._heard(waits=waits)

    @trace.traced("reduce")
    def rest(self) -> list[Reduced]:
        """Gives what is left of a step whose buckets are there; waits for those of the others. See `push`."""
        return self._heard(waits=True)

    def abstain(self, step: int) -> list[Reduced]:
        """This rank has nothing in this step; what the others have of what it owns."""
        if self._header.begin(step, there=False, weight=0.0, hyper=0, by_bucket=self._wants_by_bucket):
            self._begun.clear()
            if self._header.there:
                for bucket in range(len(self._gradients)):
                    self._say(bucket, None, apart=False)
        elif self._header.mine and len(self._begun) < len(self._gradients):
            raise self._channel.broken(
                f"step {step} of rank {self._rank} was broken off, of which a part had left"
            )
        return self._heard(waits=True)

    def _say(self, bucket: int, present: Present | None, *, apart: bool) -> None:
        """A bucket is there; `present` is this rank's, None: it has no gradient."""
        mine = None if present is None else [list(map(int, it)) for it in present]
        name = f"step {self._header.step} of table {self._table}, bucket {bucket}"
        self._begun.add(bucket)
        self._said.append(_Begun(bucket, self._channel.say(name, {"present": mine}, late=False), apart))

    def _heard(self, *, waits: bool) -> list[Reduced]:
        """Gives what all ranks have said by now, or waits until they have said what this one has."""
        found = []
        while self._said and (waits or self._channel.all_have_said()):
            begun = self._said.popleft()
            said = self._channel.hear_all(begun.saying)
            found.append(self._reduce(begun.bucket, said, apart=begun.apart))
        return found

    def _reduce(self, bucket: int, said: Sequence[Said], *, apart: bool) -> Reduced:
        """The mean of what this rank owns of a bucket, which all ranks have said to be there."""
        union = self._union(bucket, said)
        parts = self._of_bucket[bucket]
        own = [it for it in parts if self._owners[it.index] == self._rank]
        terms: Sequence[Terms] = [()] * len(own)
        if self._collectives is not None:
            self._collectives.reduce(bucket, mine=self._header.mine, count=len(self._header.there))
        elif self._hosts is not None:
            self._sum_by_hosts(self._hosts, parts, own)
        elif apart and self._can_stay_apart(bucket):
            terms = [self._terms_of(it) for it in own]
        else:
            self._sum_all(parts, own)
        return Reduced(
            partitions=[it.index for it in own],
            weight=self._header.weight,
            present=[there for it, there in zip(parts, union, strict=True) if it in own],
            terms=terms,
        )

    def _can_stay_apart(self, bucket: int) -> bool:
        """Whether the mean of what all ranks have is the plain one of float32."""
        everyone = len(self._header.there) == self._size
        return everyone and bool(self.descriptors) and self._gradients[bucket].dtype is torch.float32

    def _terms_of(self, partition: Partition) -> Terms:
        terms = self._terms.get(partition.index)
        if terms is None:
            assert self._lent is not None
            flats = [flat or self._gradients for flat in self._lent.tensors]
            terms = tuple(bytes_of(_part(flat, partition)) for flat in flats)
            self._terms[partition.index] = terms
        return terms

    def _sum_all(self, parts: Sequence[Partition], own: Sequence[Partition]) -> None:
        """Each owner has, or reads, what all ranks have of its partitions."""
        others = [rank for rank in self._header.there if rank != self._rank]
        lent = self._lent
        if lent is not None:
            received = {(rank, it.index): _part(lent.tensors[rank], it) for rank in others for it in own}
        else:
            received = {(rank, it.index): self._buffer(rank, it) for rank in others for it in own}
            sends = [
                (self._owners[it.index], self._gradient(it))
                for it in (parts if self._header.mine else ())
                if self._owners[it.index] != self._rank
            ]
            self._channel.swap(sends, [(rank, buffer) for (rank, _), buffer in received.items()])
        for it in own:
            self._mean(it, [received.get((rank, it.index)) for rank in self._header.there])

    def _sum_by_hosts(self, hosts: Hosts, parts: Sequence[Partition], own: Sequence[Partition]) -> None:
        """Each host sums what its ranks have, and owners add what hosts send."""
        there = [[rank for rank in ranks if rank in self._header.there] for ranks in hosts.ranks]
        mine, near = hosts.of(self._rank), hosts.near(self._rank)
        sends = [
            (self._owners[it.index], self._host_sum(it, there[mine]))
            for it in (parts if there[mine] else ())
            if self._owners[it.index] not in near and acting(near, it.index) == self._rank
        ]
        received = {
            (host, it.index): self._buffer(acting(ranks, it.index), it, wide=True)
            for it in own
            for host, ranks in enumerate(hosts.ranks)
            if there[host] and host != mine
        }
        sources = [(acting(hosts.ranks[host], index), it) for (host, index), it in received.items()]
        self._channel.swap(sends, sources)
        for it in own:
            sums = [
                self._host_sum(it, there[host]) if host == mine else received[host, it.index]
                for host in range(len(hosts.ranks))
                if there[host]
            ]
            for part in sums[1:]:
                sums[0].add_(part)
            self._gradient(it).copy_(sums[0].div_(len(self._header.there)))

    def _host_sum(self, partition: Partition, ranks: Sequence[int]) -> torch.Tensor:
        """Adds what ranks of this host have of a partition, in rank order; 16 bits in float32."""
        assert self._lent is not None
        total = self._buffer(self._rank, partition, wide=True)
        for place, rank in enumerate(ranks):
            part = _part(self._gradients if rank == self._rank else self._lent.tensors[rank], partition)
            total.add_(part) if place else total.copy_(part)
        return total

    def _mean(self, partition: Partition, parts: Sequence[torch.Tensor | None]) -> None:
        """Takes the mean in rank order into the flat gradients; None stands for these, others are read."""
        mine = self._gradient(partition)
        rank_mean([mine if part is None else part for part in parts], mine)

    def _union(self, bucket: int, said: Sequence[Said]) -> list[list[bool]]:
        """By partition of a bucket, which pieces have a gradient on any rank."""
        union: list[list[bool]] | None = None
        for rank in self._header.there:
            theirs = self._checked(bucket, rank, said[rank].fields.get("present"))
            union = theirs if union is None else [[*map(or_, *it)] for it in zip(union, theirs, strict=True)]
        assert union is not None
        return union

    def _checked(self, bucket: int, rank: int, found: Any) -> list[list[bool]]:
        sizes = [self._pieces[it.index] for it in self._of_bucket[bucket]]
        if not isinstance(found, list) or [len(it) for it in found if isinstance(it, list)] != sizes:
            raise self._channel.broken(f"rank {rank} has another table {self._table} than rank {self._rank}")
        return [list(map(bool, it)) for it in found]

    def _gradient(self, partition: Partition) -> torch.Tensor:
        return _part(self._gradients, partition)

    def _buffer(self, rank: int, partition: Partition, *, wide: bool = False) -> torch.Tensor:
        """Memory for a rank's part of a bucket; kept, for no step allocates. `wide`: float32 for 16 bits."""
        like = self._gradient(partition)
        dtype = torch.float32 if wide and like.dtype in NARROW else like.dtype
        nbytes = like.numel() * dtype.itemsize
        key = rank, partition.index - self._of_bucket[partition.bucket][0].index
        kept = self._scratch.get(key)
        if kept is None or kept.nbytes < nbytes:
            kept = self._scratch[key] = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return kept[:nbytes].view(dtype)

    # -- weights ---------------------------------------------------------------------------------------

    def bring(self, weights: Sequence[torch.Tensor]) -> None:
        """See `RankTraffic`: the leader has all first weights."""

    def brought(self) -> None:
        """See `RankTraffic`."""

    def want_by_bucket(self, wanted: bool) -> None:
        """See `RankTraffic`."""
        self._wants_by_bucket = wanted

    @property
    def by_bucket(self) -> bool:
        """See `RankTraffic`; all ranks have heard the same of the step."""
        return self._header.by_bucket and not self._header.ends

    @trace.traced("spread weights")
    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[int], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
        bucket: int | None = None,
    ) -> Versions:
        """The weights of a step reach all ranks.

        Args:
            step: the clock at which they were asked for.
            arrive: waits until those that this rank owns are here, and gives versions by partition.
            weights: flat, by bucket, of that version, once they are here; written in place where another
                rank owns them.
            mapped: once they are here, the shards whose weights this rank sees where the shard has them.
            bucket: whose weights alone are meant, of `by_bucket`; called beside the script. None: all.

        Raises:
            PsError: some cannot come, on whichever rank; raised on all of them.
            GroupBroken: a rank does something else, or has gone.
        """
        channel, name = self._scripts or self._channel, f"weights of table {self._table} at clock {step}"
        partitions = self._partitions
        if bucket is not None:
            channel, name, partitions = self._channel, f"{name}, bucket {bucket}", self._of_bucket[bucket]
        arrived = self._arrived[bucket]
        said = channel.share(name, arrived.wait(arrive, mapped))
        versions = arrived.versions(said)
        flat = weights(max(versions, default=0))
        if self._collectives is not None:
            self._collectives.gather(flat)
        else:
            self._send(flat, arrived.mapped(said), partitions)
        if self._header.ends and bucket is None:
            self._ending.agree()
        return Versions(newest=versions, clock=step, spread=spread_of(versions))

    def _send(
        self,
        flat: Sequence[torch.Tensor],
        sees: Sequence[Collection[int]],
        partitions: Sequence[Partition],
    ) -> None:
        """Each owner's weights to ranks that do not see them."""
        ways: list[list[tuple[int, int, torch.Tensor]]] = [[], []]  # source, target: first, and then
        for partition in partitions:
            owner, part = self._owners[partition.index], _part(flat, partition)
            wanting = [rank for rank in range(self._size) if partition.shard not in sees[rank]]
            for way, hops in zip(ways, self._hops(owner, wanting, partition.index), strict=True):
                way += [(source, target, part) for source, target in hops]
        for way in ways:
            self._channel.swap(
                [(target, part) for source, target, part in way if source == self._rank],
                [(source, part) for source, target, part in way if target == self._rank],
            )

    def _hops(self, owner: int, wanting: Sequence[int], turn: int) -> Sequence[Hops]:
        """See `Hosts.hops`; without hosts all of it is sent at once."""
        if self._hosts is None:
            return [(owner, rank) for rank in wanting if rank != owner], ()
        return self._hosts.hops(owner, wanting, turn)


def _part(flat: Sequence[torch.Tensor], partition: Partition) -> torch.Tensor:
    return flat[partition.bucket][partition.offset : partition.offset + partition.numel]
