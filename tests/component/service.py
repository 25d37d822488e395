"""A real service inside the test process, and workers of it in threads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

import ps_worker as ps
from ps_lab.cluster.ports import free_ports
from ps_lab.status.observer import ask
from ps_lab.status.status import Status
from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.process.server import Server, ServerOptions
from ps_server.shard.optimizer.piece_optimizer import KNOWN
from ps_wire.access.access import OPEN, Access
from ps_wire.errors import JobInUse, JobUnknown, ServerNotReady
from tests.until import LIMIT_S

Result = TypeVar("Result")
AFTER_ERROR_S = 2.0  # that others get when one has failed
_numbers = itertools.count()

# torch makes a class's step call hooks when its first instance is made, and twice where two threads do that
# at one time: it is done before there are threads.
for _known in KNOWN.values():
    _known.cls([torch.zeros(1)])


class LoopThread:
    """One event loop in a thread of its own, for all servers of a test run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="servers", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_S)
        self.loop.close()


class QuietServer(Server):
    """`Server` without signals: it is stopped by `stop`, and says when it serves."""

    def __init__(self, options: ServerOptions) -> None:
        super().__init__(options)
        self.port = 0
        self.stopped: asyncio.Future[int] | None = None
        self.serving = threading.Event()

    def _bind(self, server: Any) -> int:
        self.port = super()._bind(server)
        return self.port

    def _listen(self) -> Any:
        self.sockets = super()._listen()
        return self.sockets

    def _set_ready(self, ready: bool) -> None:
        super()._set_ready(ready)
        if ready:
            self.serving.set()

    def _catch_signals(self) -> asyncio.Future[int]:
        self.stopped = asyncio.get_running_loop().create_future()
        return self.stopped

    @property
    def shard(self) -> Any:
        return self._shard

    def kill(self) -> None:
        """As kill -9 would: nobody is told anything, and nothing is kept. On the event loop."""
        for stop in self._stops:
            coordinator = getattr(stop, "__self__", None)
            if isinstance(coordinator, Coordinator):
                self._stops.remove(stop)
                coordinator.halt()
                break
        self._grace_s = 0.0
        if not self.stopped.done():
            self.stopped.set_result(9)


