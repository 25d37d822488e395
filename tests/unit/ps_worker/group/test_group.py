"""Groups in this process: of one rank, and of two that are threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ps_wire.errors import ConfigurationRefused, GroupBroken
from ps_wire.process.ranks import Ranks
from ps_worker.group import group as module
from ps_worker.group.group import Group
from ps_worker.group.rendezvous import Met
from tests.until import LIMIT_S, until

LEASE_S = 10.0


def test_a_group_that_is_refused_while_it_forms_leaves_no_thread_behind():
    store: Any = dist.HashStore()
    before = set(threading.enumerate())

    with pytest.raises(ConfigurationRefused, match="--group-reduce hosts"):
        Group(
            Ranks(rank=0, size=1),
            Met(hosts=("here",), machines=("m",), store=store),
            lease_s=LEASE_S,
            reduce="hosts",
            asked=lambda: False,
            torch_group=module.ProcessGroupGloo(dist.PrefixStore("test", store), 0, 1),
        )

    until(lambda: not [it for it in threading.enumerate() if it not in before], "its threads have ended")


class Waited:
    """Wires of gloo's that say when somebody waits to receive, and when that is over."""

    def __init__(self, real: Any) -> None:
        self.send = real.send
        self._recv = real.recv
        self.begun, self.over = threading.Event(), threading.Event()

    def recv(self, *given: Any) -> Any:
        work = self._recv(*given)
        if self.begun.is_set():
            return work
        self._work = work
        return self

    def wait(self, *limit: Any) -> Any:
        """As of gloo's own work: who cuts the wires gives a limit, and may be the first who waits here."""
        self.begun.set()
        try:
            return self._work.wait(*limit)
        finally:
            self.over.set()


def test_who_leaves_a_broken_group_leaves_no_thread_in_a_call_that_waits_for_another_rank(monkeypatch):
    """Such a thread would come back while the interpreter ends, and the process would be aborted."""
    store: Any = dist.HashStore()
    make = module.ProcessGroupGloo
    wires: dict[int, Waited] = {}

    def gloo(prefixed: Any, rank: int, size: int, **options: Any) -> Waited:
        return wires.setdefault(rank, Waited(make(prefixed, rank, size, **options)))

    monkeypatch.setattr(module, "ProcessGroupGloo", gloo)
    monkeypatch.setattr("ps_worker.group.channel.CLOSE_LIMIT_S", LIMIT_S)

    def form(rank: int) -> Group:
        return Group(
            Ranks(rank=rank, size=2),
            Met(hosts=("here", "here"), machines=("m", "m"), store=store),
            lease_s=LIMIT_S,
            reduce="gloo",
            asked=lambda: False,
            torch_group=make(dist.PrefixStore(f"test {rank}", store), 0, 1),
        )

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(form, range(2)))
        receiving = pool.submit(groups[0].channel.swap, [], [(1, torch.zeros(4))])
        assert wires[0].begun.wait(LIMIT_S)
        groups[0].broken("rank 7 has gone")
        with pytest.raises(GroupBroken):
            receiving.result(LIMIT_S)
        try:
            groups[0].leave()

            assert wires[0].over.is_set()
        finally:
            groups[1].broken("it is over")
            groups[1].leave()
