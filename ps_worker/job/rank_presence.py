"""The presence of a rank above 0: no member, for the leader's answers reach it; it has its own connections.

The shards know them by worker and rank. The thread that trains calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ps_wire.errors import PsError, UsageError
from ps_wire.frames.carrier import Carrier
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.shard_pb2_calls import ShardCalls
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.group.channel import Said
from ps_worker.group.group import Group
from ps_worker.job.job_seat import Asks, Seat
from ps_worker.job.relayed_seat import RelayedSeat
from ps_worker.process.farewell import Farewell
from ps_worker.settings import Settings
from ps_worker.transport.carrier_choice import CarrierChoice
from ps_worker.transport.connection import Connection, open_all
from ps_worker.transport.lost_shards import farewell_to, lost_shards, wait_line
from ps_worker.transport.open_service import open_service
from ps_worker.transport.shard_addresses import ShardAddresses


class RankPresence:
    """The presence of a rank above 0, as `Presence` is the leader's.

    Attributes:
        exchanges: of its tables; the `Peer` of all its connections.
        service: with its servers.
        carriers: which of them data take.
    """

    def __init__(self, settings: Settings, group: Group, say: Callable[[str], None]) -> None:
        """Connects to nobody yet.

        Args:
            settings: of the worker.
            group: of which this process is a rank above 0.
            say: tells the person at the terminal something.

        Raises:
            PsError: see `open_service`.
        """
        self._settings = settings
        self._group = group
        self._say = say
        self.service = open_service(settings, say)
        self._addresses = ShardAddresses(self.service)
        self.carriers = CarrierChoice(self.service, settings.carrier, say, shares=settings.shares)
        self.exchanges = Exchanges(at_failure=lambda _: self.carriers.give_up())
        self._seat: RelayedSeat | None = None
        self._connections: list[Connection] = []
        group.when_broken(self.exchanges.fail)

    def open(self) -> None:
        """Waits until the leader has joined, and connects. Raises what it raises there."""
        try:
            said = joined_by(self._group, None)
            self._seat = RelayedSeat(self._group.channel, pb.Joined.FromString(said.blob), None)
        except BaseException:
            self.service.close()
            raise
        self.connect()

    def enter(self) -> None:
        """A group does not join again.

        Raises:
            GroupBroken: always.
        """
        raise evicted(self._group)

    def connect(self) -> None:
        """Opens a connection to every shard, where it is now."""
        self._connections += open_all(
            self._settings,
            self.service,
            self.carriers,
            self._addresses,
            joined=self.joined,
            peer=self.exchanges,
            log=self._say,
        )

    def abandon(self) -> None:
        """There is nothing to end."""

    def farewell(self) -> Farewell:
        """See `JobPresence`."""
        return farewell_to(self._connections)

    def leave(
        self,
        reason: str,  # noqa: ARG002 - the leader says it
        clocks: Mapping[int, int],  # noqa: ARG002 - the same
        farewell: Farewell,
    ) -> None:
        """This rank leaves its group."""
        for connection in self._connections:
            connection.quiet()
        self._group.leave()
        for connection in self._connections:
            connection.close(farewell=farewell)
        self.service.close()

    @property
    def entered(self) -> bool:
        """See `JobPresence`."""
        return self._seat is not None

    @property
    def _now(self) -> RelayedSeat:
        assert self._seat is not None, "it has not joined"
        return self._seat

    @property
    def membership(self) -> Seat:
        """See `JobPresence`."""
        return self._now

    @property
    def calls(self) -> Asks:
        """See `JobPresence`."""
        return self._now.calls

    @property
    def connections(self) -> Sequence[Connection]:
        """See `JobPresence`."""
        return self._connections

    @property
    def failure(self) -> PsError | None:
        """See `JobPresence`."""
        return self.exchanges.failure

    @property
    def num_shards(self) -> int:
        """See `JobPresence`."""
        return len(self._connections)

    @property
    def joined(self) -> pb.Joined:
        """See `JobPresence`."""
        return self._now.joined

    @property
    def resumed(self) -> bool:
        """See `JobPresence`."""
        return self.joined.resumed or self.joined.rolled_back

    def shard(self, index: int) -> ShardCalls:
        """Refuses: the leader asks for what is the worker's, once.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"this is rank {self._group.ranks.rank} of its group, and rank 0 alone asks shard {index} for "
            "figures and states: do so where worker.group_rank == 0"
        )

    def can_map(self) -> bool:
        """See `JobPresence`."""
        return self.carriers.all_take(Carrier.SHM, self.num_shards)

    def whom(self) -> list[str]:
        """See `JobPresence`."""
        return lost_shards(self._connections) or self.membership.whom()

    def say_wait(self, text: str, workers: str = "") -> None:
        """See `JobPresence`."""
        self._say(wait_line(text, lost_shards(self._connections) or [workers]))


def joined_by(group: Group, join: Callable[[], pb.Joined] | None) -> Said:
    """The leader joins, and all ranks hear as whom.

    Args:
        group: of this rank.
        join: on the leader, joins.

    Raises:
        PsError: what the leader is refused with; on all ranks.
    """

    def ask(_: list[Said]) -> Said:
        assert join is not None
        return Said({}, join().SerializeToString())

    return group.channel.relay("connect()", ask)


def evicted(group: Group) -> Exception:
    """The error of a group whose worker was evicted, or whose job went back."""
    return group.broken("its worker was evicted, or its job went back to a snapshot")
