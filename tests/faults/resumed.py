"""A worker's script that ends early by itself: `ps-worker resumed.py RECORD` appends what it ended with.

It has a schedule per step and one per epoch, noise in its data, dropout, validation, the best checkpoint as a
file for each worker, and early stopping: after the epoch in which its metric has not become better for
`PATIENCE` epochs. That metric is a count of epochs, so the epochs that a run has are known, and the best one.
The schedule per step changes the rate in every step that a run can have. No line of it is about faults.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ps_worker as ps

EPOCHS, IMPROVES, PATIENCE = 9, 3, 2
LAST = IMPROVES + PATIENCE  # the epoch after which it stops the job
SAMPLES, BATCH = 96, 4
LR, START, GAMMA = 0.05, 0.1, 0.5
WARM_UP = 10 * EPOCHS * SAMPLES // BATCH  # steps: more than any run has, so that each one changes the rate


def rate(per_step: int, per_epoch: int) -> float:
    """The learning rate behind so many steps and epochs, by the closed forms of both schedules."""
    return LR * (START + (1 - START) * min(per_step, WARM_UP) / WARM_UP) * GAMMA**per_epoch


def make() -> nn.Sequential:
    """The model."""
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 2))


@torch.no_grad()
def validate(model: nn.Module) -> torch.Tensor:
    """The loss on samples that it does not train on."""
    held_out = torch.randn(16, 8, generator=torch.Generator().manual_seed(2))
    model.eval()
    loss: torch.Tensor = (model(held_out) - 1).square().mean()
    model.train()
    return loss


def digest(model: nn.Module) -> str:
    """Of the bits of all parameters."""
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


@dataclass
class Early:
    """Early stopping: how often the metric has not become better since it was best."""

    best: float = float("inf")
    bad: int = 0
    seen: int = 0

    def see(self, metric: float) -> bool:
        """After an epoch; whether it was the best one."""
        self.seen += 1
        self.bad = 0 if metric < self.best else self.bad + 1
        self.best = min(self.best, metric)
        return not self.bad

    @property
    def is_over(self) -> bool:
        return self.bad >= PATIENCE

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Noisy(TensorDataset):
    """Each sample draws noise from torch's generator when it is read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        (x,) = super().__getitem__(index)
        return (x + 0.1 * torch.randn_like(x),)


def save(checkpoint: Path, kept: dict[str, Any]) -> None:
    """Writes it whole, or not at all: the worker may be killed meanwhile."""
    part = checkpoint.with_suffix(".part")
    torch.save(kept, part)
    part.replace(checkpoint)


def main(record: Path) -> None:
    drawn = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = make()
    bodies: list[int] = []
    with ps.connect() as worker:
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), model)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=START, total_iters=WARM_UP)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=GAMMA)
        early, best = Early(), torch.full((), torch.inf)
        for name, kept in {"warm": warm, "decay": decay, "early": early, "best": best}.items():
            worker.register_state(name, kept)
        loader = worker.loader(Noisy(drawn), batch_size=BATCH, seed=1)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            for (x,) in loader:
                before = worker.step
                (model(x) - 1).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                warm.step()
                print("step", worker.step, warm.last_epoch, worker.step == before + 1, flush=True)
            decay.step()
            worker.synchronize()
            loss = validate(model)
            if early.see(max(IMPROVES - epoch, 0)):
                best.copy_(loss)
                save(record.with_suffix(".best"), {"epoch": epoch, "loss": best, "model": model.state_dict()})
            if early.is_over:
                worker.stop_job(f"not better for {PATIENCE} epochs")
        ended, looped = worker.ended, worker.step
        worker.finish()
        found = {
            "worker": worker.rank,
            "ended": ended,
            "bodies": bodies,
            "steps": worker.step,
            "looped": looped,  # steps at the end of its loops: who is evicted after that has those of the job
            "lr": optimizer.param_groups[0]["lr"],
            "per_epoch": decay.last_epoch,
            "per_step": warm.last_epoch,
            "seen": early.seen,
            "weights": digest(model),
            "used": {use.epoch: (use.used, use.unused) for use in worker.stats().epochs if use.loader == 0},
        }
    with record.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print("finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
