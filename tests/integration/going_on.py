"""A training script whose bits depend on all that a rank has beside its tables, and that goes on.

Arguments: folder, and how it ends: "dies", once its job has a snapshot; "dies at 15"; "more", so many steps
after the one at which it began; or a number of steps.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import ps_worker as ps
from tests.integration.manifests import manifests
from tests.until import until

MORE = 8  # steps; an epoch has six
SAMPLES = 48


class Noisy(TensorDataset):
    """Each sample draws noise as it is read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        """With another generator than the model's."""
        (x,) = super().__getitem__(index)
        return (x + 0.1 * torch.randn(8),)


def steps_of(folder: Path) -> int:
    """How many steps the job had, of which the last ones were taken by who came again."""
    return int(torch.load(folder / "more-0-0.pt")["step"])


def check_same(folder: Path, worker: int, rank: int, *, but: str = "nothing") -> None:
    """A rank that came again ended as one that nobody disturbed; `but`: in names of what may differ."""
    found = torch.load(folder / f"more-{worker}-{rank}.pt")
    wanted = torch.load(folder / f"{found['step']}-{worker}-{rank}.pt")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if but in name:
            continue
        same = torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name]
        assert same, (worker, rank, name, value, found[name])


def is_to_die(ends: str, folder: Path, step: int) -> bool:
    """Whether rank 1 is killed here."""
    return ends == f"dies at {step}" or (ends == "dies" and bool(manifests(folder)))


def halt(folder: Path) -> None:
    """Where somebody wants it, waits until that is done."""
    if (folder / "halts").exists():
        print("halts", flush=True)
        until((folder / "goes on").exists)


def main(folder: Path, ends: str) -> None:
    """Trains."""
    data = Noisy(torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1)))
    with ps.connect() as worker:
        torch.manual_seed(10 * worker.rank + worker.group_rank)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 300), torch.nn.BatchNorm1d(300), torch.nn.Dropout(0.3), torch.nn.Linear(300, 4)
        )
        optimizer = worker.wrap(
            torch.optim.Adam(model.parameters(), lr=0.01),
            model,
            buckets=ps.BucketOptions(partition_bytes=4096),
        )
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        own = torch.Generator().manual_seed(100 * worker.rank + worker.group_rank)
        worker.register_state("decay", decay)
        worker.register_state("own", own)
        loader = worker.loader(
            data, batch_size=SAMPLES // 6 // (worker.num_workers * worker.group_size), seed=1
        )
        last, drawn = 10**9 if ends.startswith("dies") else 0, torch.empty(0)
        for _ in worker.epochs(10**6):
            for (x,) in loader:
                last = last or (worker.step + MORE if ends == "more" else int(ends))
                optimizer.zero_grad()
                drawn = torch.rand(3, generator=own)
                (model(x).square().mean() * drawn[0]).backward()
                optimizer.step()
                if worker.is_first and ends == "more" and worker.step == last - MORE // 2:
                    halt(folder)
                if worker.group_rank and is_to_die(ends, folder, worker.step):
                    os.kill(os.getpid(), signal.SIGKILL)
                if worker.step == last:
                    break
            if worker.step == last:
                break
            decay.step()
        ended = {
            "step": worker.step,
            "drawn": drawn,
            "decay": decay.last_epoch,
            "random": torch.get_rng_state(),
            **{name: it.clone() for name, it in model.state_dict().items()},
        }
        worker.finish()
        torch.save(ended, folder / f"{ends}-{worker.rank}-{worker.group_rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
