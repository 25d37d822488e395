"""A listener to a table's traffic: it hears of each step, and records it."""

from __future__ import annotations

from typing import Protocol


class TrafficListener(Protocol):
    """Hears of pushes and weights by partition, mostly on connections' threads; it waits for nothing.

    A step is meant by the clock of its push, and so are the weights that were asked for behind it.
    """

    def asked(self) -> None:
        """Called by the thread that asks for weights: all pushes of its step have left."""

    def acknowledged(
        self, clock: int, *, gap: int, read: int, applied: int | None, dropped: bool, abstained: bool
    ) -> None:
        """Called when a shard has said what became of a push on one partition.

        Args:
            clock: of the push.
            gap: that it made.
            read: version of the weights that it was computed on.
            applied: version at which it was applied; None: it was not, or nobody knows.
            dropped: it came too late.
            abstained: nothing of it is applied.
        """

    def pulled(self, clock: int, waited_s: float | None) -> None:
        """Called when the weights of a partition are here, and how long they waited at the gate, if known."""

    def spread(self, clock: int, updates: int) -> None:
        """Called when all weights are here, on all ranks: newest minus oldest version of them."""

    def resent(self, clock: int) -> None:
        """Called when a push is sent again, since a connection broke."""
