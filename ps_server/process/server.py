"""The server process: one gRPC server with all services, its readiness, its end.

Everything on the event loop only moves messages; tensors are worked on in the threads of connections and of
`ClosingPool`.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import torch
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection

from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations, Hold
from ps_server.coordinator.snapshots.durability import Durability
from ps_server.coordinator.snapshots.policy import NO_SNAPSHOTS, SnapshotPolicy
from ps_server.coordinator.snapshots.saved_jobs import SavedJobs
from ps_server.log import logger
from ps_server.process.closing_pool import ClosingPool
from ps_server.process.server_metrics import ServerMetrics
from ps_server.process.shard_zero import ShardZero
from ps_server.rpc.auth import Gatekeeper
from ps_server.rpc.errors import ErrorInterceptor
from ps_server.rpc.health import Health
from ps_server.shard import hand_off
from ps_server.shard.follower import Follower
from ps_server.shard.hand_off import Inherited
from ps_server.shard.optimizer import piece_optimizer
from ps_server.shard.service import ShardService
from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_server.shard.transport.grpc_stream import DataStreams
from ps_server.shard.transport.socket_server import SocketServer
from ps_wire.access.access import OPEN, Access
from ps_wire.access.channel import SERVER, bind
from ps_wire.access.token import TokenCheck
from ps_wire.errors import Fenced, PsError, Unavailable
from ps_wire.frames.carrier import Carrier
from ps_wire.metrics.endpoint import MetricsEndpoint
from ps_wire.process import watched
from ps_wire.process.allocator import keep_large_blocks
from ps_wire.process.device import device_of
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2, coordinator_pb2_grpc, shard_pb2, shard_pb2_grpc

GRACE_S = 3.0  # calls that are answering may finish; streams of members and data do not end by themselves
LIVENESS = "liveness"
READINESS = "readiness"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server that a person typed, checked.

    Attributes:
        shard: number of this shard.
        num_shards: of the service.
        host: to bind; loopback unless told otherwise.
        port: of the control plane and the gRPC carrier; 0 lets the system choose.
        coordinator: HOST:PORT of shard 0; None on shard 0 itself.
        advertise: the host under which workers reach this shard.
        memory_limit_bytes: for the tables of all jobs; None for no limit.
        data_port: of the TCP carrier; 0 lets the system choose.
        health_port: of the health service alone, without TLS; None: it is on the control port only.
        state_dir: where generations, and what is handed off, are kept; None: nowhere.
        snapshot_dir: URL of the jobs' snapshots, the same for all shards; None: there are none.
        snapshots: when they are taken, and how many are kept.
        metrics_port: of the metrics; 0 lets the system choose, None: there are none.
        metrics_host: to bind for them.
        durability: what becomes of jobs when a shard loses what it held.
        access: certificates for both planes; the token that calls must carry, and that its own carry.
        device: on which optimizers run.
        stopped_code: the exit code once SIGTERM has stopped it in order.
    """

    shard: int
    num_shards: int
    host: str
    port: int
    coordinator: str | None
    advertise: str
    memory_limit_bytes: int | None
    data_port: int = 0
    health_port: int | None = None
    state_dir: Path | None = None
    snapshot_dir: str | None = None
    durability: Durability = Durability.NONE
    access: Access = OPEN
    device: str = "cpu"
    snapshots: SnapshotPolicy = NO_SNAPSHOTS
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    stopped_code: int = 0


