"""Pulls that wait at the gate, by the clock that they wait for.

A gate that opens finds those that it lets through without a look at the others. A pull may wait for no clock
yet: with backup workers a late one has to be told where it goes on. Pure. It must not know the gate.
"""

from __future__ import annotations

from collections.abc import Iterator

from ps_server.shard.partition.inputs import Pull


class WaitingPulls:
    """At most one pull of each worker."""

    __slots__ = ("_at", "_by_worker")

    def __init__(self) -> None:
        self._by_worker: dict[int, tuple[Pull, int | None]] = {}
        self._at: dict[int, dict[int, Pull]] = {}  # clock -> worker -> pull

    def __copy__(self) -> WaitingPulls:
        made = WaitingPulls()
        made._by_worker = self._by_worker.copy()
        made._at = {clock: pulls.copy() for clock, pulls in self._at.items()}
        return made

    def __len__(self) -> int:
        return len(self._by_worker)

    def __contains__(self, worker: int) -> bool:
        return worker in self._by_worker

    def __iter__(self) -> Iterator[Pull]:
        """All, by worker."""
        return (self._by_worker[worker][0] for worker in sorted(self._by_worker))

    def put(self, pull: Pull, clock: int | None) -> None:
        """A pull waits for this clock, None: for no clock yet; in place of what its worker asked before."""
        worker = pull.worker
        self.discard(worker)
        self._by_worker[worker] = pull, clock
        if clock is not None:
            self._at.setdefault(clock, {})[worker] = pull

    def discard(self, worker: int) -> None:
        """Drops what a worker has asked: it is not answered."""
        known = self._by_worker.pop(worker, None)
        if known is not None and known[1] is not None:
            pulls = self._at[known[1]]
            del pulls[worker]
            if not pulls:
                del self._at[known[1]]

    def refile(self, worker: int, clock: int | None) -> None:
        """A worker waits for another clock, or for none yet, if it waits."""
        known = self._by_worker.get(worker)
        if known is not None:
            self.put(known[0], clock)

    def pop_until(self, limit: float) -> dict[int, list[Pull]]:
        """Removes and returns those that wait for a clock <= `limit`: by clock, each in order of workers."""
        ready = {}
        for clock in sorted(clock for clock in self._at if clock <= limit):
            pulls = self._at.pop(clock)
            ready[clock] = [pulls[worker] for worker in sorted(pulls)]
            for worker in pulls:
                del self._by_worker[worker]
        return ready
