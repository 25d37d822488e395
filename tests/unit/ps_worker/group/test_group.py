"""Groups in this process: ranks are threads."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch
import torch.distributed as dist

from ps_wire.errors import GroupBroken
from ps_wire.process.ranks import Ranks
from ps_worker.group import group as module
from ps_worker.group.group import Group
from ps_worker.group.rendezvous import Met
from ps_worker.group.watch import Watch
from tests.until import LIMIT_S

LEASE_S = 10.0


def test_ranks_that_take_longer_than_a_lease_to_connect_are_not_silent(monkeypatch):
    now_s, made = [0.0], []
    connect = module.ProcessGroupGloo

    def slow(*args: Any, **options: Any) -> Any:
        now_s[0] += 10 * LEASE_S
        return connect(*args, **options)

    def watch(*args: Any, **options: Any) -> Watch:
        made.append(Watch(*args, clock=lambda: now_s[0], **options))
        return made[0]

    monkeypatch.setattr(module, "ProcessGroupGloo", slow)
    monkeypatch.setattr(module, "Watch", watch)
    store: Any = dist.HashStore()

    group = Group(
        Ranks(rank=0, size=1),
        Met(hosts=("here",), store=store),
        lease_s=LEASE_S,
        reduce="auto",
        asked=lambda: False,
        torch_group=connect(dist.PrefixStore("test", store), 0, 1),
    )
    try:
        made[0].check_answered()

        assert group.healthy
    finally:
        group.leave()


class Waits:
    """A receive of what nobody sends, and who waits for it."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.thread: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def wait(self) -> None:
        self.thread.put(threading.current_thread())
        self.work.wait()


def test_a_rank_that_leaves_a_broken_group_leaves_no_thread_in_a_call_that_nothing_answers(monkeypatch):
    """One that came back into an interpreter that is ending would end the process by SIGABRT."""
    connect, store = module.ProcessGroupGloo, dist.HashStore()
    wires: dict[int, Any] = {}

    def kept(*args: Any, **options: Any) -> Any:
        wires[args[1]] = connect(*args, **options)
        return wires[args[1]]

    def form(rank: int) -> Group:
        return Group(
            Ranks(rank=rank, size=2),
            Met(hosts=("there", "here"), store=cast("Any", store)),
            lease_s=1000.0,
            reduce="gloo",
            asked=lambda: False,
            torch_group=connect(dist.PrefixStore("test", store), rank, 2),
        )

    monkeypatch.setattr(module, "ProcessGroupGloo", kept)
    with ThreadPoolExecutor() as pool:
        there, here = pool.map(form, range(2))
        waits = Waits(wires[1].recv([torch.zeros(1)], 0, 3))
        ended = pool.submit(here.channel.end, 0, waits)
        thread = waits.thread.get(timeout=LIMIT_S)

        here.broken("a reason")
        assert isinstance(ended.exception(LIMIT_S), GroupBroken)
        assert thread.is_alive()
        here.leave()

        assert not thread.is_alive()
        there.leave()
