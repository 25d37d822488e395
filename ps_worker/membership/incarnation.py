"""One incarnation of a worker: its membership and its connections. An evicted one is followed by another.

Once it is over, nothing that its threads still bring reaches the worker's tables: what they write or take at
that moment is waited for, and so is a failure that they hand on; what comes afterwards is dropped.

`_failing` is held while a failure is handed on, and nothing else is guarded by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ps_wire.errors import PsError
from ps_wire.frames import frame as wire
from ps_wire.frames.service import Service
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.membership.membership import Membership
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise
from ps_worker.settings import Settings
from ps_worker.transport.carrier_choice import CarrierChoice
from ps_worker.transport.connection import Connection, Peer, open_all
from ps_worker.transport.shard_addresses import ShardAddresses

CLOSE_LIMIT_S = 0.2  # for an evicted one's connections: nothing that they still bring counts
RECEIVED_LIMIT_S = 10.0  # for one frame to be taken; only a script's callback takes longer, after all of it


class Incarnation:
    """The membership and the connections of one incarnation; the `Peer` of these.

    Attributes:
        membership: its place in the job.
        connections: to all shards, once it has connected.
    """

    def __init__(
        self,
        settings: Settings,
        service: Service,
        *,
        peer: Peer,
        progress: Callable[[], pb.Progress],
        say: Callable[[str], None],
        promise: SnapshotPromise,
        rounds: RoundBarrier,
        renews: Callable[[], bool] | None = None,
    ) -> None:
        """Does nothing yet.

        Args:
            settings: of the worker.
            service: with its servers.
            peer: gets frames and failures.
            progress: what a heartbeat brings.
            say: says something to the person at the terminal.
            promise: to snapshots; it outlives this incarnation.
            rounds: where the script is, likewise.
            renews: see `Membership`.
        """
        self.membership = Membership(
            settings,
            service,
            progress=progress,
            on_failure=self.fail,
            log=say,
            promise=promise,
            rounds=rounds,
            renews=renews,
        )
        self.connections: list[Connection] = []
        self._settings = settings
        self._service = service
        self._peer = peer
        self._say = say
        self._over = False
        self._failing = threading.Lock()

    @property
    def joined(self) -> pb.Joined:
        """As whom it has joined."""
        return self.membership.joined

    def connect(self, carriers: CarrierChoice, addresses: ShardAddresses) -> None:
        """Opens a connection to every shard, where it is now."""
        self.connections += open_all(
            self._settings,
            self._service,
            carriers,
            addresses,
            joined=self.joined,
            peer=self,
            log=self._say,
        )

    def abandon(self) -> None:
        """It was evicted: ends everything of it."""
        self._over = True
        self.membership.abandon()
        for connection in self.connections:
            connection.close(CLOSE_LIMIT_S)
        for connection in self.connections:
            connection.wait_received(RECEIVED_LIMIT_S)
        if self._failing.acquire(timeout=RECEIVED_LIMIT_S):
            self._failing.release()

    def receive(self, frame: wire.Frame) -> None:
        """See `Peer.receive`."""
        if not self._over:
            self._peer.receive(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """See `Peer.landing`."""
        return None if self._over else self._peer.landing(frame, payload_bytes)

    def replay(self, shard: int) -> Iterable[wire.Frame]:
        """See `Peer.replay`."""
        return () if self._over else self._peer.replay(shard)

    def fail(self, error: PsError) -> None:
        """See `Peer.fail`."""
        with self._failing:
            if not self._over:
                self._peer.fail(error)
