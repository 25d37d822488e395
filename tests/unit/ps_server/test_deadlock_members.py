"""Law 17 with members that die, pause, join and leave: every reachable state is visited, none is stuck.

Laws 5, 12 and 14 hold at every transition, and at every end what an evicted incarnation pushed counts
everywhere, or was dropped, or is counted as mixed.
"""

from __future__ import annotations

from collections import deque

import pytest

from ps_wire.consistency import BSP, SSP

from .membership_world import World, check, check_limits


def search(start: World) -> tuple[int, int, int]:
    """Visits every reachable state; returns how many there are, are ends, and ends with a mixed step."""
    seen, queue = {start.key()}, deque([start])
    ends = mixed = 0
    while queue:
        world = queue.popleft()
        assert world.done or any(world.honest()), f"stuck: {world.key()}"
        if world.done:
            ends += 1
            mixed += any(machine.mixed_steps for machine in world.partitions)
            check_limits(world)
        versions = [machine.version for machine in world.partitions]
        for event in world.events():
            after = world.fork()
            after.step(event)
            check(after)
            assert all(now.version >= old for now, old in zip(after.partitions, versions, strict=True))
            if (state := after.key()) not in seen:
                seen.add(state)
                queue.append(after)
    return len(seen), ends, mixed


@pytest.mark.parametrize("model", [BSP(), SSP(1)], ids=str)
def test_law_17_a_worker_that_dies_blocks_nobody(model):
    """Wherever its last pushes have come to."""
    states, ends, mixed = search(World.start(model, steps=(2, 1), late=(), deaths=1, pauses=0))
    assert states > 2000
    assert ends > 10
    assert mixed > 0


@pytest.mark.parametrize("model", [BSP(), SSP(0)], ids=str)
def test_law_17_a_worker_that_joins_in_mid_run_blocks_nobody(model):
    """At whichever moment, also after all others have left."""
    states, ends, _ = search(World.start(model, steps=(2, 1), late=(1,), deaths=0, pauses=0))
    assert states > 2000
    assert ends > 1


@pytest.mark.parametrize("model", [BSP(), SSP(1)], ids=str)
def test_law_17_a_worker_that_pauses_for_longer_than_its_lease_comes_back(model):
    """Whatever of it arrives late is refused behind the fence."""
    states, ends, mixed = search(World.start(model, steps=(1, 2), late=(), deaths=0, pauses=1))
    assert states > 5000
    assert ends > 10
    assert mixed > 0
