"""A shard that follows the coordinator: what it keeps of what it holds when it follows again."""

from __future__ import annotations

import asyncio

from ps_server.follower import Follower
from ps_server.generations import Generations
from ps_server.hand_off import Inherited
from ps_server.shard import Shard
from ps_server.standings import Standings
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2


def follower() -> Follower:
    shard = Shard(index=1, num_shards=2, memory_limit_bytes=None)
    return Follower(
        shard,
        address="a:1",
        advertise="b:1",
        inherited=Inherited(boot=b"b"),
        on_ready=lambda _: None,
        on_fenced=lambda _: None,
    )


def follow(it: Follower, standings: Standings) -> bool:
    """A stream is made; whether its part of the jobs is lost."""
    generation, lost = standings.register(it.register())
    it._begin(pb.Granted(generation=generation, coordinator=standings.generations.own))
    return lost


def restore(it: Follower, generation: int) -> None:
    job = spec_pb2.Job(name="j", consistency="bsp", num_workers=1)
    order = pb.Order(number=9, restore=pb.Restore(job=job, generation=generation, incarnation=1))
    done = asyncio.run(it._carry_out(order))
    assert not done.HasField("refused")


def test_a_shard_that_follows_again_after_a_rollback_keeps_what_it_was_restored_to():
    """Its stream broke after it had loaded its part: it is of the rollback's generation."""
    it, standings = follower(), Standings(Generations(None))
    assert not follow(it, standings)
    restore(it, standings.raise_all())
    assert not follow(it, standings)
    assert [entry.name for entry in it._shard.jobs()] == ["j"]


def test_a_shard_that_missed_a_rollback_is_restored_as_of_the_generation_that_it_is_granted():
    """Its stream broke before the order came, which comes again: no worker takes it for an older process."""
    it, standings = follower(), Standings(Generations(None))
    follow(it, standings)
    generation = standings.raise_all()
    follow(it, standings)
    restore(it, generation)
    assert it._shard.generation == standings.known[1][1] == generation
