"""The partition plan: how the parameters of a table become buckets, shard slices and partitions.

Legend: element offsets count elements of the bucket's dtype; a *granule* is 4096 bytes.

    bucket      parameters of one stage, param-group, dtype and device, in reverse registration order (the
                order in which backward finishes), each at a multiple of 16 elements and of 64 bytes
    slice       the part of a bucket that one shard holds: every bucket is cut evenly over all shards, at
                multiples of a granule, so that a worker can map several shards' memory side by side
    partition   a piece of a slice, at most `partition_bytes`: the unit of transfer, versioning and gating
    piece       the part of one parameter inside one partition: the unit the optimizer works on

Why 16 elements: torch's fused kernels treat the last elements of a slice differently, and a cut that is
not at a multiple of 16 elements from a parameter's start changes bits of the result.

Pure: shapes in, numbers out. Time and memory grow with the number of parameters, never with their sizes:
partitions are computed when asked for, so a plan of 10^12 elements is as cheap as one of 10^6.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from ps_wire.spec.dtypes import item_bytes
from ps_wire.spec.table import PAGE_BYTES, ParameterSpec, TableSpec

CUT_ELEMENTS = 16
PARAMETER_BYTES = 64

_offset_of = attrgetter("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A parameter's place in its bucket: elements `offset` to `offset + numel`."""

    parameter: int
    offset: int
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket.

    Attributes:
        index: in backward order.
        group: param-group of all its parameters.
        dtype: of all its parameters.
        item_bytes: of one element.
        numel: elements with all padding; a whole number of granules.
        placements: by offset.
        slice_numel: elements of every shard's slice but the last non-empty one, which may be shorter.
        partition_numel: elements of every partition but the last of a slice.
        first_partition: number of its first partition in the plan.
        num_partitions: over all shards.
    """

    index: int
    group: int
    dtype: str
    device: int
    item_bytes: int
    numel: int
    placements: tuple[Placement, ...]
    slice_numel: int
    partition_numel: int
    first_partition: int
    num_partitions: int

    @property
    def partitions_per_slice(self) -> int:
        """Partitions of a full slice."""
        return -(-self.slice_numel // self.partition_numel)

    def slice_bounds(self, shard: int) -> tuple[int, int]:
        """First element of a shard's slice, and the one behind its last; equal where it has none."""
        start = min(shard * self.slice_numel, self.numel)
        return start, min(start + self.slice_numel, self.numel)

    def count_of_shard(self, shard: int) -> int:
        """Partitions of a shard's slice."""
        start, end = self.slice_bounds(shard)
        return -(-(end - start) // self.partition_numel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition: elements `offset` to `offset + numel` of its bucket, held by `shard`."""

    index: int
    bucket: int
    shard: int
    offset: int
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one parameter in one partition.

    Attributes:
        parameter: its index in registration order.
        offset: its first element, counted from the partition's start.
        parameter_offset: the same element, counted from the parameter's start; a multiple of 16.
        numel: elements.
    """

    parameter: int
    offset: int
    parameter_offset: int
    numel: int


class Plan:
    """The plan of one table over a number of shards. Immutable; the same on every worker and shard."""

    def __init__(self, table: TableSpec, num_shards: int) -> None:
        assert num_shards >= 1, num_shards
        self.num_shards = num_shards
        self.parameters = table.parameters
        self.buckets = tuple(_buckets(table, num_shards))
        self._starts = [bucket.first_partition for bucket in self.buckets]
        last = self.buckets[-1]
        self.num_partitions = last.first_partition + last.num_partitions

    def partition(self, index: int) -> Partition:
        """The partition of that number.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= index < self.num_partitions:
            raise IndexError(f"partition {index}; the plan has {self.num_partitions}")
        bucket = self.buckets[bisect_right(self._starts, index) - 1]
        shard, index_in_slice = divmod(index - bucket.first_partition, bucket.partitions_per_slice)
        start, end = bucket.slice_bounds(shard)
        offset = start + index_in_slice * bucket.partition_numel
        numel = min(bucket.partition_numel, end - offset)
        return Partition(index=index, bucket=bucket.index, shard=shard, offset=offset, numel=numel)

    def partitions_of_shard(self, shard: int) -> Iterator[Partition]:
        """All partitions that a shard holds, in backward order."""
        for bucket in self.buckets:
            first = bucket.first_partition + shard * bucket.partitions_per_slice
            yield from map(self.partition, range(first, first + bucket.count_of_shard(shard)))

    def count_of_shard(self, shard: int) -> int:
        """How many partitions a shard holds."""
        return sum(bucket.count_of_shard(shard) for bucket in self.buckets)

    def slice_bytes(self, shard: int) -> int:
        """Bytes of all that a shard holds of the weights; also what one worker pushes to it."""
        total = 0
        for bucket in self.buckets:
            start, end = bucket.slice_bounds(shard)
            total += (end - start) * bucket.item_bytes
        return total

    def pieces(self, partition: Partition) -> tuple[Piece, ...]:
        """The parts of parameters in a partition, by offset; padding belongs to none."""
        start, end = partition.offset, partition.offset + partition.numel
        pieces = []
        for placement in self.placements(partition):
            low = max(placement.offset, start)
            high = min(placement.offset + placement.numel, end)
            pieces.append(
                Piece(
                    parameter=placement.parameter,
                    offset=low - start,
                    parameter_offset=low - placement.offset,
                    numel=high - low,
                )
            )
        return tuple(pieces)

    def placements(self, partition: Partition) -> tuple[Placement, ...]:
        """The parameters that have elements in a partition, by offset: one for each of its pieces."""
        placements = self.buckets[partition.bucket].placements
        first = bisect_right(placements, partition.offset, key=_offset_of) - 1
        end = bisect_left(placements, partition.offset + partition.numel, key=_offset_of)
        return tuple(
            [
                placement
                for placement in placements[max(first, 0) : end]
                if placement.numel and placement.offset + placement.numel > partition.offset
            ]
        )


def _buckets(table: TableSpec, num_shards: int) -> Iterator[Bucket]:
    first_partition = 0
    options = table.buckets
    for index, members in enumerate(_members(table)):
        first = table.parameters[members[0]]
        size = item_bytes(first.dtype, first.name)
        placements, numel = _place(table.parameters, members, size)
        granule = PAGE_BYTES // size
        granules = -(-numel // granule)
        slice_numel = -(-granules // num_shards) * granule
        numel = granules * granule
        most = options.partition_bytes // size
        pieces = -(-slice_numel // most)  # as few as can be, and of one size: threads share them evenly
        partition_numel = -(-slice_numel // (pieces * granule)) * granule
        full, rest = divmod(numel, slice_numel)
        count = full * -(-slice_numel // partition_numel) + -(-rest // partition_numel)
        yield Bucket(
            index=index,
            group=first.group,
            dtype=first.dtype,
            device=first.device,
            item_bytes=size,
            numel=numel,
            placements=placements,
            slice_numel=slice_numel,
            partition_numel=partition_numel,
            first_partition=first_partition,
            num_partitions=count,
        )
        first_partition += count


def _members(table: TableSpec) -> list[list[int]]:
    """Indices of the parameters of each bucket; buckets in the order in which backward fills them."""
    options = table.buckets
    full: list[list[int]] = []
    filling: dict[tuple[int, int, str, int], tuple[list[int], int]] = {}
    stages = table.stages or (0,) * len(table.parameters)
    for index in range(len(table.parameters) - 1, -1, -1):
        parameter = table.parameters[index]
        key = (stages[index], parameter.group, parameter.dtype, parameter.device)
        size = parameter.numel * item_bytes(parameter.dtype, parameter.name)
        members, used = filling.get(key, ([], 0))
        limit = options.bucket_bytes if full else options.first_bucket_bytes
        if members and used + size > limit:
            full.append(members)
            members, used = [], 0
        members.append(index)
        filling[key] = (members, used + size)
    full += [members for members, _ in filling.values()]
    # A bucket leaves when its last gradient, that of its earliest parameter, is there.
    return sorted(full, key=lambda members: -members[-1])


def _place(
    parameters: tuple[ParameterSpec, ...], members: list[int], size: int
) -> tuple[tuple[Placement, ...], int]:
    alignment = max(CUT_ELEMENTS, PARAMETER_BYTES // size)
    placements = []
    offset = 0
    for index in members:
        numel = parameters[index].numel
        placements.append(Placement(parameter=index, offset=offset, numel=numel))
        offset += -(-numel // alignment) * alignment
    return tuple(placements), max(offset, alignment)
