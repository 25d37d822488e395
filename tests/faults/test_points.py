"""A worker is killed or stopped at each point of the life of a push and of a pull: what the others see.

`injector.py` holds a process at the point, so nothing depends on timing; `replay.py` has the laws.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.servers import until

from .controller import Faults, Stop
from .points import POINTS
from .trainer import OVER
from .world import STEPS, World

pytestmark = [pytest.mark.integration, pytest.mark.fault]

# Points that are about one worker: at the others a shard works for all of them.
OF_ONE = (
    "worker before a push is queued",
    "worker after a push is queued",
    "worker before PUSH is sent",
    "worker after PUSH is sent",
    "server before PUSH is taken",
    "server after PUSH is taken",
    "server before ACK is sent",
    "server after ACK is sent",
    "worker before ACK is taken",
    "worker after ACK is taken",
    "worker before weights are asked for",
    "worker after weights are asked for",
    "worker before PULL is sent",
    "worker after PULL is sent",
    "server before PULL is taken",
    "server after PULL is taken",
    "worker before PULLED is taken",
    "worker after PULLED is taken",
    "worker before the wait for weights",
    "worker after the wait for weights",
)
PAUSED = (
    "worker before PUSH is sent",
    "worker after PUSH is sent",
    "worker before ACK is taken",
    "worker before PULL is sent",
    "worker before PULLED is taken",
    "worker after the wait for weights",
)


@pytest.mark.parametrize("world", ["bsp"], indirect=True)
def test_every_point_of_the_life_of_a_push_and_a_pull_is_reached(world: World, faults: Faults) -> None:
    """Over shared memory, which has one answer more than the others."""
    workers = [world.begin(worker, "2", carrier="auto", steps=3) for worker in (0, 1)]
    assert [worker.wait_end() for worker in workers] == [0, 0]
    reached = set.union(*faults.reached.values())
    assert reached == set(POINTS)
    world.check(0, 1)


def arm(faults: Faults, point: str, victim: int, step: int) -> Stop:
    """Where a worker is to wait: at its own point, or at that of a shard that has its frame."""
    if point.startswith("worker"):
        return faults.arm(f"worker {victim}", point, since=step)
    return faults.arm("server 1", point, worker=victim, since=step)


@pytest.mark.parametrize("world", ["bsp", "ssp:1"], indirect=True)
def test_law_14_wherever_workers_are_killed_the_others_go_on_within_their_lease(
    world: World, faults: Faults, tmp_path: Path
) -> None:
    """One worker for every point that is one worker's alone, each killed there with SIGKILL, in one job.

    Which lasts until all are: one that was late, and evicted before, comes to its point when it is back.
    """
    over = tmp_path / "over"
    victims = dict(enumerate(OF_ONE, start=1))
    size = f"{len(victims) + 1}"
    stops = {worker: arm(faults, point, worker, step=2) for worker, point in victims.items()}
    processes = {worker: world.begin(worker, size, extra={OVER: str(over)}) for worker in victims}
    other = world.begin(0, size, extra={OVER: str(over)})
    for _ in stops:
        stop = faults.next_stop()
        (worker,) = [worker for worker in stops if stops[worker] is stop]
        processes[worker].signal(signal.SIGKILL)
        stop.go()
    over.touch()
    assert other.wait_end() == 0
    status = world.servers.status(world.job)
    assert status is not None
    assert status.events["evict"] >= len(victims)
    assert {process.wait_end() for process in processes.values()} == {-signal.SIGKILL}
    world.check(0)


@pytest.mark.parametrize("world", ["bsp", "asp"], indirect=True)
def test_law_14_nothing_of_a_worker_that_was_paused_is_taken_after_its_eviction(
    world: World, faults: Faults
) -> None:
    """SIGSTOP at each of its points until it is evicted; then it goes on, and joins again by itself."""
    victims = dict(enumerate(PAUSED, start=1))
    size = f"{len(victims) + 1}"
    stops = {worker: arm(faults, point, worker, step=2) for worker, point in victims.items()}
    last = faults.arm("worker 0", "worker before a push is queued", step=STEPS - 1)
    processes = {worker: world.begin(worker, size) for worker in victims}
    other = world.begin(0, size)
    left = dict(stops)
    while left:
        stop = faults.next_stop()
        if stop is last:  # under asp worker 0 may be there before them
            continue
        (worker,) = [worker for worker in left if left[worker] is stop]
        processes[worker].signal(signal.SIGSTOP)
        left.pop(worker).go()
    for worker in victims:
        until(lambda worker=worker: world.state(worker) == "lost", f"worker {worker} is evicted")
    last.wait()
    for process in processes.values():
        process.signal(signal.SIGCONT)
    for process in processes.values():
        process.wait_line(r"joined again, as incarnation \d+")
    last.go()
    assert {process.wait_end() for process in [other, *processes.values()]} == {0}
    world.check(0, *victims)
