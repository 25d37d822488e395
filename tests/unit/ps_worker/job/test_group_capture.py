"""What ranks have beside the tables at one step becomes one state, of which each takes its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from ps_worker.group.ending import Ending
from ps_worker.group.step_header import StepHeader
from ps_worker.job.group_capture import CUT, GroupCapture, merged, of_rank
from ps_worker.membership.snapshot_promise import Put, SnapshotPromise
from ps_worker.model import model_table
from tests.unit.ps_worker.group.wires import Town, town
from tests.until import LIMIT_S


class Rank:
    """One rank with one table, that takes steps."""

    def __init__(self, group: Town, rank: int) -> None:
        channel = group.channels[rank]
        self.step = 0
        self.leads = rank == 0
        self.captured: list[int] = []
        self.capture = GroupCapture(channel, {CUT: lambda: self.promise})
        self.promise = SnapshotPromise(
            lambda: {0: self.step}, self._state, hand=self._take, foretells=self.leads
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
            self.header.begin(self.step, there=True, weight=1.0, hyper=1)
            self.step += 1


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