class Cluster:
    """Shards on free loopback ports; `settings` are what their workers need to be let in."""

    def __init__(
        self,
        loop: LoopThread,
        num_shards: int,
        access: Access = OPEN,
        options: Mapping[str, Any] | None = None,
        **settings: object,
    ) -> None:
        """`options` are more of `ServerOptions`; `{shard}` in a path is the shard's number."""
        self._loop = loop
        self.settings = settings
        self._access = access
        self._num_shards = num_shards
        self._options = dict(options or {})
        self.shards: list[QuietServer] = []
        self._runs: list[Any] = []
        for index in range(num_shards):
            server, run = self._start(index)
            self.shards.append(server)
            self._runs.append(run)
            self._wait(index)

    @property
    def servers(self) -> str:
        """Where they are now."""
        return ",".join(self._address(index) for index in range(self._num_shards))

    def _start(self, index: int, port: int = 0) -> tuple[QuietServer, Any]:
        if not index and not port:  # one that the kernel picks could be another's by the next start
            (port,) = free_ports(1)
        more = dict(self._options)
        if "state_dir" in more:
            more["state_dir"] = Path(str(more["state_dir"]).format(shard=index))
        if "snapshot_dir" in more:
            more["snapshot_dir"] = str(more["snapshot_dir"]).format(shard=index)
        options = ServerOptions(
            shard=index,
            num_shards=self._num_shards,
            host="127.0.0.1",
            port=port,
            coordinator=self._address(0) if index else None,
            advertise="127.0.0.1",
            access=self._access,
            **{"memory_limit_bytes": None, **more},
        )
        server = QuietServer(options)
        run = self._loop.start(server.run())
        run.add_done_callback(lambda _: server.serving.set())
        return server, run

    def _wait(self, index: int) -> None:
        assert self.shards[index].serving.wait(LIMIT_S)
        if self._runs[index].done():
            self._runs[index].result()

    def kill(self, index: int) -> None:
        """The process of a shard is gone, from one moment to the next."""
        self._loop.loop.call_soon_threadsafe(self.shards[index].kill)
        self._runs[index].result(LIMIT_S)

    def start_again(self, index: int) -> None:
        """Another process of a shard: shard 0 at the same address, others at another one."""
        port = self.shards[0].port if index == 0 else 0
        self.shards[index], self._runs[index] = self._start(index, port)
        self._wait(index)

    @property
    def coordinator(self) -> Coordinator:
        stops = [getattr(stop, "__self__", None) for stop in self.shards[0]._stops]
        (coordinator,) = [stop for stop in stops if isinstance(stop, Coordinator)]
        return coordinator

    def _address(self, index: int) -> str:
        return f"127.0.0.1:{self.shards[index].port}"

    def evict(self, job: str, worker: int) -> None:
        """As if the lease of a worker were over; returns once all shards have carried it out.

        What it left is dealt to others by then.
        """
        room = self.begin_eviction(job, worker)
        self._loop.start(room.settle()).result(LIMIT_S)

    def begin_eviction(self, job: str, worker: int) -> JobRunner:
        """As `evict`; returns once the coordinator has decided so, whether or not shards are there."""
        room = self.coordinator.runners[job]

        async def decide() -> None:
            room.evict(room.job.roster.members[worker])

        self._loop.start(decide()).result(LIMIT_S)
        return room

    def go_back(self, job: str, snapshot: str) -> None:
        """As if a person had asked for it; returns once it has."""
        self._loop.start(self.coordinator._recovery.go_back(job, snapshot)).result(LIMIT_S)

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Drops at its end the jobs that have begun within it, those in which workers live left out.

        A service has room for 1,024 jobs, and those that have ended count.
        """
        before = set(self.coordinator.runners)
        yield
        self._loop.start(self._drop(set(self.coordinator.runners) - before)).result(LIMIT_S)

    async def _drop(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            with contextlib.suppress(JobInUse, JobUnknown, ServerNotReady):
                await self.coordinator._drops.drop(job, force=False)

    def stop(self, index: int) -> None:
        if not self._runs[index].done():
            stopped = self.shards[index].stopped
            self._loop.loop.call_soon_threadsafe(lambda: stopped.done() or stopped.set_result(0))
            self._runs[index].result(LIMIT_S)

    def close(self) -> None:
        for index in reversed(range(len(self.shards))):
            self.stop(index)


def status_of(cluster: Cluster, access: Access = OPEN) -> Status:
    """All that its servers say of themselves and their jobs."""
    return ask(tuple(cluster.servers.split(",")), access, timeout_s=LIMIT_S)


def threads_of_workers() -> set[threading.Thread]:
    """Those that are alive now."""
    names = ("ps-member", "ps-heartbeat", "ps-shard-", "ps-watch-")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


def fresh_name() -> str:
    return f"job-{next(_numbers)}"


def together(bodies: list[Callable[[], Result]], limit_s: float = LIMIT_S) -> list[Result]:
    """Runs each in a thread; their results in order. The first error is raised, and so is a hang."""
    results: list[Any] = [None] * len(bodies)
    errors: list[BaseException] = []
    done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(index: int, body: Callable[[], Result]) -> None:
        torch.set_num_threads(1)  # holds per thread: MKL's sums differ in bits between one thread and two
        try:
            results[index] = body()
        except BaseException as error:  # noqa: BLE001 - it is raised again by whoever waits
            errors.append(error)
        done.put(index)

    threads = [
        threading.Thread(target=run, args=(index, body), name=f"body-{index}", daemon=True)
        for index, body in enumerate(bodies)
    ]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + limit_s
    running = set(range(len(bodies)))
    with contextlib.suppress(queue.Empty):
        while running:
            left_s = AFTER_ERROR_S if errors else until_s - time.monotonic()
            running.remove(done.get(timeout=max(left_s, 0.1)))
    if errors:
        raise errors[0]
    if running:
        frames = sys._current_frames()
        stacks = ["".join(traceback.format_stack(frames[threads[index].ident])) for index in running]
        raise AssertionError("still running:\n" + "\n".join(stacks))
    return results


def run_workers(
    cluster: Cluster,
    body: Callable[[ps.Worker], Result],
    *,
    num_workers: int = 1,
    consistency: str = "bsp",
    limit_s: float = LIMIT_S,
    job: str | None = None,
    **settings: Any,
) -> list[Result]:
    """`body` once per worker of a fresh job, each in a thread; their results by worker."""
    name = job or fresh_name()

    def one(rank: int) -> Result:
        with ps.connect(
            servers=cluster.servers,
            job=name,
            consistency=consistency,
            num_workers=num_workers,
            worker=rank,
            **cluster.settings,
            **settings,
        ) as worker:
            return body(worker)

    return together([lambda rank=rank: one(rank) for rank in range(num_workers)], limit_s)


def figures(cluster: Cluster, job: str, worker: int, table: int = 0) -> dict[str, int]:
    """A worker's counts, summed over its partitions on all shards."""
    total: dict[str, int] = {}
    for server in cluster.shards:
        ledger = server.shard.table(job, table).ledger(worker)
        for name in ("received", "applied", "dropped", "abstained", "duplicates"):
            total[name] = total.get(name, 0) + getattr(ledger, name)
    return total


def partitions(cluster: Cluster, job: str, table: int = 0) -> int:
    return sum(len(server.shard.table(job, table).cells()) for server in cluster.shards)
