"""What ranks have beside the tables at one step becomes one state, of which each takes its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from ps_wire.spec.consistency import parse
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.data.position import Positions
from ps_worker.group.ending import Ending
from ps_worker.group.stage_traffic import StageTable, StageTraffic
from ps_worker.group.step_header import StepHeader
from ps_worker.job.group_capture import (
    CUT,
    FORETELLS,
    FORETELLS_STAGES,
    GroupCapture,
    merged,
    of_rank,
)
from ps_worker.job.side_state import SideState
from ps_worker.membership.snapshot_promise import Put, SnapshotPromise
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from tests.unit.ps_worker.group.wires import Town, town
from tests.until import LIMIT_S


class Rank:
    """One rank with one table, that takes steps."""

    foretells = FORETELLS

    def __init__(self, group: Town, rank: int) -> None:
        channel = group.channels[rank]
        self.step = 0
        self.leads = rank == 0
        self.captured: list[int] = []
        self.capture = GroupCapture(channel, {CUT: lambda: self.promise})
        self.promise = SnapshotPromise(
            lambda: {0: self.step}, self._state, hand=self._take, foretells=self.foretells * self.leads
        )
        self.header = StepHeader(channel, Ending(lambda: False), 0, self.capture)
        self._rank = rank

    def _state(self) -> bytes:
        """Named as those of a script; each rank has another one."""
        at = torch.tensor([self._rank, self.step])
        return model_table.pack({"0/buffer": at, "@state/@random/0": at, "@positions": at[:1].clone()})

    def _take(self, number: int, blob: bytes, put: Put) -> None:
        self.captured.append(self.step)
        self.capture.take(CUT, number, blob, put)

    def take(self, steps: int, before: Callable[[int], None] = lambda step: None) -> None:
        for _ in range(steps):
            self.promise.begin()
            before(self.step)
            self.meet()
            self.step += 1

    def meet(self) -> None:
        """All ranks say what they have of the step."""
        self.header.begin(self.step, there=True, weight=1.0, hyper=1)


SGD = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),)))


class Stage(Rank):
    """One stage of a pipeline; with tied weights all hear of each other before they go on."""

    foretells = FORETELLS_STAGES

    def __init__(self, group: Town, rank: int, *, tied: bool) -> None:
        super().__init__(group, rank)
        parameters = tuple(ParameterSpec(name=name, shape=(3,)) for name in "ab")
        plan = Plan(TableSpec(number=0, parameters=parameters, optimizer=SGD, stages=(0, 1)), 1)
        holders = StageTable(holders=[(0,), (0, 1) if tied else (1,)])
        flat = [torch.zeros(bucket.numel) for bucket in plan.buckets]
        self.traffic = StageTraffic(
            group.channels[rank], Ending(lambda: False), 0, flat, plan, holders, parse("bsp"), self.capture
        )
        self._flat = flat

    def meet(self) -> None:
        """The weights of the next step are here."""
        versions = [self.step] * len(self._flat)
        self.traffic.spread(self.step + 1, lambda: versions, lambda _: self._flat, lambda: ())


class Coordinator:
    """Asks the leader, and gets what it puts."""

    def __init__(self) -> None:
        self.put: list[tuple[int, bytes]] = []
        self.there = threading.Event()

    def ask(self, leader: Rank, number: int) -> dict[int, int]:
        return leader.promise.prepare(number, self._keep)

    def _keep(self, number: int, blob: bytes) -> None:
        self.put.append((number, blob))
        self.there.set()


def test_all_ranks_capture_at_one_step_and_the_leader_puts_what_all_have() -> None:
    coordinator = Coordinator()
    with town(3) as group:
        ranks = [Rank(group, rank) for rank in range(3)]

        def asked(step: int) -> None:
            if step == 2:  # the others have begun step 2, too, and may not begin step 3 unheard
                assert coordinator.ask(ranks[0], 9) == {0: 3}
                ranks[0].promise.arm(9, {0: 4})

        assert group.run(lambda it: ranks[it].take(6, asked if it == 0 else lambda _: None)) == [None] * 3
        assert coordinator.there.wait(LIMIT_S)

    assert [rank.captured for rank in ranks] == [[4]] * 3
    ((number, blob),) = coordinator.put
    assert number == 9
    state = model_table.unpack(blob)
    for rank in range(3):
        assert {name: it.tolist() for name, it in of_rank(state, rank).items()} == {
            "0/buffer": [rank, 4],
            "@state/@random/0": [rank, 4],
            "@positions": [0],  # all ranks go on where rank 0 was
        }


@pytest.mark.parametrize("tied", [False, True])
def test_all_stages_capture_at_one_step_though_they_hear_of_a_cut_a_step_later(tied: bool) -> None:
    """The leader tells them of it until it has captured; each captures once, and puts nothing of its own."""
    coordinator = Coordinator()
    with town(2) as group:
        ranks = [Stage(group, rank, tied=tied) for rank in range(2)]

        def asked(step: int) -> None:
            if step == 2:  # step 3 the other may begin before it hears
                steps = coordinator.ask(ranks[0], 9)
                assert steps == {0: 4}
                ranks[0].promise.arm(9, steps)

        assert group.run(lambda it: ranks[it].take(8, asked if it == 0 else lambda _: None)) == [None] * 2
        assert coordinator.there.wait(LIMIT_S)

    assert [rank.captured for rank in ranks] == [[4]] * 2
    ((number, blob),) = coordinator.put
    assert number == 9
    assert of_rank(model_table.unpack(blob), 1)["@state/@random/0"].tolist() == [1, 4]


def test_a_cut_that_is_given_up_when_the_ranks_have_heard_of_it_leaves_nothing_of_it_in_the_next() -> None:
    coordinator = Coordinator()
    with town(2) as group:
        ranks = [Rank(group, rank) for rank in range(2)]
        promise = ranks[0].promise

        def asked(step: int) -> None:
            if step == 1:
                coordinator.ask(ranks[0], 1)
                promise.arm(1, {0: 3})
            if step == 3:
                assert ranks[0].captured == [3]
                promise.end(1)
            if step == 4:
                assert coordinator.ask(ranks[0], 2) == {0: 5}
                promise.arm(2, {0: 5})

        assert group.run(lambda it: ranks[it].take(6, asked if it == 0 else lambda _: None)) == [None] * 2
        assert coordinator.there.wait(LIMIT_S)

    ((number, blob),) = coordinator.put
    assert number == 2
    assert of_rank(model_table.unpack(blob), 1)["0/buffer"].tolist() == [1, 5]


def test_a_rank_that_was_not_there_then_takes_what_is_not_rank_0s_alone() -> None:
    """As where a job goes on with larger groups: it draws from generators of its own."""
    packed = model_table.pack({"0/buffer": torch.ones(1), "@state/@random": torch.ones(2)})
    state = model_table.unpack(merged([packed, packed]))
    assert of_rank(state, 0).keys() == of_rank(state, 1).keys() == {"0/buffer", "@state/@random"}
    assert of_rank(state, 2).keys() == {"0/buffer"}


def test_a_stage_takes_the_buffers_that_rank_0_has_of_all_stages_and_its_own_generators() -> None:
    """It packs none of its own, for a block may have been on another stage then."""

    def packed(rank: int) -> bytes:
        model = torch.nn.BatchNorm1d(1)
        side = SideState(lambda _: None, with_buffers=rank == 0)
        side.add(0, ModelExtras(model, model.parameters(), lambda _: None))
        model.running_mean.fill_(10 + rank)  # type: ignore[union-attr, operator]
        torch.manual_seed(rank)
        return side.pack_cut(Positions(epoch=None, loaders=()))

    first, second = packed(0), packed(1)
    state = of_rank(model_table.unpack(merged([first, second])), 1)
    assert state["0/running_mean"].item() == 10
    own = {name: it for name, it in model_table.unpack(second).items() if name.startswith("@state/@random")}
    assert own
    assert all(torch.equal(it, state[name]) for name, it in own.items())
