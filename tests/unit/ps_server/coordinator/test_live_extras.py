"""What workers keep to themselves, for readers that wait for the same answer."""

from __future__ import annotations

import asyncio

import pytest

from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.live_extras import LIVE, LiveExtras
from ps_server.coordinator.state_store import StateStore
from ps_wire.errors import Evicted
from tests.unit.ps_server.desk import Desk, alone


def test_who_waits_beside_one_that_gives_up_asks_again_and_is_answered():
    """A reader's call ends while another one waits for the same answer."""

    async def run() -> None:
        desk, states = Desk(2), StateStore()
        lowest, _ = desk.start()
        room, live = alone(desk.job), LiveExtras(states)
        gives_up, waits = (asyncio.create_task(live.get(room, 0)) for _ in range(2))
        await passes()
        gives_up.cancel()
        await passes()
        states.put(desk.job.name, LIVE, b"buffers")
        live.uploaded(desk.job.name, lowest, 3, begins=False)
        await passes()
        assert gives_up.cancelled()
        assert waits.done()
        assert (waits.result().blob, waits.result().step) == (b"buffers", 3)

    asyncio.run(run())


def test_a_joiner_that_is_evicted_while_it_waits_for_a_position_gets_none():
    """All were evicted, and what one of them has noted is older than where the joiner will enter."""

    async def run() -> None:
        desk, states = Desk(2), StateStore()
        killed, trains = desk.start()
        states.put(desk.job.name, "note/0", b"old")
        desk.lose(killed)
        joiner, live = desk.join(0), LiveExtras(states)
        waits = asyncio.create_task(live.for_joiner(alone(desk.job), joiner))
        await passes()
        assert not waits.done()
        desk.lose(joiner, trains)
        live.gone(desk.job.name, trains)
        with pytest.raises(Evicted):
            await waits

    asyncio.run(run())


def test_where_nobody_trains_any_more_a_joiner_hears_of_who_was_evicted_last_how_many_steps_count():
    """It had come further than one that was killed before, and shards have yet to say how far."""

    async def run() -> None:
        desk, states = Desk(2), StateStore()
        killed, trains = desk.start()
        states.put(desk.job.name, "note/0", b"old")
        states.put(desk.job.name, "note/1", b"new")
        desk.clocks = {0: 33}
        desk.lose(killed)
        joiner, live = desk.join(0), LiveExtras(states)
        runner = Deciding(desk)
        waits = asyncio.create_task(live.for_joiner(runner, joiner))
        await passes()
        desk.held, desk.clocks = True, {0: 34}
        desk.lose(trains)
        live.gone(desk.job.name, trains)
        await passes()
        assert not waits.done()
        runner.decided.set()
        found = await waits
        assert (found.blob, dict(found.clocks)) == (b"new", {0: 34})

    asyncio.run(run())


class Deciding(JobRunner):
    """A room whose shards answer when the test says so."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.job, fleet=None, on_empty=lambda _: None)  # type: ignore[arg-type]
        self.decided = asyncio.Event()
        self._desk = desk

    async def settle(self) -> None:
        await self.decided.wait()
        self._desk.settle()


async def passes() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
