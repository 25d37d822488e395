"""The hosts of a group's ranks: who is on which, and who of them acts for all.

Computed from what all ranks have heard, the same on every rank. It must not know what travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Hops: TypeAlias = Sequence[tuple[int, int]]  # sources and targets


class Hosts:
    """The hosts of the ranks of one group.

    Attributes:
        ranks: by host, its ranks, ascending; hosts in the order of their first ranks.
        apart: there are several.
        shared: some host has several ranks.
    """

    def __init__(self, machines: Sequence[str]) -> None:
        """Takes, by rank, a text that is the same on all ranks of one host alone."""
        by_machine: dict[str, list[int]] = {}
        for rank, machine in enumerate(machines):
            by_machine.setdefault(machine, []).append(rank)
        self.ranks: Sequence[Sequence[int]] = list(by_machine.values())
        self.apart = len(self.ranks) > 1
        self.shared = any(len(it) > 1 for it in self.ranks)

    def of(self, rank: int) -> int:
        """The number of the host of a rank."""
        return next(host for host, ranks in enumerate(self.ranks) if rank in ranks)

    def near(self, rank: int) -> Sequence[int]:
        """The ranks on the host of a rank; it, too."""
        return self.ranks[self.of(rank)]

    def hops(self, owner: int, wanting: Sequence[int], turn: int) -> tuple[Hops, Hops]:
        """Who sends to whom so that what one rank has reaches others, over each link between hosts once.

        Args:
            owner: has it.
            wanting: are to get it.
            turn: of several on a host, which one gets it for the others.

        Returns:
            Pairs of a source and a target: what is sent first, and what is sent once that is there.
        """
        first, then = [], []
        for ranks in self.ranks:
            there = [rank for rank in ranks if rank in wanting and rank != owner]
            if owner in ranks or len(there) < 2:
                first += [(owner, rank) for rank in there]
            else:
                agent = acting(there, turn)
                first.append((owner, agent))
                then += [(agent, rank) for rank in there if rank != agent]
        return first, then


def acting(ranks: Sequence[int], turn: int) -> int:
    """The rank that acts for all of these in this turn."""
    return ranks[turn % len(ranks)]
