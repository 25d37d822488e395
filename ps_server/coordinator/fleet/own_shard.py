"""Shard 0 as the coordinator sees it, which runs in the same process: a Protocol, for `process` to keep.

The coordinator knows shards above 0 by their streams alone; of this one it asks beside that what it needs to
know at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ps_server.agreement.messages import Report
from ps_server.rpc.complaints import Complaints
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb


class OwnShard(Protocol):
    """The coordinator's own shard, shard 0: what the coordinator asks of it. Thread-safe."""

    @property
    def index(self) -> int:
        """Of the shard."""
        ...

    @property
    def num_shards(self) -> int:
        """Of the service."""
        ...

    @property
    def generation(self) -> int:
        """That it was given when it came as this shard."""
        ...

    @property
    def complaints(self) -> Complaints:
        """Lines of the log about peers that this process refuses."""
        ...

    def execute(self, order: pb.Order) -> pb.OrderDone:
        """Carries one order out and says how it went. Blocks while memory is allocated."""
        ...

    def report_to(self, sink: Callable[[Report], None]) -> None:
        """Has `sink` take what the shard reports from now on; it is called on any thread, and does not block.

        Called once, when the coordinator is made.
        """
        ...

    def pending(self) -> list[Report]:
        """Reports from which something may follow, of all jobs: a coordinator before may have taken them."""
        ...

    def opening_of(self, job: str, table: int) -> int:
        """The number of the order that opened a table. Raises JobUnknown: it is not here."""
        ...

    def started_spec(self, job: str, table: int) -> TableSpec:
        """The spec of a table that has started. Raises JobUnknown: it has not, or is not here."""
        ...

    def newest_clock(self, job: str) -> int:
        """The largest clock of a member of a job, over its tables; waits for locks of cells."""
        ...
