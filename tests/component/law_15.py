"""Runs of a job whose every step can be compared with those of another run.

Under ssp and asp the order is a script's: workers take turns, and each pulls at the beginning of its turn, as
one that comes back does.
"""

import tempfile
import threading
from pathlib import Path

import torch

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator.snapshots.durability import Durability
from ps_wire.access.access import OPEN
from tests.component.service import Cluster, run_workers
from tests.until import LIMIT_S

STEPS = 8
SIZES = ps.BucketOptions(bucket_bytes=1 << 16, first_bucket_bytes=1 << 12, partition_bytes=1 << 12)
WAIT_S = LIMIT_S


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
            step, last = -1, until if snapshot_at is None else None
            try:
                for step in train(worker):
                    if worker.rank == 0 and step == snapshot_at:
                        taking.start()
                    if last is None and self.taken.is_set():
                        last = max(until, step + 2)  # two steps behind the cut, however late it is
                    if last is not None and step >= last:
                        break
            finally:
                self._turns.leave(worker.rank)
            if taking.ident is not None:
                taking.join()
            return step

        return run_workers(cluster, body, num_workers=2, consistency=self.consistency, job=self.job)

    def _train_model(self, worker: ps.Worker):
        """Of two epochs' batches of a loader, over and over, each with noise that is the step's."""
        net = Net()
        if self.optimizer == "adam":
            inner = torch.optim.Adam(net.parameters(), lr=1e-3)
        else:
            inner = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.01)
        optimizer = worker.wrap(inner, net, buckets=SIZES)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        worker.register_state("scheduler", scheduler)
        loader = worker.loader(torch.utils.data.TensorDataset(torch.linspace(-1, 1, 40)), batch_size=4)
        step = self.first[worker.rank] = optimizer.step_number
        for epoch in worker.epochs(1 << 20):
            for (batch,) in loader:
                tensors = [*net.parameters(), *net.buffers(), batch, torch.tensor(epoch)]
                self.seen[worker.rank, step] = [tensor.detach().clone() for tensor in tensors]
                generator = torch.Generator().manual_seed(1000 * worker.rank + step)
                noise = torch.randn(len(batch), 40, generator=generator)
                loss = net(batch[:, None] + noise).square().mean()
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


def start(loop_thread, num_shards: int, folder: Path, **options) -> Cluster:
    """Servers that find snapshots, and nothing that others have handed off."""
    defaults = {
        "snapshot_dir": str(folder / "snapshots"),
        "state_dir": tempfile.mkdtemp(dir=folder) + "/state-{shard}",
        "durability": Durability.SNAPSHOT,
    }
    return Cluster(loop_thread, num_shards, options=defaults | options)


def continues(straight: Training, restored: Training, until: int) -> None:
    """Every step that both have taken began with the same bits."""
    assert all(first >= 1 for first in restored.first.values())
    common = [key for key in restored.seen if key[1] < until]
    assert len(common) >= 4
    for key in common:
        pairs = zip(restored.seen[key], straight.seen[key], strict=True)
        for place, (ours, theirs) in enumerate(pairs):
            assert torch.equal(ours, theirs), (key, place)


def take(cluster: Cluster, job: str, taken: threading.Event) -> None:
    list(snapshot_calls.take(cluster.servers.split(",")[0], job, OPEN))
    taken.set()
