"""Law 17: every reachable state of small jobs is visited, and in each somebody can go on until all are done.

The machines are the real ones. A state is what decides the future: clocks, versions, what is staged and who
waits, where each worker is, and which faults and deaths are left. Counters are not part of it, but law 5
and law 12 are checked after every transition. Every honest event brings its worker further and faults are
bounded, so a run that never gets stuck ends.
"""

from __future__ import annotations

from collections import deque

import pytest

from ps_server.agreement.gate import gate_of
from ps_server.shard.partition.machine import Contribution, Pull
from ps_wire.spec.consistency import ASP, BSP, SSP
from tests.search.simulator import Job, World, check_books, check_gaps
from tests.unit.ps_server.alone import Alone


def key(world: World) -> tuple[object, ...]:
    machines = [
        (
            machine.version,
            machine.clocks,
            tuple((item.worker, item.step, item.abstains) for item in machine.staged),
            tuple((pull.worker, pull.clock) for pull in machine.waiting),
        )
        for machine in world.partitions
    ]
    links = [(link.at.value, link.step, link.taken) for link in world.links.values()]
    orders = frozenset(world.complete), frozenset(world.verdicts.items())
    return (*machines, *links, orders, world.faults, world.deaths)


def search(job: Job) -> tuple[int, int, int]:
    """Visits every reachable state; returns how many there are, are ends, and have somebody at the gate."""
    start = World.start(job)
    seen, queue = {key(start)}, deque([start])
    ends = waits = 0
    while queue:
        world = queue.popleft()
        assert world.done or any(world.honest()), f"stuck: {key(world)}"
        ends += world.done
        waits += any(machine.waiting for machine in world.partitions)
        versions = [machine.version for machine in world.partitions]
        for event in world.events():
            after = world.fork()
            after.step(event)
            check_books(after)
            check_gaps(after)
            assert all(now.version >= old for now, old in zip(after.partitions, versions, strict=True))
            if (state := key(after)) not in seen:
                seen.add(state)
                queue.append(after)
    return len(seen), ends, waits


@pytest.mark.parametrize(("faults", "deaths"), [(2, 0), (1, 1), (0, 2)])
@pytest.mark.parametrize("model", [BSP(), SSP(0), SSP(1), SSP(2), ASP()], ids=str)
def test_law_17_three_workers_with_unequal_batches_never_get_stuck(model, faults, deaths):
    """Three workers, one partition: whoever is slow, abstains, repeats itself or dies, the others end."""
    longest = 4 if model == SSP(2) else 3  # one step more than s + 1: the gate closes
    everyone = {(0, 0), (1, 0), (2, 0)}
    job = Job(
        consistency=model,
        batches=(1, longest, 2),
        abstains=frozenset({*everyone, (1, 1)}),
        faults=faults,
        deaths=deaths,
    )
    states, ends, waits = search(job)
    assert states >= 500
    assert ends >= 3
    assert waits > 0 or model == ASP()


@pytest.mark.parametrize(("batches", "num_partitions"), [((2, 2, 1), 1), ((2, 2), 2)])
def test_law_17_a_coordinator_that_drops_pushes_blocks_nobody(batches, num_partitions):
    """Where a coordinator decides each step when it is complete everywhere, those it drops go on too."""
    drops = frozenset({(1, 0), (0, 1)})
    job = Job(
        consistency=BSP(),
        batches=batches,
        num_partitions=num_partitions,
        drops=drops,
        coordinated=True,
        faults=1,
    )
    states, ends, waits = search(job)
    assert states >= 300
    assert ends == 2
    assert waits > 0


@pytest.mark.parametrize(("batches", "num_partitions"), [((1, 3, 2), 1), ((2, 3), 2)])
@pytest.mark.parametrize("coordinated", [False, True])
@pytest.mark.parametrize("model", [BSP(), SSP(1)], ids=str)
def test_law_17_withheld_pushes_block_nobody(model, coordinated, batches, num_partitions):
    """Pushes that may not be applied advance clocks as abstentions, deaths in undecided steps included."""
    job = Job(
        consistency=model,
        batches=batches,
        num_partitions=num_partitions,
        withheld=frozenset({(0, 0), (1, 0), (1, 1)}),
        coordinated=coordinated,
        deaths=1,
    )
    states, ends, waits = search(job)
    assert states >= 300
    assert ends >= 2
    assert waits > 0


def test_law_17_a_suspended_bsp_job_can_go_on():
    """All die in a step that one partition closed and another had no push of; who comes back can pull."""
    partitions = [Alone(gate_of(BSP())) for _ in range(2)]
    for partition in partitions:
        partition.join(0, 1, 0, 0.0)
    partitions[0].push(Contribution(worker=0, incarnation=1, step=0, payload="g"), 0.0)
    for partition in partitions:
        partition.leave(0, 1, 1.0)
    clock = max(partition.newest_clock for partition in partitions)
    for partition in partitions:
        partition.join(0, 2, clock, 0.0)
        (answer,) = partition.pull(Pull(worker=0, incarnation=2, clock=clock))
        assert answer.pulls
