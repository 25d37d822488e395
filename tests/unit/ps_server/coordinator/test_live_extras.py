"""What workers keep to themselves, for readers that wait for the same answer."""

from __future__ import annotations

import asyncio

from ps_server.coordinator.live_extras import LIVE, LiveExtras
from ps_server.coordinator.state_store import StateStore
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

    async def passes() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(run())
