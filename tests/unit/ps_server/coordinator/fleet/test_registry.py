"""Which of several processes that say they are one shard is let in, and with which generation."""

from __future__ import annotations

import pytest

from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.fleet.registry import ShardRegistry
from ps_wire.errors import Fenced
from ps_wire.v1 import coordinator_pb2 as pb


def standings(folder=None) -> ShardRegistry:
    return ShardRegistry(Generations(folder))


def register(boot: bytes, generation: int = 0, **fields) -> pb.Register:
    return pb.Register(shard=1, num_shards=2, boot=boot, generation=generation, **fields)


def test_a_shard_that_follows_again_keeps_its_generation():
    it = standings()
    granted, lost = it.register(register(b"a"))
    assert (granted, lost) == (2, False)
    assert it.register(register(b"a", granted)) == (granted, False)


def test_another_process_has_lost_the_state_and_fences_the_one_before():
    """The older one is refused whenever it comes; the newer one goes on."""
    it = standings()
    older, _ = it.register(register(b"a"))
    newer, lost = it.register(register(b"b"))
    assert lost
    assert newer > older
    with pytest.raises(Fenced, match="another process was started as shard 1"):
        it.register(register(b"a", older))
    assert it.register(register(b"b", newer)) == (newer, False)


def test_a_shard_that_did_not_hear_what_a_new_coordinator_granted_holds_nothing_that_counts():
    """It is of the time before: the grant says so again, it is fenced by nobody, and all jobs go back."""
    it = standings()
    granted, _ = it.register(register(b"a", 1))
    assert it.register(register(b"a", 1)) == (granted, True)
    assert granted > 1


def test_a_shard_that_did_not_hear_its_first_grant_has_lost_nothing():
    """Its stream broke before: it has carried out no order."""
    it = standings()
    granted, _ = it.register(register(b"a"))
    assert it.register(register(b"a")) == (granted, False)


def test_a_new_coordinator_voids_what_shards_hold():
    """It knows nothing of them; they get generations greater than all before."""
    it = standings()
    granted, lost = it.register(register(b"a", 1))
    assert granted == 2
    assert not lost


def test_a_coordinator_that_shards_have_left_behind_is_fenced(tmp_path):
    it = standings(tmp_path)
    with pytest.raises(Fenced, match=r"another shard 0.*--state-dir was lost.*start all shards anew"):
        it.register(register(b"a", 3, coordinator=it.generations.own + 1))


def test_without_a_state_directory_coordinators_cannot_be_told_apart():
    assert standings().register(register(b"a", 3, coordinator=7)) == (2, False)
