"""Law 15: a job that is restored from a snapshot goes on to the bit as if nothing had been.

Under ssp and asp the order is a script's: workers take turns, and each pulls at the beginning of its turn, as
one that comes back does.
"""

import random
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import ps_worker as ps
from ps_lab import snapshot_calls
from ps_server.durability import Durability
from ps_wire.access import OPEN
from tests.unit.ps_worker.service import Cluster, fresh_name, run_workers

STEPS = 8
SIZES = ps.BucketOptions(bucket_bytes=1 << 16, first_bucket_bytes=1 << 12, partition_bytes=1 << 12)
WAIT_S = 30.0


class Turns:
    """Workers take their steps one after the other: 0's step 0, 1's step 0, 0's step 1..."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._changed = threading.Condition()
        self._at: dict[int, int] = {}

    def wait(self, rank: int, step: int) -> None:
        with self._changed:
            self._at[rank] = step
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._mine(rank, step), WAIT_S)

    def _mine(self, rank: int, step: int) -> bool:
        if len(self._at) < self._num_workers:
            return False
        return (step, rank) == min((step, rank) for rank, step in self._at.items())

    def leave(self, rank: int) -> None:
        with self._changed:
            self._at[rank] = 1 << 30
            self._changed.notify_all()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Linear(40, 60)
        self.b = torch.nn.Linear(60, 1)
        self.norm = torch.nn.BatchNorm1d(60)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


class Training:
    """A job's run of two workers, with what each saw at the beginning of each of its steps."""

    def __init__(self, job: str, consistency: str, optimizer: str) -> None:
        self.job = job
        self.consistency = consistency
        self.optimizer = optimizer
        self.seen: dict[tuple[int, int], list[torch.Tensor]] = {}
        self.first: dict[int, int] = {}
        self.taken = threading.Event()
        self._turns = Turns(2)

    def run(self, cluster: Cluster, until: int, *, snapshot_at: int | None = None) -> list[int]:
        train = self._train_model if self.consistency == "bsp" else self._train_table

        def body(worker: ps.Worker) -> int:
            taking = threading.Thread(target=take, args=(cluster, self.job, self.taken))
            step = -1
            try:
                for step in train(worker):
                    if worker.rank == 0 and step == snapshot_at:
                        taking.start()
                    if step >= until and (snapshot_at is None or self.taken.is_set()):
                        break
            finally:
                self._turns.leave(worker.rank)
            if taking.ident is not None:
                taking.join()
            return step

        return run_workers(cluster, body, num_workers=2, consistency=self.consistency, job=self.job)

    def _train_model(self, worker: ps.Worker):
        net = Net()
        if self.optimizer == "adam":
            inner = torch.optim.Adam(net.parameters(), lr=1e-3)
        else:
            inner = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.01)
        optimizer = worker.wrap(inner, net, buckets=SIZES)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        worker.register_state("scheduler", scheduler)
        step = self.first[worker.rank] = optimizer.step_number
        while True:
            tensors = [*net.parameters(), *net.buffers()]
            self.seen[worker.rank, step] = [tensor.detach().clone() for tensor in tensors]
            generator = torch.Generator().manual_seed(1000 * worker.rank + step)
            loss = net(torch.randn(4, 40, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            yield step

    def _train_table(self, worker: ps.Worker):
        start = {"w": torch.linspace(-1, 1, 5000), "v": torch.ones(300)}
        choice = ps.Adam(lr=0.01) if self.optimizer == "adam" else ps.SGD(lr=0.01, momentum=0.9)
        table = worker.table(start, optimizer=choice, buckets=SIZES)
        self.first[worker.rank] = table.step
        while True:
            step = table.step
            self._turns.wait(worker.rank, step)
            pulled = table.pull().result()
            self.seen[worker.rank, step] = [
                *pulled.values.values(),
                torch.tensor([pulled.version, pulled.spread]),
            ]
            drift = torch.Generator().manual_seed(1000 * worker.rank + step)
            gradients = {
                name: 0.1 * value + torch.randn(value.shape, generator=drift)
                for name, value in pulled.values.items()
            }
            table.push(gradients).result()
            yield step + 1


def start(loop_thread, num_shards: int, folder: Path) -> Cluster:
    """Servers that find snapshots, and nothing that others have handed off."""
    options = {
        "snapshot_dir": str(folder / "snapshots"),
        "state_dir": tempfile.mkdtemp(dir=folder) + "/state-{shard}",
        "durability": Durability.SNAPSHOT,
    }
    return Cluster(loop_thread, num_shards, options=options)


@pytest.mark.parametrize(
    ("consistency", "optimizer", "before", "after"),
    [
        ("bsp", "momentum", 2, 2),
        ("bsp", "adam", 2, 3),
        ("bsp", "momentum", 2, 1),
        ("ssp:1", "adam", 1, 2),
        ("ssp:1", "momentum", 2, 2),
        ("asp", "adam", 2, 1),
    ],
)
def test_law_15_a_restored_job_continues_bit_exact(
    loop_thread, tmp_path, consistency, optimizer, before, after
):
    cluster = start(loop_thread, before, tmp_path)
    job = fresh_name()
    straight = Training(job, consistency, optimizer)
    try:
        counts = straight.run(cluster, STEPS, snapshot_at=2)
    finally:
        cluster.close()
    cluster = start(loop_thread, after, tmp_path)
    restored = Training(job, consistency, optimizer)
    try:
        restored.run(cluster, min(counts))
    finally:
        cluster.close()
    assert all(first >= 1 for first in restored.first.values())
    common = [key for key in restored.seen if key[1] < min(counts)]
    assert len(common) >= 4
    for key in common:
        for ours, theirs in zip(restored.seen[key], straight.seen[key], strict=True):
            assert torch.equal(ours, theirs), key


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from the generators that nobody names."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return (
            torch.full((40,), float(index)) / 24 + 0.1 * torch.rand(40) + random.random() * np.random.rand()
        )


def test_law_15_a_script_goes_on_in_the_middle_of_an_epoch_with_the_numbers_it_would_have_drawn(
    loop_thread, tmp_path
):
    job = fresh_name()
    epochs, per_epoch, cut_after = 3, 6, 8
    seen: list[dict[int, list[torch.Tensor]]] = []
    positions: list[list[tuple[int, int]]] = []
    taken = threading.Event()

    def train(worker: ps.Worker, cluster: Cluster, *, snapshot: bool) -> None:
        torch.manual_seed(5)
        random.seed(6)
        np.random.seed(7)
        seen.append({})
        positions.append([])
        net = torch.nn.Sequential(torch.nn.Linear(40, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), net)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        worker.register_state("scheduler", scheduler)
        own = torch.Generator().manual_seed(8)
        worker.register_state("own", own)
        loader = worker.loader(Noisy(), batch_size=24 // per_epoch)
        taking = None
        for epoch in worker.epochs(epochs):
            for batch in loader:
                step = optimizer.step_number
                positions[-1].append((epoch, step))
                noise = torch.rand(1, generator=own)
                loss = net(batch + noise).square().mean()
                optimizer.zero_grad()
                loss.backward()
                seen[-1][step] = [
                    loss.detach(),
                    batch,
                    noise,
                    *[p.detach().clone() for p in net.parameters()],
                ]
                if snapshot and step == cut_after:
                    taking = threading.Thread(target=take, args=(cluster, job, taken))
                    taking.start()
                    assert prepared(worker)
                optimizer.step()
            scheduler.step()
        if taking is not None:
            assert taken.wait(WAIT_S)

    for snapshot in (True, False):
        cluster = start(loop_thread, 1, tmp_path)
        try:
            run_workers(cluster, lambda w: train(w, cluster, snapshot=snapshot), job=job)  # noqa: B023
        finally:
            cluster.close()
    first, second = positions
    assert first == [(step // per_epoch, step) for step in range(epochs * per_epoch)]
    assert second == first[cut_after + 1 :]
    for step, tensors in seen[1].items():
        for place, (ours, theirs) in enumerate(zip(tensors, seen[0][step], strict=True)):
            assert torch.equal(ours, theirs), (step, place)


def take(cluster: Cluster, job: str, taken: threading.Event) -> None:
    list(snapshot_calls.take(cluster.servers.split(",")[0], job, OPEN))
    taken.set()


def prepared(worker: ps.Worker) -> bool:
    """Waits until the worker was asked where it can be cut."""
    capture = worker._link.capture
    with capture._changed:
        return capture._changed.wait_for(lambda: capture._number is not None, WAIT_S)
