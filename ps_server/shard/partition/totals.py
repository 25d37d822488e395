"""Totals of many partitions of one table: each cell adds itself, once, while it holds its lock.

Adding costs a microsecond per worker and partition. Counts are sums; clocks and versions the extremes; gap
and gate wait the largest of one partition, since partitions are waited for side by side. Pure: it must not
know tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ps_server.shard.partition.inputs import Ledger
from ps_server.shard.partition.meters import Meters


class Totals:
    """The sums of what the cells of a table on one shard have counted, at one moment each.

    Attributes:
        partitions: that have added themselves.
        oldest: version of one of them.
        newest: version of one of them.
        weight_bytes: held.
        optimizer_bytes: held.
        mixed_steps: see `StepMachine`.
        hyper_mismatches: the most of one partition.
        tau: version staleness -> pushes that were applied with it.
        meters: of all cells.
        ledgers: worker -> its counts.
        lowest: worker -> its smallest clock, of members.
        highest: worker -> its largest clock.
    """

    def __init__(self) -> None:
        """Of no partition."""
        self.partitions = 0
        self.oldest = 0
        self.newest = 0
        self.weight_bytes = 0
        self.optimizer_bytes = 0
        self.mixed_steps = 0
        self.hyper_mismatches = 0
        self.tau: Counter[int] = Counter()
        self.meters = Meters()
        self.ledgers: dict[int, Ledger] = {}
        self.lowest: dict[int, int] = {}
        self.highest: dict[int, int] = {}

    def add_version(self, version: int) -> None:
        """One more partition, which is at this version."""
        self.oldest = min(self.oldest, version) if self.partitions else version
        self.newest = max(self.newest, version)
        self.partitions += 1

    def add_steps(self, *, mixed: int, mismatches: int) -> None:
        """Of a partition: its mixed steps, and steps that took other hyper-parameters than a worker's."""
        self.mixed_steps += mixed
        self.hyper_mismatches = max(self.hyper_mismatches, mismatches)

    def add_bytes(self, *, weights: int, optimizer: int) -> None:
        """Those that a partition holds."""
        self.weight_bytes += weights
        self.optimizer_bytes += optimizer

    def add_ledgers(self, ledgers: Mapping[int, Ledger]) -> None:
        """Those of a partition."""
        for worker, part in ledgers.items():
            whole = self.ledgers.get(worker)
            if whole is None:
                whole = self.ledgers[worker] = Ledger()
            whole.received += part.received
            whole.applied += part.applied
            whole.dropped += part.dropped
            whole.abstained += part.abstained
            whole.duplicates += part.duplicates
            whole.refused += part.refused
            whole.missed += part.missed
            if part.max_gap > whole.max_gap:  # noqa: PLR1730 - max() takes three times as long
                whole.max_gap = part.max_gap
            if part.gate_wait_s > whole.gate_wait_s:  # noqa: PLR1730
                whole.gate_wait_s = part.gate_wait_s

    def add_clocks(self, clocks: Iterable[tuple[int, int]]) -> None:
        """(worker, clock) of the members of a partition."""
        lowest, highest = self.lowest, self.highest
        for worker, clock in clocks:
            if clock < lowest.get(worker, clock + 1):
                lowest[worker] = clock
            if clock > highest.get(worker, -1):
                highest[worker] = clock

    def ledger(self, worker: int) -> Ledger:
        """A worker's counts; zeros of one that is not known."""
        return self.ledgers.get(worker) or Ledger()
