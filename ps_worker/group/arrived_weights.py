"""The words of ranks when the weights that each owns have come: their versions, or why they cannot come.

All ranks hear it of all, so all know the versions of all partitions, and raise the same error. It must not
know gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ps_wire.errors import PsError, facts_to_json, from_wire
from ps_worker.group.channel import Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions of a table's weights, as one rank knows them.

    Attributes:
        newest: by partition: of those that this rank owns, and of others as far as it has heard.
        clock: the newest at which those of all partitions are known.
        spread: newest minus oldest version over all partitions at that clock.
    """

    newest: Sequence[int]
    clock: int
    spread: int


class ArrivedWeights:
    """The weights of one table, or of a part of it, by who owns them.

    Attributes:
        error: why those that this rank owns could not come, when it waited last.
    """

    def __init__(self, owners: Sequence[int], rank: int, partitions: Sequence[int] | None = None) -> None:
        """Nothing has come.

        Args:
            owners: by partition of the table, its owner rank.
            rank: this one.
            partitions: of the part; None: all.
        """
        every = range(len(owners)) if partitions is None else partitions
        self._owners = [owners[index] for index in every]
        self._owned = [index for index in every if owners[index] == rank]
        self.error: PsError | None = None

    def wait(
        self, arrive: Callable[[], Sequence[int]], mapped: Callable[[], Collection[int]]
    ) -> dict[str, Any]:
        """Waits for those that this rank owns; gives what it says of them, as JSON has it.

        Args:
            arrive: waits until they are here, and gives versions by partition.
            mapped: once they are here, the shards whose weights this rank sees where the shard has them.
        """
        self.error = None
        try:
            versions = list(arrive())
            return {"versions": [versions[index] for index in self._owned], "mapped": sorted(mapped())}
        except PsError as error:
            self.error = error
            return {"error": [type(error).__name__, error.message, facts_to_json(error)]}

    def versions(self, said: Sequence[Said]) -> list[int]:
        """Of all its partitions, of what all ranks have said: each owner has said its own, in order.

        Raises:
            PsError: some cannot come, on whichever rank.
        """
        for one in said:
            failed = one.fields.get("error")
            if isinstance(failed, list) and len(failed) == 3:
                raise from_wire(*map(str, failed))
        told = [iter(one.fields.get("versions") or ()) for one in said]
        return [int(next(told[owner])) for owner in self._owners]

    @staticmethod
    def mapped(said: Sequence[Said]) -> list[frozenset[int]]:
        """By rank, the shards whose weights it sees where the shard has them."""
        return [frozenset(one.fields.get("mapped") or ()) for one in said]


def spread_of(versions: Sequence[int]) -> int:
    """Newest minus oldest of them."""
    return max(versions, default=0) - min(versions, default=0)
