"""A worker's presence in its job as the parts of its link see it; `Presence` says what each method does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ps_wire.errors import PsError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.shard_pb2_calls import ShardCalls
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.job.job_seat import Asks, Seat
from ps_worker.process.farewell import Farewell
from ps_worker.transport.connection import Connection


class JobPresence(Protocol):
    """The live incarnation of a worker, and its exchanges; see `Presence` and `RankPresence`."""

    @property
    def exchanges(self) -> Exchanges:
        """Of its tables."""

    @property
    def entered(self) -> bool:
        """Whether it has joined the job: then it leaves it, too."""

    @property
    def membership(self) -> Seat:
        """Of the live incarnation."""

    @property
    def calls(self) -> Asks:
        """The calls of the live incarnation to the coordinator."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Of this process, in shard order."""

    @property
    def failure(self) -> PsError | None:
        """The error that has ended the live incarnation; None: it goes on."""

    @property
    def num_shards(self) -> int:
        """Of the service."""

    @property
    def joined(self) -> pb.Joined:
        """As whom the live incarnation is in the job."""

    @property
    def resumed(self) -> bool:
        """The job has its weights and steps, which this worker takes up."""

    def open(self) -> None:
        """Checks the servers, joins and connects. Where it has `entered` and that fails, `Worker` leaves."""

    def enter(self) -> None:
        """Joins as a new incarnation."""

    def connect(self) -> None:
        """Opens a connection to every shard."""

    def abandon(self) -> None:
        """The live incarnation was evicted."""

    def farewell(self) -> Farewell:
        """The time to leave after Ctrl-C: short, where a shard does not answer."""

    def leave(self, reason: str, clocks: Mapping[int, int], farewell: Farewell) -> None:
        """Leaves in order and closes everything."""

    def shard(self, index: int) -> ShardCalls:
        """Calls to one shard."""

    def can_map(self) -> bool:
        """Whether every shard takes data over shared memory."""

    def whom(self) -> list[str]:
        """Who is waited for, for people: shards that do not answer, else workers. Raises `PsError`."""

    def say_wait(self, text: str, workers: str = "") -> None:
        """Says what is waited for, and for whom; `workers`: what is known of them."""
