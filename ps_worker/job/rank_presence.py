"""The presence of a rank above 0: no member, no connection to a shard; the leader's answers reach it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ps_wire.errors import UsageError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.shard_pb2_calls import ShardCalls
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.group.channel import Said
from ps_worker.group.group import Group
from ps_worker.job.job_seat import Asks, Seat
from ps_worker.job.relayed_seat import RelayedSeat
from ps_worker.transport.connection import Connection


class RankPresence:
    """The presence of a rank above 0, as `Presence` is the leader's.

    Attributes:
        exchanges: of its tables.
    """

    def __init__(self, group: Group, say: Callable[[str], None]) -> None:
        """Has not joined; `say` tells the person at the terminal something."""
        self._group = group
        self._say = say
        self._seat: RelayedSeat | None = None
        self._num_shards = 0
        self.exchanges = Exchanges(at_failure=lambda _: None)

    def open(self) -> None:
        """Waits until the leader has joined. Raises what it raises there."""
        said = joined_by(self._group, None)
        self._num_shards = int(said.fields["num_shards"])
        self._seat = RelayedSeat(self._group.channel, pb.Joined.FromString(said.blob), None)

    def enter(self) -> None:
        """A group does not join again.

        Raises:
            GroupBroken: always.
        """
        raise evicted(self._group)

    def connect(self) -> None:
        """There is nothing to connect to."""

    def abandon(self) -> None:
        """There is nothing to end."""

    def leave(self, reason: str, clocks: Mapping[int, int]) -> None:  # noqa: ARG002 - the leader says them
        """This rank leaves its group; one that ends with an error ends it for all."""
        if reason and self._group.healthy:
            self._group.broken(f"rank {self._group.ranks.rank} has ended: {reason}")
        self._group.leave()

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
        """None: the leader has them."""
        return ()

    @property
    def num_shards(self) -> int:
        """See `JobPresence`."""
        return self._num_shards

    @property
    def joined(self) -> pb.Joined:
        """See `JobPresence`."""
        return self._now.joined

    @property
    def resumed(self) -> bool:
        """See `JobPresence`."""
        return self.joined.resumed

    def shard(self, index: int) -> ShardCalls:
        """Refuses: the leader reaches the servers.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"this is rank {self._group.ranks.rank} of its group, and rank 0 alone reaches shard {index}: "
            "ask for figures and states where worker.group_rank == 0"
        )

    def can_map(self) -> bool:
        """See `JobPresence`."""
        return False

    def say_wait(self, text: str) -> None:
        """See `JobPresence`."""
        self._say(text)


def joined_by(group: Group, join: Callable[[], tuple[pb.Joined, int]] | None) -> Said:
    """The leader joins, and all ranks hear as whom, and of how many shards.

    Args:
        group: of this rank.
        join: on the leader, joins.

    Raises:
        UsageError: the job went back to a snapshot.
        PsError: what the leader is refused with; on all ranks.
    """

    def ask(_: list[Said]) -> Said:
        assert join is not None
        joined, num_shards = join()
        if joined.rolled_back:
            raise UsageError(
                "the job goes on from a snapshot, and snapshots hold nothing of the ranks of a group: let "
                "workers without groups go on with it, or drop the job and begin anew"
            )
        return Said({"num_shards": num_shards}, joined.SerializeToString())

    return group.channel.relay("connect()", ask)


def evicted(group: Group) -> Exception:
    """The error of a group whose worker was evicted, or whose job went back."""
    return group.broken("its worker was evicted, or its job went back to a snapshot")
