"""What a simulated job is: its workers' batches, where each worker is, what it has read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ps_server.agreement.gate import Gate, gate_of
from ps_wire.spec.consistency import Consistency

Update = tuple[int, int]  # (worker, step)


class At(Enum):
    """Where a worker is with its step on one partition."""

    PULLING = auto()  # its pull is on the way
    WAITING = auto()  # its pull waits at the gate
    READY = auto()  # the weights are there; other partitions' may not be
    PUSHING = auto()  # its push is on the way, or not acknowledged
    PUSHED = auto()  # its last push is acknowledged
    LEAVING = auto()  # its leave is on the way
    GHOST = auto()  # it died with a push on the way; its leave is on the way too
    GONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A worker's view of one partition. `taken`: the partition has this push, the ack was lost."""

    at: At
    step: int
    version: int = 0
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An answered pull: the updates that the worker saw."""

    worker: int
    partition: int
    clock: int
    version: int
    seen: frozenset[Update]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is run.

    Attributes:
        batches: of each worker; its length is the number of workers.
        abstains: steps from which a worker abstains.
        drops: left out by the coordinator's decisions.
        withheld: pushes that may not be applied, as the partition finds when their step is complete.
        coordinated: a coordinator decides each step that is complete everywhere; else each partition does.
        faults, deaths: how many of each may happen.
    """

    consistency: Consistency
    batches: tuple[int, ...]
    num_partitions: int = 1
    abstains: frozenset[Update] = frozenset()
    drops: frozenset[Update] = frozenset()
    withheld: frozenset[Update] = frozenset()
    coordinated: bool = False
    faults: int = 0
    deaths: int = 0

    @property
    def gate(self) -> Gate:
        return gate_of(self.consistency)

    @property
    def updates(self) -> frozenset[Update]:
        """What is to be applied, by the time all have left: all batches but those left out."""
        pushed = {(worker, step) for worker, steps in enumerate(self.batches) for step in range(steps)}
        return frozenset(pushed - self.abstains - self.drops - self.withheld)
