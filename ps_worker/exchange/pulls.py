"""Weights of one table that have been asked for and are not here, by partition.

Some may be asked for ahead, while the worker is still in the step before; the last ones never are, so all are
here only after the step has asked for them.

Not thread-safe: `InFlight` guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from ps_wire.frames import frame as wire
from ps_wire.frames.lists import partitions


class Pulls:
    """Partitions that are missing of the pull that was asked last.

    Attributes:
        step: the clock that was asked at last.
        flags: of that PULL.
        nothing: no weights were asked for, only whether the gate is open.
        ahead: some were asked for, and the others will be.
    """

    def __init__(self) -> None:
        self.step = 0
        self.flags = 0
        self.nothing = False
        self.ahead = False
        self._missing: OrderedDict[int, None] = OrderedDict()
        self._unasked: set[int] = set()  # of those that are missing
        self._unsure: set[int] = set()  # that are being asked for ahead, or were about to be

    def __bool__(self) -> bool:
        """Whether something is missing."""
        return bool(self._missing)

    def ask(
        self, partitions: Sequence[int], step: int, flags: int = 0, *, nothing: bool = False
    ) -> Collection[int]:
        """These, in the order of the plan, are asked for: first layers first.

        Returns:
            Those that have not been asked for ahead, at this clock, or not for sure.
        """
        if self.ahead and step == self.step and not flags and not nothing:
            rest = self._unasked | self._unsure
            self._forget_ahead()
            return rest
        self._begin(partitions, step)
        self.flags, self.nothing = flags, nothing
        return self._missing.keys()

    def ask_ahead(self, every: Sequence[int], partitions: Collection[int], step: int) -> Collection[int]:
        """Some may be asked for before the others: returns which of these, that were not yet.

        None where weights of before are missing, nor those that would be the last. From here on they count as
        asked, so that a new connection asks again; until `note_ahead` is told that they have been, so does
        `ask`, for Ctrl-C may come before they are. Asking twice does no harm.

        Args:
            every: as in `ask`.
            partitions: some of them.
            step: the clock.
        """
        if not self.ahead or step != self.step:
            if self._missing:
                return ()
            self._begin(every, step)
            self.ahead, self._unasked = True, set(every)
        now = self._unasked.intersection(partitions)
        if len(now) == len(self._unasked):
            return ()
        self._unasked -= now
        self._unsure |= now
        return now

    def note_ahead(self, partitions: Collection[int], step: int) -> None:
        """These have been asked for before the others."""
        if self.ahead and step == self.step:
            self._unsure.difference_update(partitions)

    def _begin(self, partitions: Sequence[int], step: int) -> None:
        self._missing = OrderedDict.fromkeys(reversed(partitions))
        self.step, self.flags, self.nothing = step, 0, False
        self._forget_ahead()

    def forget(self) -> None:
        """Nothing is waited for any more."""
        self._missing.clear()
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        self.ahead, self._unasked, self._unsure = False, set(), set()

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

    def of_shard(self, shard_of: Sequence[int], shard: int, only: Collection[int] | None = None) -> list[int]:
        """The partitions that are missing of a shard, in the order in which they are wanted.

        Args:
            shard_of: by partition, the shard that holds it.
            shard: whose.
            only: those of these; None: that have been asked for.
        """
        mine = [it for it in self._missing if shard_of[it] == shard]
        return [it for it in mine if (it not in self._unasked if only is None else it in only)]

    def shards(self, shard_of: Sequence[int]) -> list[int]:
        """Of which something is missing."""
        return sorted({shard_of[index] for index in self._missing})
