"""The owners of a table's partitions in a group: each partition has one rank, which pushes and pulls it.

Computed from sizes alone, the same on every rank. It must not know what a partition holds.
"""

from __future__ import annotations

from collections.abc import Sequence


def owners_of(sizes_bytes: Sequence[int], ranks: int) -> tuple[int, ...]:
    """The owner of each partition, balanced by bytes over the whole table.

    The largest come first, and each goes to the rank that has least by then, of equals to the lowest. So no
    rank has more than its equal part and one partition, and partitions of one size, as most are, go round the
    ranks in the order of the plan: each bucket is shared out, too.

    Args:
        sizes_bytes: of each partition, in the order of the plan.
        ranks: of the group.
    """
    owners = [0] * len(sizes_bytes)
    loads_bytes = [0] * ranks
    for index in sorted(range(len(sizes_bytes)), key=lambda it: -sizes_bytes[it]):
        owner = min(range(ranks), key=loads_bytes.__getitem__)
        owners[index] = owner
        loads_bytes[owner] += sizes_bytes[index]
    return tuple(owners)