class Server:
    """One server process. `run` serves until a signal and returns the exit code."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._pool = ClosingPool()
        store = None if options.snapshot_dir is None else SnapshotStore(options.snapshot_dir)
        self._store = store
        self._shard = Shard(
            index=options.shard,
            num_shards=options.num_shards,
            memory_limit_bytes=options.memory_limit_bytes,
            submit=self._pool.submit,
            device=device_of(options.device),
            store=store,
        )
        self._saved = None if store is None else SavedJobs(store, self._shard.complaints)
        self._inherited = Inherited(boot=secrets.token_bytes(16))
        self._coordinator: Coordinator | None = None
        self._follower: Follower | None = None
        self._stopped: asyncio.Future[int] | None = None
        self._grace_s = GRACE_S
        self._refused_call = partial(self._shard.count_refused, Refused.CALL)
        self._health = Health(self._refused_call)
        self._stops: list[Callable[[], None]] = []
        self._ends: list[Callable[[], None]] = []  # last of all

    async def run(self) -> int:
        """Serves until SIGTERM (`stopped_code`) or SIGINT (130); a second signal ends the process at once.

        Raises:
            Unavailable: the port is in use, or the host is not ours to bind.
            Fenced: a newer process has this server's place.
        """
        keep_large_blocks(one_arena=True)
        piece_optimizer.warm_up()
        torch.set_num_threads(1)  # connections work beside each other; one kernel on all cores would not
        return await self.serve(self._catch_signals())

    async def serve(
        self, stopped: asyncio.Future[int], serving: Callable[[str], object] = lambda _: None
    ) -> int:
        """Serves until it is stopped, with the process's settings as they are.

        Args:
            stopped: of this loop; its result is the exit code.
            serving: told the address when it takes calls.

        Raises:
            What `run` raises.
        """
        self._stopped = stopped
        probed = await self._open_health()  # a probe is answered while what was handed off is read
        try:
            return await self._serve(stopped, serving)
        finally:
            if probed is not None:
                await probed.stop(None)

    async def _serve(self, stopped: asyncio.Future[int], serving: Callable[[str], object]) -> int:
        handed_off = await self._find_hand_off()
        server = grpc.aio.server(options=SERVER, interceptors=self._interceptors())
        port = self._bind(server)
        sockets = self._listen()
        advertised = f"{self._options.advertise}:{port}"
        metrics = self._bind_metrics()
        self._add_services(server, advertised)  # takes a generation: whatever can fail is before it
        following: asyncio.Task[None] | None = None
        hands_off = False
        if not stopped.done():
            sockets.begin()
            metrics.begin()
            if handed_off is not None:
                await asyncio.to_thread(handed_off.use_up)  # and before anything is taken
            await server.start()
            sockets.open()
            following = self._start_following(advertised)
            logger.info("serving on %s:%d", self._options.host, port)
            serving(advertised)
            await asyncio.wait([stopped])
            logger.info("stopping")
            self._health.end()
            hands_off = await self._drain(stopped)
        if following is not None:
            following.cancel()
        for stop in self._stops:
            stop()
        await asyncio.gather(asyncio.to_thread(sockets.close), server.stop(self._grace_s))
        await asyncio.to_thread(metrics.close)
        await asyncio.to_thread(self._pool.close)
        if hands_off:
            await asyncio.to_thread(self._hand_off)
        for end in self._ends:
            end()
        logger.info("stopped")
        return stopped.result()

    async def _find_hand_off(self) -> hand_off.FoundHandOff | None:
        """Puts what the process before this one has handed off into the shard; it is not used up yet."""
        if self._options.state_dir is None:
            return None
        await asyncio.to_thread(hand_off.check_writable, self._options.state_dir, self._options.shard)
        found = await asyncio.to_thread(hand_off.find, self._options.state_dir, self._shard)
        if found is not None and found.inherited is not None:
            self._inherited = found.inherited
        return found

    async def _drain(self, stopped: asyncio.Future[int]) -> bool:
        """Takes nothing any more; what is under way comes to its end. Whether all can be handed off."""
        failure = stopped.exception()
        if self._options.state_dir is None or isinstance(failure, Fenced):
            return False
        if failure is None and stopped.result() != self._options.stopped_code:
            return False
        self._service.serve(False)
        if self._follower is not None:
            await self._follower.drain()
        drained = self._coordinator is None or await self._coordinator.drain()
        if drained and self._coordinator is not None:
            self._stops.remove(self._coordinator.stop)
            self._stops.append(self._coordinator.halt)
        await asyncio.to_thread(self._shard.retire)
        return drained

    def _hand_off(self) -> None:
        """No thread works on the shard any more: writes what it holds for the process after this one."""
        assert self._options.state_dir is not None
        more: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        coordinator = self._inherited.coordinator
        if self._coordinator is not None:
            more, blobs = self._coordinator.dump()
            tensors = {name: _tensor_of(blob) for name, blob in blobs.items()}
        if self._follower is not None:
            more = {"done": [it.SerializeToString().hex() for it in self._follower.done.values()]}
            coordinator = self._follower.coordinator
        handed_on = Inherited(
            boot=self._inherited.boot,
            coordinator=coordinator,
            more=more,
            tensors=tensors,
        )
        try:
            hand_off.write(self._options.state_dir, self._shard, handed_on)
        except (PsError, OSError) as error:
            logger.error("nothing is handed off, and what this shard held is lost: %s", error)

    def _interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        access = self._options.access
        if access.token is None:
            return [ErrorInterceptor()]
        return [ErrorInterceptor(), Gatekeeper(TokenCheck(access.tokens), self._refused_call)]

    def _bind(self, server: grpc.aio.Server) -> int:
        address = f"{self._options.host}:{self._options.port}"
        try:
            port = bind(server, address, self._options.access.tls)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: {_why(self._options) or error}") from None
        return port

    async def _open_health(self) -> grpc.aio.Server | None:
        """For probes, which have neither certificate nor token: alive from now on, and ready later."""
        self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        for name in (READINESS, health.OVERALL_HEALTH):
            self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        options = self._options
        if options.health_port is None:
            return None
        server = grpc.aio.server(options=SERVER)
        server.add_generic_rpc_handlers((self._health.handler(),))
        address = f"{options.host}:{options.health_port}"
        try:
            bind(server, address, None)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: {error} (--health-port)") from None
        await server.start()
        return server

    def _bind_metrics(self) -> MetricsEndpoint:
        """For Prometheus; what is shown is found when somebody asks."""
        options = self._options
        loop = asyncio.get_running_loop()

        def render() -> bytes:
            return ServerMetrics(
                self._shard,
                self._coordinator,
                loop,
                ready=lambda: self._service.ready,
                snapshot_every_s=options.snapshots.every_s,
            ).text()

        return MetricsEndpoint(
            options.metrics_host,
            options.metrics_port,
            render,
            access=options.access,
            log=logger,
            refused=self._refused_call,
        )

    def _listen(self) -> SocketServer:
        """For data, which waits until `open`; the service then offers it."""
        options = self._options
        sockets = SocketServer(
            self._shard,
            host=options.host,
            port=options.data_port,
            tls=options.access.tls,
        )
        grpc_carrier = shard_pb2.Carrier(name=Carrier.GRPC)
        self._service = ShardService(self._shard, carriers=[*sockets.offers, grpc_carrier])
        return sockets

    def _add_services(self, server: grpc.aio.Server, advertised: str) -> None:
        names = [
            shard_pb2.DESCRIPTOR.services_by_name["Shard"].full_name,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        ]
        shard_pb2_grpc.add_ShardServicer_to_server(self._service, server)
        streams = DataStreams(self._shard)
        self._stops.append(streams.close)
        server.add_generic_rpc_handlers((streams.handler(),))
        server.add_generic_rpc_handlers((self._health.handler(),))
        if self._options.shard == 0:
            coordinator = self._take_over(advertised)
            coordinator.begin()
            self._coordinator = coordinator
            self._stops.append(coordinator.stop)
            coordinator_pb2_grpc.add_CoordinatorServicer_to_server(coordinator.service, server)
            names.append(coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name)
        reflection.enable_server_reflection(names, server)

    def _take_over(self, advertised: str) -> Coordinator:
        """A coordinator with what its predecessor has handed off, if that can be used."""
        if self._options.state_dir is not None:
            hold = Hold(self._options.state_dir)
            self._ends.append(hold.let_go)
        generations = Generations(self._options.state_dir)
        coordinator = self._make_coordinator(advertised, generations)
        if self._inherited.more:
            try:
                blobs = {name: _bytes_of(it) for name, it in self._inherited.tensors.items()}
                coordinator.load(self._inherited.more, blobs)
            except Exception:  # noqa: BLE001 - whatever it is: the file is used up
                logger.exception(
                    "WHAT THE COORDINATOR BEFORE HAS HANDED OFF CANNOT BE USED: as if it had been killed, "
                    "jobs go back to their snapshots, and are lost where there are none"
                )
                coordinator.halt()
                for entry in self._shard.jobs():
                    self._shard.end(entry.name)
                self._inherited = Inherited(boot=secrets.token_bytes(16))
                coordinator = self._make_coordinator(advertised, generations)
        return coordinator

    def _make_coordinator(self, advertised: str, generations: Generations) -> Coordinator:
        own = ShardZero(self._shard, generations.own)
        return Coordinator(
            Fleet(own, advertised, asyncio.get_running_loop(), generations),
            self._saved if self._options.durability is Durability.SNAPSHOT else None,
            store=self._store,
            policy=self._options.snapshots,
            on_fenced=self._fence,
        )

    def _start_following(self, advertised: str) -> asyncio.Task[None] | None:
        if self._options.coordinator is None:
            self._set_ready(True)
            return None
        self._set_ready(False)
        follower = self._follower = Follower(
            self._shard,
            address=self._options.coordinator,
            advertise=advertised,
            inherited=self._inherited,
            on_ready=self._set_ready,
            on_fenced=self._fence,
            on_misplaced=self._refuse,
            access=self._options.access,
        )
        return watched.endless_task("following the coordinator", follower.run, log=logger)

    def _fence(self, error: Fenced) -> None:
        """A newer process has this server's place: nothing is taken any more."""
        self._shard.void()
        self._refuse(error)

    def _refuse(self, error: PsError) -> None:
        """This process has no place here, and ends; what it holds is handed on, unless it is void."""
        self._set_ready(False)
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(error)

    def _set_ready(self, ready: bool) -> None:
        self._service.serve(ready)
        status = health_pb2.HealthCheckResponse
        state = status.SERVING if ready else status.NOT_SERVING
        for name in (READINESS, health.OVERALL_HEALTH):
            self._health.set(name, state)

    def _catch_signals(self) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[int] = loop.create_future()

        def stop(number: signal.Signals, code: int) -> None:
            if stopped.done():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            else:
                logger.info("got %s", number.name)
                stopped.set_result(code)

        loop.add_signal_handler(signal.SIGTERM, stop, signal.SIGTERM, self._options.stopped_code)
        loop.add_signal_handler(signal.SIGINT, stop, signal.SIGINT, 130)
        return stopped


def _tensor_of(blob: bytes) -> torch.Tensor:
    """Bytes of the coordinator's, as a hand-off file has them."""
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else torch.empty(0, dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def _why(options: ServerOptions) -> str:
    """The system's own words for why an address cannot be bound; gRPC does not pass them on."""
    host = options.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, options.port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
