"""What the ledger must say, whatever happened: no push twice, each as it was pushed, weights to the bit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ps_wire.spec.plan import Partition, Plan

from .ledger import checksum, read
from .scenario import NUMEL, gradient, start
from .scenario import plan as plan_of

Records = Sequence[list[Any]]


class Slice:
    """One partition of the table, trained by torch alone. Legend: E = its elements."""

    def __init__(self, plan: Plan, partition: Partition) -> None:
        self._pieces = plan.pieces(partition)
        self._numel = partition.numel
        self.weights = self.of(start())
        self._optimizer: torch.optim.Optimizer | None = None

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """What a whole tensor of shape (N,) has for this partition, shape (E,)."""
        made = torch.zeros(self._numel)
        for piece in self._pieces:
            made[piece.offset : piece.offset + piece.numel] = whole[_of_parameter(piece)]
        return made

    def put(self, whole: torch.Tensor) -> None:
        """Writes the weights where they belong in a tensor of shape (N,)."""
        for piece in self._pieces:
            whole[_of_parameter(piece)] = self.weights[piece.offset : piece.offset + piece.numel]

    def apply(self, mean: torch.Tensor, hyper: dict[str, Any]) -> None:
        """One step of Adam."""
        if self._optimizer is None:
            self.weights.requires_grad_()
            self._optimizer = torch.optim.Adam([self.weights], fused=True)
        self._optimizer.param_groups[0] |= {
            name: hyper[name] for name in ("lr", "betas", "eps", "weight_decay")
        }
        self.weights.grad = mean
        self._optimizer.step()


def _of_parameter(piece: Any) -> slice:
    return slice(piece.parameter_offset, piece.parameter_offset + piece.numel)


class History:
    """What was applied to one partition and is not undone, in order.

    Attributes:
        version: of the partition.
        applied: (version, pushes, hyper-parameters) of each step.
    """

    def __init__(self) -> None:
        self.version = 0
        self.applied: list[tuple[int, list[Any], dict[str, Any]]] = []
        self.restored: int | None = None  # the version that it went back to last
        self._cell: int | None = None

    def restore(self, version: int, cell: int) -> None:
        """It went back to what it was; what others hold of it counts no more."""
        assert version <= self.version, f"restored at {version}, which has never been"
        self.version = self.restored = version
        self._cell = cell
        self.applied = [item for item in self.applied if item[0] <= version]

    def take_up(self, version: int, cell: int) -> None:
        """Another process goes on with what the one before has handed on."""
        assert version == self.version, f"handed on at {version}; it was at {self.version}"
        self._cell = cell

    def is_void(self, cell: int) -> bool:
        """Whether this is what it was before it went back."""
        return self._cell is not None and cell != self._cell

    def apply(self, version: int, pushes: list[Any], hyper: dict[str, Any]) -> None:
        self.version = version
        self.applied.append((version, pushes, hyper))


def histories(records: Iterable[list[Any]], plan: Plan, *, aggregates: bool) -> dict[int, History]:
    """What was applied to each partition; every push is checked on the way."""
    made = {index: History() for index in range(plan.num_partitions)}
    slices = {index: Slice(plan, plan.partition(index)) for index in made}
    seen: set[tuple[int, int, int, int]] = set()
    for kind, *record in records:
        if kind == "restore":
            index, version, cell = record
            made[index].restore(version, cell)
        if kind == "take up":
            index, version, cell = record
            made[index].take_up(version, cell)
        if kind != "apply":
            continue
        index, version, scale, pushes, hyper, cell = record
        mine = made[index]
        if mine.is_void(cell):
            continue
        assert scale == 1.0
        follows = version > mine.version if aggregates else version == mine.version + 1
        assert follows, f"a version is missing: {record}"
        assert [push[0] for push in pushes] == sorted({push[0] for push in pushes}), f"rank order: {record}"
        for worker, incarnation, step, _, found in pushes:
            assert step == version - 1 or not aggregates, record
            identity = worker, incarnation, step, index
            assert identity not in seen, f"applied twice: {identity}"
            seen.add(identity)
            pushed = slices[index].of(gradient(worker, step))
            assert checksum(pushed) == found, f"not what was pushed: {identity}"
        mine.apply(version, pushes, hyper)
    restored = {history.restored for history in made.values()}
    assert len(restored) == 1 or not aggregates, f"a torn state: partitions went back to {restored}"
    return made


def replay(records: Iterable[list[Any]], plan: Plan, *, aggregates: bool) -> torch.Tensor:
    """The weights that the recorded pushes make, shape (N,)."""
    whole = torch.empty(NUMEL)
    for index, history in histories(records, plan, aggregates=aggregates).items():
        mine = Slice(plan, plan.partition(index))
        for _, pushes, hyper in history.applied:
            total = torch.zeros(0)
            for place, (worker, _, step, weight, _) in enumerate(pushes):
                product = mine.of(gradient(worker, step)) * weight
                total = product if place == 0 else total + product
            mine.apply(total / sum(push[3] for push in pushes), hyper)
        with torch.no_grad():
            mine.put(whole)
    return whole


def check_order(records: Records, *, aggregates: bool) -> None:
    """Nothing of an incarnation is taken after its eviction, and a reply holds what it claims to hold."""
    _check_evictions(records)
    _check_replies(records, aggregates=aggregates)


def _check_evictions(records: Records) -> None:
    """A job all of whose workers were silent before it started is gone, and its incarnations with it.

    One of its name that they make anew counts from 1 again, in cells that nothing was restored to.
    """
    cells: defaultdict[int, set[int]] = defaultdict(set)  # by partition: of this job
    evicted: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)  # likewise
    for kind, partition, *record in records:
        match kind, record:
            case "restore" | "take up", [_, cell]:
                cells[partition].add(cell)
            case "evict" | "take", [worker, incarnation, *_, cell]:
                if cell not in cells[partition]:
                    cells[partition], evicted[partition] = {cell}, set()
                if kind == "evict":
                    evicted[partition].add((worker, incarnation))
                else:
                    assert (worker, incarnation) not in evicted[partition], f"after its eviction: {record}"


def _check_replies(records: Records, *, aggregates: bool) -> None:
    """A reply says every worker's clock: no push of an earlier step may be applied after it.

    So each worker reads its own writes. Under BSP it holds the steps before its version.
    """
    shown: dict[tuple[int, int], int] = {}
    live: dict[tuple[int, int], int] = {}
    for kind, partition, *record in records:
        match kind, record:
            case "reply", [_, version, clocks]:
                for worker, clock in clocks:
                    shown[partition, worker] = min(clock, version) if aggregates else clock
            case "apply", [_, _, pushes, *_]:
                for worker, incarnation, step, *_ in pushes:
                    if live.setdefault((partition, worker), incarnation) != incarnation:
                        live[partition, worker], shown[partition, worker] = incarnation, 0  # it may go back
                    assert step >= shown.get((partition, worker), 0), f"a reply came before: {record}"


def check(folder: Path, servers: Any, job: str, *, aggregates: bool) -> torch.Tensor:
    """Everything that the ledger says, against the servers' own counters; returns the weights replayed."""
    records = list(read(folder))
    plan = plan_of(len(servers.addresses))
    check_order(records, aggregates=aggregates)
    counts: Counter[tuple[int, int]] = Counter()
    for index, history in histories(records, plan, aggregates=aggregates).items():
        for _, pushes, _ in history.applied:
            counts.update((plan.partition(index).shard, push[0]) for push in pushes)
    for shard in range(plan.num_shards):
        for entry in servers.table(shard, job).workers:
            assert entry.received == entry.applied + entry.dropped + entry.abstained, entry
            assert entry.applied == counts[shard, entry.worker], entry
    return replay(records, plan, aggregates=aggregates)
