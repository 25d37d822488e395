"""Law 13 over TCP, frame by frame: each kind of fault happens to each kind of frame, in one run."""

from __future__ import annotations

import pytest

from ps_wire.frames.frame import Kind

from .middle import Do, Fault, Middle
from .world import World

pytestmark = [pytest.mark.integration, pytest.mark.fault]

# Two of a step go one behind the other; a PULL that overtook a push would come before its clock.
NEIGHBOURS = (Kind.PUSH, Kind.ACK, Kind.PULLED)
KINDS = (Kind.PUSH, Kind.ACK, Kind.PULL, Kind.PULLED)


def schedule() -> list[Fault]:
    """One fault a step, from step 2 on."""
    cases = [(kind, do) for kind in KINDS for do in Do if do is not Do.REORDER or kind in NEIGHBOURS]
    return [Fault(kind=kind, step=step, do=do) for step, (kind, do) in enumerate(cases, start=2)]


@pytest.mark.parametrize("world", ["bsp", "ssp:1", "asp"], indirect=True)
def test_law_13_whatever_happens_to_a_frame_its_push_is_applied_once(world: World) -> None:
    """Applied once, as it was pushed; the worker reads its own writes, and another one is not disturbed."""
    faults = schedule()
    steps = len(faults) + 3
    with Middle(world.servers.addresses[1], world.data_ports[1], faults) as middle:
        workers = [
            world.begin(worker, "2", steps=steps, reach=reach, lease_s=60.0)
            for worker, reach in enumerate((f"{world.servers.addresses[0]},{middle.address}", None))
        ]
        for _ in faults:
            middle.next_fault().go()
        assert [worker.wait_end() for worker in workers] == [0, 0], workers[0].text
        assert not middle.waiting
    world.check(0, 1)
    for worker in (0, 1):
        assert world.servers.ledger(1, world.job, worker).applied == 2 * steps
