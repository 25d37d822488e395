"""How long faults take, by a clock of the test's: what is waited for on the way adds up to the targets."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

import pytest

from ps_server.coordinator import lease_watch, recovery
from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.jobs import runner as room
from ps_server.coordinator.jobs.leases import STALL_S
from ps_server.shard import follower
from ps_server.shard.shard import Shard
from ps_wire.access.channel import CLIENT
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_worker.membership import member_stream
from ps_worker.process import retry
from ps_worker.transport import connection
from tests.unit.ps_server.fleets import fleet_of

AFTER_LEASE_S = 0.5  # from the end of its lease until nobody waits for a killed worker any more
GOES_ON_S = 3.0  # from a server's readiness until training goes on
OF_ORDERS_S = 0.3  # of the former, at least, for orders to shards and weights to workers
OF_JOINS_S = 0.5  # of the latter, for what is no waiting: to load a snapshot, to join, to pull
JITTER = 1.2  # gRPC's, of its backoff
LEASE_S = 10.0
ROUNDING_S = 1e-6


class Jumping(selectors.DefaultSelector):
    """Waits for nothing: where there is nothing to do, it is the time of the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready:
            self.now_s += timeout or 0.0
        return ready


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes by timers alone: what happens in between takes none."""

    def __init__(self) -> None:
        self._jumping = Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class Inline(Executor):
    """Does it at once."""

    def submit(self, body: Any, /, *given: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(body(*given, **options))
        return future


async def worker(number: int, silent_s: float) -> AsyncIterator[pb.MemberRequest]:
    """What a worker says: heartbeats, the last one at `silent_s`. Its stream stays open."""
    clock = asyncio.get_running_loop().time
    job = spec_pb2.Job(name="j", consistency="bsp", num_workers=2)
    join = pb.Join(protocol=PROTOCOL, job=job, worker=number, host="h", pid=1, lease_s=LEASE_S)
    yield pb.MemberRequest(join=join)
    while clock() < silent_s:
        await asyncio.sleep(min(member_stream.HEARTBEAT_S, silent_s - clock()))
        yield pb.MemberRequest(heartbeat=pb.Heartbeat())
    await asyncio.Event().wait()


async def evicted_s(silent_s: float) -> float:
    """When all shards have carried out the eviction of a worker that was last heard at `silent_s`."""
    loop = asyncio.get_running_loop()
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    coordinator = Coordinator(fleet_of(shard, loop, pool=Inline()))

    async def listen(number: int, silent_s: float) -> float:
        async for reply in coordinator.service.Member(worker(number, silent_s), None):
            if reply.HasField("refused"):
                break
        return loop.time()

    lives = loop.create_task(listen(0, 1e9))
    try:
        return await listen(1, silent_s)
    finally:
        lives.cancel()
        coordinator.stop()


@pytest.mark.parametrize("silent_s", [3.0, 3.049, 3.05, 3.051, 3.0999, 7.77])
def test_a_silent_worker_is_evicted_on_all_shards_at_the_first_look_after_its_lease(
    monkeypatch: pytest.MonkeyPatch, silent_s: float
) -> None:
    """Wherever its last heartbeat lay between two looks; from then on nothing waits for a timer."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        clock = SimpleNamespace(monotonic=runner.get_loop().time)
        for module in (room, lease_watch):
            monkeypatch.setattr(module, "time", clock)
        taken_s = runner.run(evicted_s(silent_s)) - silent_s
    assert LEASE_S - ROUNDING_S <= taken_s <= LEASE_S + lease_watch.LOOK_S + ROUNDING_S


def test_looks_at_leases_are_so_close_that_orders_have_the_rest_of_the_time():
    """And so close that a coordinator which looks in time is not taken for one that was held up."""
    assert lease_watch.LOOK_S <= AFTER_LEASE_S - OF_ORDERS_S
    assert lease_watch.LOOK_S < STALL_S


def test_what_is_waited_for_once_a_server_is_ready_again_adds_up_to_less_than_the_target():
    """Each of these runs its own retries; the worst case is the one that comes about last."""
    channel_s = JITTER * dict(CLIENT)["grpc.max_reconnect_backoff_ms"] / 1000
    says_again_s = max(retry.BACKOFF_S)
    found_s = channel_s + says_again_s  # the coordinator, by workers
    followed_s = follower.RETRY_S + recovery.AGAIN_S + says_again_s  # it has refused them until all follow
    reached_s = max(channel_s, *retry.BACKOFF_S)  # a shard, by who has not joined again
    moved_s = connection.AGAIN_LIMIT_S + max(retry.BACKOFF_S)  # the same, where it is elsewhere
    joined_s = max(found_s, followed_s) + retry.PAUSE_S
    assert max(joined_s, reached_s, moved_s) <= GOES_ON_S - OF_JOINS_S
