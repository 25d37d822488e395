"""Where those who train stand while somebody comes late: at the end of the round of who is ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ps_server.agreement.gate import gate_of
from ps_server.coordinator.jobs.actions import ToMember
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.late_joins import LateJoins
from ps_wire.spec.consistency import BSP
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.tables import group, table_spec
from tests.until import LIMIT_S

SPEC = table_spec("SGD", group(lr=1.0))


def member(worker: int, **fields: Any) -> Member:
    return Member(
        worker=worker, incarnation=1, host="h", pid=1, state=MemberState.JOINED, num_tables=2, **fields
    )


class Desk:
    """A job of two tables, as a late join sees it; what members are told is in `said`, by worker."""

    def __init__(self, members: list[Member]) -> None:
        self.said: dict[int, list[pb.MemberReply]] = {it.worker: [] for it in members}
        self.made: list[Member] = []
        self.idle = True
        self.job = SimpleNamespace(
            name="j",
            gate=gate_of(BSP()),
            num_started=2,
            state=JobState.RUNNING,
            roster=SimpleNamespace(here=lambda: members),
            make_table=lambda made, *_: self.made.append(made) or [],
        )

    def do(self, actions: list[ToMember]) -> None:
        for action in actions:
            self.said[action.worker].append(action.reply)


async def turns(over: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        for _ in iter(lambda: bool(over()), True):
            await asyncio.sleep(0)


def test_those_who_train_go_on_to_the_end_of_the_round_of_who_is_ahead():
    """Else who is ahead would wait, in the middle of its round, for a push of who stands already."""

    async def run() -> None:
        ahead, behind, late = member(0), member(1), member(2, late=True)
        late.num_tables = 0
        desk: Any = Desk([ahead, behind, late])
        joins = LateJoins()
        joins.make_table(desk, late, SPEC, spec_pb2.Table())
        await turns(lambda: desk.said[0] and desk.said[1])
        number = desk.said[0][-1].hold.number
        joins.holding("j", ahead, number, {0: 6, 1: 6}, held=False)
        assert not desk.said[1][-1].hold.named
        joins.holding("j", behind, number, {0: 5, 1: 5}, held=False)
        await turns(lambda: desk.said[0][-1].hold.named and desk.said[1][-1].hold.named)
        for worker in (0, 1):
            assert dict(desk.said[worker][-1].hold.beyond) == {0: 6, 1: 6}
        assert desk.made == []
        for it in (ahead, behind):
            joins.holding("j", it, number, {0: 7, 1: 7}, held=True)
        await turns(lambda: desk.made)
        assert dict(late.enters) == {0: 7, 1: 7}
        joins.stop()

    asyncio.run(run())
