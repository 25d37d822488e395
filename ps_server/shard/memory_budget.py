"""The memory of a shard's tables, reckoned from shapes before anything is allocated, and its limit.

Of a table: its slices of weights and optimizer state, gradients that wait for their step, and with backup
workers weights of older versions; what its parameters and partitions take beside; and hyper-parameters that
workers send. It must not know which tables there are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ps_server.agreement.gate import Gate
from ps_server.rpc.complaints import Complaints
from ps_server.shard.optimizer import piece_optimizer
from ps_server.shard.table.kept_hyperparameters import most_sets, set_bytes
from ps_wire.errors import MemoryLimitExceeded
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec

CELL_BYTES = 8192  # beside what it holds
PARAMETER_BYTES = 4096  # with its place, its name's object and torch's tensors: 3.1 KB measured with Adam


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The memory that one shard's tables may take.

    Attributes:
        shard: its number.
        limit_bytes: for the tables of all jobs; None: there is no limit.
        complaints: lines of the log about jobs whose tables are too large.
    """

    shard: int
    limit_bytes: int | None
    complaints: Complaints

    def needed_bytes(self, spec: TableSpec, plan: Plan, gate: Gate, num_workers: int) -> int:
        """The bytes of a table of a job with this gate and so many workers."""
        kept = min(gate.backup, num_workers)  # weights that late workers work on
        staged = num_workers if gate.aggregates else 0  # gradients that wait for their step
        hyper = spec.optimizer.hyperparameters
        total = CELL_BYTES * plan.count_of_shard(self.shard)
        total += sum(PARAMETER_BYTES + len(parameter.name) for parameter in spec.parameters)
        total += set_bytes(hyper) * (1 + most_sets(hyper, num_workers))
        for bucket in plan.buckets:
            start, end = bucket.slice_bounds(self.shard)
            slots = piece_optimizer.state_slots(spec.optimizer, bucket.group)
            total += (end - start) * bucket.item_bytes * (1 + slots + staged + kept)
        return total

    def fits(self, need: int, held: Mapping[str, int]) -> bool:
        """Whether a table of `need` bytes fits beside what jobs hold, by name."""
        return self.limit_bytes is None or sum(held.values()) + need <= self.limit_bytes

    def too_large(
        self, spec: TableSpec, job: str, gate: Gate, num_workers: int, *, need: int, held: Mapping[str, int]
    ) -> MemoryLimitExceeded:
        """The error that the job is told; which others hold how much is for the server's log alone."""
        limit = self.limit_bytes
        self.complaints.say(
            logging.WARNING,
            f"job {job}",
            "table %d needs %d bytes, more than are free of --memory-limit %d (jobs hold: %s)",
            spec.number,
            need,
            limit,
            ", ".join(f"{name} {size}" for name, size in held.items() if size),
        )
        return MemoryLimitExceeded(
            f"table {spec.number} of job {job} needs {need} bytes on shard {self.shard} "
            f"({_counted(gate, num_workers)}), more than are free of --memory-limit {limit}; the job holds "
            f"{held[job]}, the server's log says what others do. Without the option it is 80 % of the "
            "memory that there is; `none` switches it off",
            needed=need,
            held=held[job],
            limit=limit,
        )


def _counted(gate: Gate, num_workers: int) -> str:
    """The parts of a table that are counted, for people."""
    if gate.aggregates:
        return f"weights, optimizer state and one slice for each of {num_workers} workers"
    return "weights and optimizer state"
