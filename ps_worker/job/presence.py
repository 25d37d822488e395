"""A worker's presence in its job: its live incarnation, its exchanges, and the way to its servers.

Whoever was evicted enters again, as another incarnation; exchanges stay. The thread that trains calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ps_wire.errors import ConnectionLost, PsError
from ps_wire.frames.carrier import Carrier
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.shard_pb2_calls import ShardCalls
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.group.group import Group
from ps_worker.job.job_seat import Asks, Seat
from ps_worker.job.link_listener import LinkListener
from ps_worker.job.rank_presence import evicted, joined_by
from ps_worker.job.relayed_seat import RelayedSeat
from ps_worker.membership.incarnation import Incarnation
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise
from ps_worker.process.exit_reason import sendable
from ps_worker.process.farewell import Farewell
from ps_worker.settings import Settings
from ps_worker.transport.carrier_choice import CarrierChoice
from ps_worker.transport.connection import Connection
from ps_worker.transport.lost_shards import farewell_to, lost_shards, wait_line
from ps_worker.transport.open_service import open_service
from ps_worker.transport.server_check import check_servers
from ps_worker.transport.shard_addresses import ShardAddresses


class Presence:
    """The live incarnation of one worker, and what it is made with. Nothing is joined before `enter`.

    Attributes:
        exchanges: of its tables; the `Peer` of all its connections.
        service: with its servers.
        carriers: which of them data take.
    """

    def __init__(
        self,
        settings: Settings,
        listener: LinkListener,
        promise: SnapshotPromise,
        rounds: RoundBarrier,
        group: Group | None = None,
    ) -> None:
        """Connects to nobody yet.

        Args:
            settings: of the worker.
            listener: the worker.
            promise: to snapshots; it outlives incarnations.
            rounds: where the script is, likewise.
            group: that this process leads; None: it is the whole worker.

        Raises:
            PsError: see `open_service`.
        """
        self._settings = settings
        self._listener = listener
        self._promise = promise
        self._rounds = rounds
        self.service = open_service(settings, listener.say)
        self._addresses = ShardAddresses(self.service)
        self.carriers = CarrierChoice(self.service, settings.carrier, listener.say, shares=settings.shares)
        self.exchanges = Exchanges(at_failure=self._at_failure)
        self._live: Incarnation | None = None
        self._group = group
        if group is not None:
            group.when_broken(self.exchanges.fail)
        self._seat: RelayedSeat | None = None

    # -- entering and leaving --------------------------------------------------------------------------

    def open(self) -> None:
        """See `JobPresence`. Raises what `connect` raises."""
        try:
            if self._group is None:
                self._check_and_enter()
            else:
                joined_by(self._group, self._check_and_enter)
                self._seat = RelayedSeat(self._group.channel, self.joined, self._now.membership)
        except BaseException:
            if not self.entered:
                self.service.close()
            raise
        self.connect()

    def _check_and_enter(self) -> pb.Joined:
        check_servers(self.service, self._settings.connect_limit_s, self._listener.say)
        self.enter()
        return self.joined

    def enter(self) -> None:
        """Joins as a new incarnation; the one before, if there was one, is over by now.

        Raises:
            GroupBroken: it leads a group, which does not join again.
            PsError: what the coordinator refuses with; then nothing has changed.
        """
        group = self._group
        if group is not None and self._live is not None:
            raise evicted(group)
        now = Incarnation(
            self._settings,
            self.service,
            peer=self.exchanges,
            progress=self._progress,
            say=self._listener.say,
            promise=self._promise,
            rounds=self._rounds,
            renews=None if group is None else lambda: group.healthy,
        )
        try:
            now.membership.join(None if self._live is None else self._live.joined)
            self._live = now
        except BaseException:  # in a notebook the process lives on, and nobody could leave for it
            now.membership.leave("it never came to know that it had joined")
            now.membership.wait_threads()
            raise

    def connect(self) -> None:
        """Opens a connection to every shard, where it is now."""
        self._now.connect(self.carriers, self._addresses)

    def abandon(self) -> None:
        """The live incarnation was evicted: nothing that it still brings reaches the exchanges."""
        self._now.abandon()

    def farewell(self) -> Farewell:
        """See `JobPresence`."""
        return farewell_to(self.connections)

    def leave(self, reason: str, clocks: Mapping[int, int], farewell: Farewell) -> None:
        """Leaves in order and closes everything; `clocks`: table -> steps that the worker has taken."""
        membership = self._now.membership
        for connection in self.connections:
            connection.quiet()
        torn = False  # of a group that breaks, some ranks may have pushed a step, and others not
        if self._group is not None:
            in_order = self._group.healthy  # then no rank shows weights that others may write
            torn = not (in_order and self._group.leave())
        if self._group is not None and self._group.hosts_shards and not self._group.healthy:
            self._now.membership.abandon()  # the job ends with its servers: nobody is there to be told
        else:
            membership.leave(reason, clocks, torn=torn or farewell.is_short, farewell=farewell)
        for connection in self.connections:
            connection.close(farewell=farewell)
        self.service.close()
        membership.wait_threads(farewell)
        if self._group is not None:
            self._group.leave()

    def _progress(self) -> pb.Progress:
        progress = self._listener.progress()
        progress.passed_over = sendable(self.carriers.passed_over())
        return progress

    def _at_failure(self, error: PsError) -> None:
        """Data do not travel any more, on any thread: who waits for a carrier, or for a start, is told."""
        self.carriers.give_up()
        if isinstance(error, ConnectionLost) and self._live is not None:
            self._live.membership.lose(error)

    # -- what it is now --------------------------------------------------------------------------------

    @property
    def entered(self) -> bool:
        """See `JobPresence`."""
        return self._live is not None

    @property
    def _now(self) -> Incarnation:
        assert self._live is not None, "it has not joined"
        return self._live

    @property
    def membership(self) -> Seat:
        """Of the live incarnation; of a group, for all its ranks."""
        return self._now.membership if self._seat is None else self._seat

    @property
    def calls(self) -> Asks:
        """The calls of the live incarnation to the coordinator; of a group, for all its ranks."""
        return self.membership.calls

    @property
    def connections(self) -> Sequence[Connection]:
        """Of the live incarnation, in shard order; they grow until it has connected."""
        return self._now.connections

    @property
    def failure(self) -> PsError | None:
        """See `JobPresence`."""
        return self._now.membership.failure

    @property
    def num_shards(self) -> int:
        """Of the service, once it has connected."""
        return len(self.connections)

    def shard(self, index: int) -> ShardCalls:
        """Calls to one shard."""
        return self.service.shard(index)

    def can_map(self) -> bool:
        """Whether every shard takes data over shared memory."""
        return self.carriers.all_take(Carrier.SHM, self.num_shards)

    @property
    def joined(self) -> pb.Joined:
        """As whom the live incarnation is in the job."""
        return self._now.joined

    @property
    def resumed(self) -> bool:
        """The job has its weights and steps, which this worker takes up."""
        return self.joined.resumed or self.joined.rolled_back

    # -- long waits ------------------------------------------------------------------------------------

    def whom(self) -> list[str]:
        """See `JobPresence`."""
        return lost_shards(self.connections) or self.membership.whom()

    def say_wait(self, text: str, workers: str = "") -> None:
        """See `JobPresence`: of workers, who is behind, and when its lease would end the wait."""
        whom = lost_shards(self.connections)
        if not whom:
            whom = [workers]
            with suppress(PsError):  # then without
                whom += self.calls.behind()
        self._listener.say(wait_line(text, whom))
