"""Weights of one table that have been asked for and are not here, by partition.

Not thread-safe: `InFlight` guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ps_wire.frames import frame as wire
from ps_wire.frames.lists import partitions


class Pulls:
    """Partitions that are missing of the pull that was asked last.

    Attributes:
        step: the clock that was asked at last.
        flags: of that PULL.
        nothing: no weights were asked for, only whether the gate is open.
    """

    def __init__(self) -> None:
        self.step = 0
        self.flags = 0
        self.nothing = False
        self._missing: OrderedDict[int, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether something is missing."""
        return bool(self._missing)

    def ask(self, partitions: Sequence[int], step: int, flags: int = 0, *, nothing: bool = False) -> None:
        """These, in the order of the plan, are asked for: first layers first."""
        self._missing = OrderedDict.fromkeys(reversed(partitions))
        self.step, self.flags, self.nothing = step, flags, nothing

    def forget(self) -> None:
        """Nothing is waited for any more."""
        self._missing.clear()

    def expected(self, answer: wire.Frame) -> list[int]:
        """The partitions of this PULLED that are waited for."""
        if answer.step != self.step:
            return []
        return [partition for partition in partitions(answer) if partition in self._missing]

    def came(self, partition: int) -> None:
        """The weights of a partition are here."""
        self._missing.pop(partition, None)

    def here(self, wanted: AbstractSet[int]) -> bool:
        """Whether nothing is missing of these partitions."""
        return not self._missing or self._missing.keys().isdisjoint(wanted)

    def of_shard(self, shard_of: Sequence[int], shard: int) -> list[int]:
        """The partitions that are missing of a shard, in the order in which they are wanted."""
        return [index for index in self._missing if shard_of[index] == shard]

    def shards(self, shard_of: Sequence[int]) -> list[int]:
        """Of which something is missing."""
        return sorted({shard_of[index] for index in self._missing})
