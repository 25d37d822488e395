"""Shard 0 for the coordinator beside it: `OwnShard`, kept by a `Shard`.

The one place where both halves of a server meet. It must not know what is ordered or reported.
"""

from __future__ import annotations

from collections.abc import Callable

from ps_server.agreement.messages import Report
from ps_server.rpc.complaints import Complaints
from ps_server.shard.orders import execute_order
from ps_server.shard.shard import Shard
from ps_wire.errors import JobUnknown
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb


class ShardZero:
    """A `Shard` as the coordinator's own shard; `OwnShard` describes the methods."""

    def __init__(self, shard: Shard, generation: int) -> None:
        """Takes the shard, which is of the coordinator's generation from now on, with what it holds."""
        shard.become(generation)
        self._shard = shard

    @property
    def index(self) -> int:
        """See `OwnShard`."""
        return self._shard.index

    @property
    def num_shards(self) -> int:
        """See `OwnShard`."""
        return self._shard.num_shards

    @property
    def generation(self) -> int:
        """See `OwnShard`."""
        return self._shard.generation

    @property
    def complaints(self) -> Complaints:
        """See `OwnShard`."""
        return self._shard.complaints

    def execute(self, order: pb.Order) -> pb.OrderDone:
        """See `OwnShard`."""
        return execute_order(self._shard, order)

    def report_to(self, sink: Callable[[Report], None]) -> None:
        """See `OwnShard`."""
        self._shard.reports.connect(sink)

    def pending(self) -> list[Report]:
        """See `OwnShard`."""
        return self._shard.pending()

    def opening_of(self, job: str, table: int) -> int:
        """See `OwnShard`."""
        return self._shard.table(job, table).opening

    def started_spec(self, job: str, table: int) -> TableSpec:
        """See `OwnShard`."""
        found = self._shard.table(job, table)
        if not found.started:
            raise JobUnknown(f"table {table} of job {job} has not started: read later")
        return found.spec

    def newest_clock(self, job: str) -> int:
        """See `OwnShard`."""
        return self._shard.newest_clock(job)
