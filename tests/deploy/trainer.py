"""A worker's script: it trains until somebody has said that it is over, and writes the final weights.

Each worker has the same gradients, so the mean of those who are there does not depend on who is: the weights
are those of so many steps, whoever came and went.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import ps_worker as ps

NUMEL = 3000
LR, MOMENTUM = 0.01, 0.5
OVER = "over"  # the file that ends the job
EVERY = 25  # steps between two lines


def gradient(step: int) -> torch.Tensor:
    """Of all workers."""
    return (torch.arange(NUMEL, dtype=torch.float32) % 13 - 6) * (step % 5 - 2)


def main(folder: Path) -> None:
    """Trains."""
    with ps.connect(on_rollback=lambda step: print("rolled back to", step, flush=True)) as worker:
        table = worker.table({"w": torch.zeros(NUMEL)}, optimizer=ps.SGD(lr=LR, momentum=MOMENTUM))
        while not (worker.ended or (folder / OVER).exists()):
            table.push({"w": gradient(table.step)})
            table.pull().result()
            if table.step % EVERY == 0:
                print("step", table.step, flush=True)
        worker.finish()
        pulled = table.pull().result()
        pulled.values["w"].numpy().tofile(folder / f"final-{worker.rank}")
        print("finished at version", pulled.version, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
