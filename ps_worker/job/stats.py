"""Figures of one worker, and of the pushes that the shards applied for its job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ps_wire.frames.messages import epoch_use_from_proto
from ps_wire.spec.epoch_use import EpochUse
from ps_wire.spec.staleness import Staleness, merge_counts, summarize
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2
from ps_worker.exchange.exchange import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """Payload that all servers have counted over the live connections of one rank.

    Attributes:
        rank: in its group; 0 of a worker that is one process.
        pushed: that has come from it, start weights, too.
        pulled: that was sent to it.
    """

    rank: int
    pushed: int
    pulled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The figures of a worker, as `Worker.stats` returns them.

    Attributes:
        step: steps that this worker has taken, over its tables the largest.
        abstained: steps, over its optimizers, in which it had no gradient to push.
        dropped: its pushes, per partition, that came too late to be applied.
        missed: steps that it skipped since others had gone on without it (`bsp:backup=B`).
        samples: that its loader has handed out.
        bytes_pushed: payload of its pushes; of a group, of rank 0's.
        bytes_pulled: payload of the weights that it got; of a group, that rank 0 got.
        ranks: of its ranks, by rank; none where it has no servers.
        waited_s: seconds in `step()` between the last push and the last weight.
        gate_wait_s: the part of it at the gate, as the shards measured it.
        max_gap: the largest clock gap that one of its pushes made.
        spread: newest minus oldest version over partitions, in its last pull.
        staleness: version staleness of the whole job's pushes, per push and partition.
        epochs: accounts of those that began last, of loaders whose batches are trained on.
    """

    step: int
    abstained: int
    dropped: int
    missed: int
    samples: int
    bytes_pushed: int
    bytes_pulled: int
    ranks: tuple[RankBytes, ...]
    waited_s: float
    gate_wait_s: float
    max_gap: int
    spread: int
    staleness: Staleness
    epochs: tuple[EpochUse, ...]


def gather(
    tables: Iterable[shard_pb2.TableStatus],
    exchanges: Iterable[Exchange],
    epochs: Iterable[pb.EpochUse],
    *,
    worker: int,
    step: int,
    abstained: int,
    samples: int,
    waited_s: float,
) -> Stats:
    """The figures of this worker, of what every shard says of every table and of its own exchanges."""
    tables, exchanges = tuple(tables), tuple(exchanges)
    mine = [entry for table in tables for entry in table.workers if entry.worker == worker]
    return Stats(
        step=step,
        abstained=abstained,
        dropped=sum(entry.dropped for entry in mine),
        missed=sum(exchange.in_flight.missed for exchange in exchanges),
        samples=samples,
        bytes_pushed=sum(exchange.bytes_pushed for exchange in exchanges),
        bytes_pulled=sum(exchange.in_flight.bytes_pulled for exchange in exchanges),
        ranks=_ranks(tables, worker),
        waited_s=waited_s,
        gate_wait_s=max([entry.gate_wait_s for entry in mine], default=0.0),
        max_gap=max([entry.max_gap for entry in mine], default=0),
        spread=max([exchange.in_flight.spread for exchange in exchanges], default=0),
        staleness=summarize(merge_counts(table.tau for table in tables)),
        epochs=tuple(map(epoch_use_from_proto, epochs)),
    )


def _ranks(tables: Iterable[shard_pb2.TableStatus], worker: int) -> tuple[RankBytes, ...]:
    """By rank, over all shards: each says the same of a connection with every table."""
    tables = tuple(tables)
    first = min((table.table for table in tables), default=0)
    pushed: Counter[int] = Counter()
    pulled: Counter[int] = Counter()
    for table in tables:
        for entry in table.workers if table.table == first else ():
            for connection in entry.ranks if entry.worker == worker else ():
                pushed[connection.rank] += connection.received_bytes
                pulled[connection.rank] += connection.sent_bytes
    return tuple(RankBytes(rank=rank, pushed=pushed[rank], pulled=pulled[rank]) for rank in sorted(pushed))
