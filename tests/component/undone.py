"""A script whose job takes a snapshot, and goes back to it some steps later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

import ps_worker as ps
from ps_wire.access.access import OPEN
from ps_wire.access.channel import dial
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from tests.component.service import Cluster
from tests.taking import Taking
from tests.until import LIMIT_S

STEPS = 6  # of an epoch, for one worker
BATCH = 4


def go_back(cluster: Cluster, folder: Path, job: str) -> None:
    """A person has it go back to its newest snapshot."""
    snapshot = SnapshotStore(str(folder / "snapshots")).names(job)[-1]
    with dial(cluster.servers, OPEN) as channel:
        CoordinatorStub(channel).Restore(pb.RestoreRequest(job=job, snapshot=snapshot), timeout=LIMIT_S)


class Undone:
    """What such a script trains, and who has its job go back."""

    def __init__(self, cluster: Cluster, folder: Path, job: str) -> None:
        self._cluster, self._folder, self.job = cluster, folder, job
        self.model = torch.nn.Linear(6, 2)
        self._taking: Taking | None = None

    def connect(self, **settings: object) -> ps.Worker:
        given = {"num_workers": 1, "worker": 0} | settings
        return ps.connect(servers=self._cluster.servers, job=self.job, **given)

    def wrap(self, worker: ps.Worker) -> ps.Loader:
        self.optimizer = worker.wrap(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9), self.model
        )
        return self.loader(worker)

    @staticmethod
    def loader(worker: ps.Worker) -> ps.Loader:
        return worker.loader(TensorDataset(torch.zeros(STEPS * BATCH, 6)), batch_size=BATCH)

    def step(self, x: torch.Tensor) -> None:
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def take(self) -> None:
        """Before a step: begins to take the snapshot, which has this step, or the next, as its first."""
        if self._taking is None:
            self._taking = Taking(self._cluster.servers, self.job)
            self._taking.wait_fixed()

    def wait_taken(self) -> None:
        """Until the snapshot is there: of who leaves before that its steps are not known."""
        assert self._taking is not None
        self._taking.wait()

    def go_back(self) -> None:
        self.wait_taken()
        go_back(self._cluster, self._folder, self.job)


class Bodies(list[int]):
    """The epochs whose bodies a script began; it takes its snapshot in the first pass through epoch 1."""

    def __init__(self, undone: Undone) -> None:
        super().__init__()
        self._undone = undone

    def train(self, batches: Any, *, back_at: int | None = None) -> int:
        """Steps on all of them; the job goes back before step `back_at` of the first pass through epoch 2."""
        number = 0
        for number, (x,) in enumerate(batches, 1):
            if self == [0, 1] and number == 3:
                self._undone.take()
            if self == [0, 1, 2] and number == back_at:
                self._undone.go_back()
            self._undone.step(x)
        return number
