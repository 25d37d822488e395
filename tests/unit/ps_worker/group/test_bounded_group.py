"""Waits of torch's schedules end with the group of ranks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from ps_wire.errors import GroupBroken
from ps_worker.group.bounded_group import BoundedGroup
from tests.unit.ps_worker.group.wires import Wires, town
from tests.until import LIMIT_S


def test_what_is_sent_arrives_and_stays_what_it_was_when_it_was_sent() -> None:
    with town(2) as group:
        ends = [BoundedGroup(rank, 2) for rank in range(2)]
        for rank, end in enumerate(ends):
            end.attach(Wires(rank, group.lines), group.channels[rank])
        into = torch.zeros(2, 3)

        def script(rank: int) -> Any:
            if rank == 0:
                return ends[0].send([torch.full((2, 3), 7.0)], 1).wait()
            return ends[1].recv([into], 0).wait()

        assert group.run(script) == [True, True]
    assert into.eq(7.0).all()


def test_what_comes_for_memory_that_wires_cannot_write_goes_through_the_hosts() -> None:
    """As that of an accelerator does; here it lies in another order."""
    with town(2) as group:
        ends = [BoundedGroup(rank, 2) for rank in range(2)]
        for rank, end in enumerate(ends):
            end.attach(Wires(rank, group.lines), group.channels[rank])
        sent, into = torch.arange(6.0).view(2, 3), torch.zeros(3, 2).t()

        def script(rank: int) -> Any:
            if rank == 0:
                return ends[0].send([sent.t().contiguous().t()], 1).wait()
            return ends[1].recv([into], 0).wait()

        assert group.run(script) == [True, True]
    assert torch.equal(into, sent)


class Silent:
    """Wires over which nothing comes, as from a process that is stopped."""

    def __init__(self) -> None:
        self.waiting, self.over = threading.Event(), threading.Event()

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return self

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self

    def wait(self) -> None:
        self.waiting.set()
        self.over.wait(LIMIT_S)


@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_wait_for_a_stage_that_says_nothing_ends_when_the_group_does(call: str) -> None:
    with town(2) as group:
        silent = Silent()
        end = BoundedGroup(0, 2)
        end.attach(silent, group.channels[0])

        def script(rank: int) -> Any:
            if rank == 1:
                assert silent.waiting.wait(LIMIT_S)
                return group.aborts[0].set("rank 1 on host1 was silent for 5.0 s")
            return getattr(end, call)([torch.zeros(3)], 1).wait()

        found = group.run(script)
        silent.over.set()
    assert isinstance(found[0], GroupBroken)


def test_a_stage_that_has_gone_is_named() -> None:
    class Cut:
        def send(self, *_: object) -> Any:
            raise RuntimeError("Connection closed by peer")

        recv = send

    with town(2) as group:
        end = BoundedGroup(0, 2)
        end.attach(Cut(), group.channels[0])
        with pytest.raises(GroupBroken, match="rank 1 on host1 has gone"):
            end.recv([torch.zeros(3)], 1)
