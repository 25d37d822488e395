"""Two shards whose processes can be replaced, and a run of workers over them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

import ps_worker as ps
from tests.integration.processes import LIMIT_S, Process
from tests.integration.servers import SERVING, Servers, fresh_job, wait_health
from tests.integration.team import join, together

STEPS, NUMEL = 12, 5000


SMALL = ps.BucketOptions(partition_bytes=4096)  # four columns


class Restarting(Servers):
    """Two shards whose processes can be replaced."""

    def __init__(self, start: Callable[..., Process], folder: Path, *options: str) -> None:
        self._start = start
        self._given = ("--snapshot-dir", str(folder), *options)
        super().__init__(start, 2, *self._given)

    def again(self, shard: int) -> float:
        """Another process of a shard, at the same address; returns when it was ready."""
        address = self.addresses[shard]
        self.processes[shard] = self._start(
            "ps-server",
            *("--shard", f"{shard}/2", "--port", address.rpartition(":")[2]),
            *(("--coordinator", self.addresses[0]) if shard else ()),
            *self._given,
        )
        wait_health(address, SERVING)
        return time.monotonic()


class Run:
    """A run of two workers under bsp, in threads; worker 0 calls `at_step` before each of its steps."""

    def __init__(self, servers: Servers, at_step: Callable[[str, int], None]) -> None:
        self.job = fresh_job()
        self.undone: list[list[int]] = [[], []]
        self.stepped_s: list[float] = []
        self._servers, self._at_step = servers, at_step

    def train(self) -> list[torch.Tensor]:
        return together([lambda: self._train(0), lambda: self._train(1)])

    def _train(self, rank: int) -> torch.Tensor:
        with join(self._servers, self.job, num_workers=2, worker=rank) as worker:
            table = worker.table({"w": torch.zeros(NUMEL)}, optimizer=ps.SGD(lr=0.1, momentum=0.9))
            while table.step < STEPS:
                if rank == 0:
                    self._at_step(self.job, table.step)
                try:
                    table.push({"w": torch.full((NUMEL,), 1.0 + rank + table.step)})
                    values = table.pull().result(LIMIT_S).values["w"]
                    self.stepped_s.append(time.monotonic())
                except ps.RolledBack as error:
                    self.undone[rank].append(error.step)
            worker.finish()
            return values
