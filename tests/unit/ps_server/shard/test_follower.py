"""A shard that follows the coordinator: what it keeps of what it holds when it follows again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import grpc.aio
import pytest

from ps_server.agreement.clipping import Norm
from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.fleet.registry import ShardRegistry
from ps_server.rpc.errors import ErrorInterceptor
from ps_server.shard import follower as follower_module
from ps_server.shard.follower import KEPT_ANSWERS, Follower
from ps_server.shard.hand_off import Inherited
from ps_server.shard.shard import Shard
from ps_wire.access.channel import dial_async
from ps_wire.errors import Fenced, PsError
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import coordinator_pb2_grpc as rpc
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.fleets import fleet_of
from tests.until import LIMIT_S


def follower(
    on_fenced: Callable[[Fenced], None] = lambda _: None,
    on_misplaced: Callable[[PsError], None] = lambda _: None,
    num_shards: int = 2,
    **inherited: int,
) -> Follower:
    shard = Shard(index=1, num_shards=num_shards, memory_limit_bytes=None)
    return Follower(
        shard,
        address="a:1",
        advertise="b:1",
        inherited=Inherited(boot=b"b", **inherited),
        on_ready=lambda _: None,
        on_fenced=on_fenced,
        on_misplaced=on_misplaced,
    )


def follow(it: Follower, standings: ShardRegistry) -> bool:
    """A stream is made; whether its part of the jobs is lost."""
    generation, lost = standings.register(it.register())
    it._begin(pb.Granted(generation=generation, coordinator=standings.generations.own))
    return lost


def restore(it: Follower) -> None:
    it._shard.open_part = lambda *_: nullcontext()  # of a snapshot that has no table
    job = spec_pb2.Job(name="j", consistency="bsp", num_workers=1)
    order = pb.Order(number=9, restore=pb.Restore(job=job, incarnation=1))
    done = it._execute(order)
    assert not done.HasField("refused")


def test_a_shard_that_follows_again_after_a_rollback_keeps_what_it_was_restored_to():
    """Its stream broke after it had loaded its part: it is of the generation that it was given."""
    it, standings = follower(), ShardRegistry(Generations(None))
    assert not follow(it, standings)
    restore(it)
    assert not follow(it, standings)
    assert [entry.name for entry in it._shard.jobs()] == ["j"]


def test_an_order_that_comes_again_is_answered_and_not_carried_out_again():
    """Its answer was lost with the stream; the job that has begun since is not given up with it."""
    it = follower()
    job = spec_pb2.Job(name="j", consistency="bsp", num_workers=1)
    drop = pb.Order(number=7, drop_job=pb.DropJob(job="j"))
    admit = pb.Order(number=8, admit=pb.AdmitMember(job=job, worker=0, incarnation=1))
    first, _, again = [it._execute(order) for order in (drop, admit, drop)]
    assert first == again
    assert [entry.name for entry in it._shard.jobs()] == ["j"]


def test_an_order_that_this_release_does_not_know_is_refused_by_name_and_the_shard_follows_on():
    """A newer coordinator sends it: the shard says what to do, and takes the next one."""

    async def take() -> list[pb.OrderDone]:
        it, answers = follower(), asyncio.Queue()
        unknown = pb.Order(number=7)
        unknown.MergeFromString(b"\x82\xfa\x01\x00")  # field 4000, empty
        await it._receive(unknown, answers)
        await it._receive(pb.Order(number=8, drop_job=pb.DropJob(job="j")), answers)
        return sorted([(await answers.get()).done for _ in "12"], key=lambda done: done.number)

    refused, done = asyncio.run(take())
    assert (refused.number, refused.refused.error) == (7, "ConfigurationRefused")
    assert "order 7 (of another release)" in refused.refused.message
    assert "install the same version on all servers" in refused.refused.message
    assert (done.number, done.HasField("refused")) == (8, False)


def test_an_older_coordinator_than_was_followed_is_not_followed():
    """It does not know of the newer one, which has given the shard what it holds."""
    it = follower(coordinator=7)
    with pytest.raises(Fenced, match="of generation 6"):
        it._begin(pb.Granted(generation=9, coordinator=6))
    it._begin(pb.Granted(generation=9, coordinator=7))
    assert it._shard.generation == 9


def test_what_is_undecided_is_said_again_over_a_new_stream():
    """It was lost with the stream before, or what followed from it was."""
    it, said = follower(), []
    norm = Norm(job="j", table=0, opening=1, step=3, squares=2.0)
    it._shard.pending = lambda: [norm]
    it._shard.reports.connect(said.append)
    granted = pb.Order(granted=pb.Granted(generation=1, coordinator=1))
    asyncio.run(it._receive(granted, asyncio.Queue()))
    assert said == [norm]


def test_only_the_last_answers_are_kept():
    """A coordinator asks again for those that are under way, which are few."""
    it = follower()
    for number in range(KEPT_ANSWERS + 5):
        it._execute(pb.Order(number=number, drop_job=pb.DropJob(job="j")))
    assert list(it.done) == list(range(5, KEPT_ANSWERS + 5))


async def meet(it: Follower, folder: Path) -> tuple[str, list[Fenced]]:
    """A follower comes to a coordinator that has just started: what it makes of it, and that one of it."""
    fenced: list[Fenced] = []
    own = Shard(index=0, num_shards=2, memory_limit_bytes=None)
    shards = fleet_of(own, asyncio.get_running_loop(), Generations(folder))
    coordinator = Coordinator(shards, on_fenced=fenced.append)
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    rpc.add_CoordinatorServicer_to_server(coordinator.service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with dial_async(f"127.0.0.1:{port}") as channel:
            return await it._follow_on(channel), fenced
    finally:
        coordinator.stop()
        await server.stop(None)


def test_a_shard_that_comes_to_a_coordinator_that_was_left_behind_keeps_what_it_holds(tmp_path: Path):
    """It is that one which ends, and the shard goes on looking for the newer one, which it has followed."""
    it = follower(on_fenced=lambda error: pytest.fail(error.message), coordinator=7)
    restore(it)
    reason, fenced = asyncio.run(meet(it, tmp_path))
    assert "has followed a coordinator of generation 7" in reason
    assert [error.facts["coordinator"] for error in fenced] == [7]
    assert [entry.name for entry in it._shard.jobs()] == ["j"]


@pytest.mark.parametrize(
    ("num_shards", "protocol", "said"),
    [
        (3, PROTOCOL, "registers as shard 1/3; the coordinator is shard 0/2: give all servers"),
        (2, PROTOCOL + 1, f"speaks protocol {PROTOCOL + 1}, this one {PROTOCOL}: install the same version"),
    ],
)
def test_a_shard_that_has_no_place_in_the_service_is_told_so(
    num_shards: int, protocol: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another number of shards, or another release: to come again does not help."""
    misplaced: list[PsError] = []
    monkeypatch.setattr(follower_module, "PROTOCOL", protocol)
    it = follower(on_misplaced=misplaced.append, num_shards=num_shards)
    asyncio.run(meet(it, tmp_path))
    (error,) = misplaced
    assert said in error.message
    assert error.exit_code == 78


