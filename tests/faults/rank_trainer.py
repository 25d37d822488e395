"""A rank's script: as `trainer.py`, for a worker that is a group of ranks.

All ranks have to end at the same step: where rank 0 sees that all is over, it writes down the step after the
one that it is about to take, and the others read that when they have taken the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import ps_worker as ps
from tests.faults.scenario import BUCKETS, part, start
from tests.faults.trainer import is_over


class Model(torch.nn.Module):
    """The table's only parameter."""

    def __init__(self) -> None:
        """Has the weights that a job begins with."""
        super().__init__()
        self.w = torch.nn.Parameter(start())


def main(steps: int, final: str) -> None:
    with ps.connect() as worker:
        model = Model()
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = worker.wrap(inner, model, buckets=BUCKETS)
        ends = Path(final).with_name(
            f"ends-{worker.rank}"
        )  # written once, whichever group is the worker then
        while not (worker.ended or (ends.exists() and worker.step >= int(ends.read_text()))):
            if worker.group_rank == 0 and worker.step >= steps and is_over() and not ends.exists():
                written = ends.with_suffix(".new")
                written.write_text(f"{worker.step + 1}")
                written.replace(ends)
            model.w.grad = part(worker.rank, worker.step, worker.group_rank, worker.group_size)
            optimizer.step()
            print("step", worker.step, flush=True)
        worker.finish()
        model.w.detach().numpy().tofile(final)
        print("finished", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
