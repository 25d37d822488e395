"""What happens in a run that is resumed, drawn from a seed before it begins: a pure value that prints."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from enum import StrEnum

from . import resumed

CONSISTENCIES = ("bsp", "ssp:2", "asp")


class Way(StrEnum):
    """How a job is interrupted."""

    ALL_TERM = "SIGTERM to all workers"
    ALL_INT = "Ctrl-C in all workers"
    ALL_KILL = "SIGKILL of all workers"
    ONE_TERM = "SIGTERM to one worker"
    ONE_KILL = "SIGKILL of one worker"
    ALL_PAUSE = "all workers are paused for longer than their lease"
    ONE_PAUSE = "one worker is paused for longer than its lease"
    BLINK = "all workers are paused for less than their lease"
    SERVER_KILL = "SIGKILL of a server"
    SERVER_TERM = "a server is stopped, and started again"
    EVERYTHING = "SIGKILL of all servers and workers"
    HANG = "a server hangs until a worker says so"
    PART = "shard 1 does not reach the coordinator for a while"
    CUT = "one worker has no network for longer than its lease"
    CUT_BLINK = "one worker has no network for less than its lease"
    SILENCE = "one worker's packets vanish until it says so"
    LOSS = "packets to one worker are lost"
    FULL = "the disk of snapshots is full until one has failed"


OF_WORKERS = {
    Way.ALL_TERM: signal.SIGTERM,
    Way.ALL_INT: signal.SIGINT,
    Way.ALL_KILL: signal.SIGKILL,
    Way.ONE_TERM: signal.SIGTERM,
    Way.ONE_KILL: signal.SIGKILL,
}
OF_NETWORK = {Way.CUT, Way.CUT_BLINK, Way.SILENCE, Way.LOSS}  # each worker has one of its own
IN_NAMESPACES = OF_NETWORK | {Way.FULL}
OF_SERVERS = {Way.SERVER_KILL, Way.SERVER_TERM, Way.EVERYTHING, Way.HANG, Way.PART, Way.FULL}
# The same workers take part in all steps that count.
KEEPS_MEMBERS = OF_SERVERS | {Way.BLINK, Way.CUT_BLINK, Way.LOSS}
EVICTS = {
    Way.ALL_KILL,
    Way.ONE_KILL,
    Way.ALL_PAUSE,
    Way.ONE_PAUSE,
    Way.EVERYTHING,
    Way.CUT,
    Way.SILENCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a run: ways, each with the worker and its step, and the shard."""

    consistency: str
    num_workers: int
    ways: tuple[tuple[Way, int, int, int], ...]

    @property
    def exact(self) -> bool:
        """Whether it ends with the bits of a run that nobody disturbed."""
        together = self.consistency == "bsp" and all(way in KEEPS_MEMBERS for way, *_ in self.ways)
        return self.num_workers == 1 or together

    @property
    def evicts(self) -> bool:
        """Whether a worker is evicted by what happens in it."""
        return self.has(EVICTS)

    def has(self, ways: set[Way]) -> bool:
        """Whether one of these happens in it."""
        return any(way in ways for way, *_ in self.ways)

    def __str__(self) -> str:
        ways = "; ".join(
            f"{way}, worker {who} at step {step}, shard {shard}" for way, who, step, shard in self.ways
        )
        return f"{self.consistency}, {self.num_workers} workers: {ways}"


def draw(seed: int, number: int, *, namespaces: bool = False) -> Plan:
    """Run `number` of a seed: models, numbers of workers and ways in turn, the rest by chance.

    In 162 runs with namespaces every way comes with each consistency and number of workers.
    """
    rng = random.Random(seed * 1_000_003 + number)
    kinds = 3 * len(CONSISTENCIES)
    num_workers = 1 + number // len(CONSISTENCIES) % 3
    steps = resumed.SAMPLES // resumed.BATCH // num_workers * resumed.LAST
    ways = [way for way in Way if namespaces or way not in IN_NAMESPACES]
    first = ways[(seed + number + 2 * (number // kinds)) % len(ways)]
    chosen = [first, *rng.sample(ways, rng.choice((0, 1)))]
    at = sorted(rng.sample(range(2, steps * 2 // 3), len(chosen)))
    return Plan(
        consistency=CONSISTENCIES[number % len(CONSISTENCIES)],
        num_workers=num_workers,
        ways=tuple(
            (way, rng.randrange(num_workers), step, rng.randrange(2))
            for way, step in zip(chosen, at, strict=True)
        ),
    )
