"""A group of one rank, in this process."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ps_wire.process.ranks import Ranks
from ps_worker.group import group as module
from ps_worker.group.group import Group
from ps_worker.group.rendezvous import Met
from ps_worker.group.watch import Watch

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
