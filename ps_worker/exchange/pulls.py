"""What one table waits for: the partitions whose weights have been asked for and are not here.

Not thread-safe: the exchange guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ps_wire.frames import frame as wire
from ps_wire.spec.plan import Partition


class Pulls:
    """See the module's docstring.

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

    def ask(self, num_partitions: int, step: int, flags: int = 0, *, nothing: bool = False) -> None:
        """All are asked for, first layers first."""
        self._missing = OrderedDict.fromkeys(range(num_partitions - 1, -1, -1))
        self.step, self.flags, self.nothing = step, flags, nothing

    def forget(self) -> None:
        """Nothing is waited for any more."""
        self._missing.clear()

    def expects(self, answer: wire.Frame) -> bool:
        """Whether this PULLED is waited for."""
        return answer.partition in self._missing and answer.step == self.step

    def came(self, partition: int) -> None:
        """The weights of a partition are here."""
        self._missing.pop(partition, None)

    def here(self, wanted: AbstractSet[int]) -> bool:
        """Whether nothing is missing of these partitions."""
        return not self._missing or self._missing.keys().isdisjoint(wanted)

    def of_shard(self, partitions: Sequence[Partition], shard: int) -> list[int]:
        """What is missing of a shard, in the order in which it is wanted."""
        return [index for index in self._missing if partitions[index].shard == shard]

    def shards(self, partitions: Sequence[Partition]) -> list[int]:
        """Of which something is missing."""
        return sorted({partitions[index].shard for index in self._missing})