async def lose(it: Follower, monkeypatch: pytest.MonkeyPatch, *, again: bool) -> None:
    """Its coordinator cannot be reached; then this server is stopped, or it tries again."""
    lost, tried_again = asyncio.Event(), asyncio.Event()

    async def follow_on(_: object) -> str:
        (tried_again if lost.is_set() else lost).set()
        return "gone"

    monkeypatch.setattr(follower_module, "RETRY_S", 0.0 if again else LIMIT_S)
    monkeypatch.setattr(it, "_follow_on", follow_on)
    following = asyncio.create_task(it.run())
    async with asyncio.timeout(LIMIT_S):
        await (tried_again if again else lost).wait()
    following.cancel()


@pytest.mark.parametrize(
    ("followed", "again", "said"), [(1, True, "WARNING"), (0, True, "INFO"), (1, False, None)]
)
def test_a_start_and_an_end_that_go_well_have_no_warning_of_a_coordinator_that_is_gone(
    followed: int,
    again: bool,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """It may start after this shard, and stop before it."""
    with caplog.at_level("INFO", "ps_server"):
        asyncio.run(lose(follower(coordinator=followed), monkeypatch, again=again))
    levels = [record.levelname for record in caplog.records if "trying again" in record.getMessage()]
    assert levels == ([said] if said else [])
