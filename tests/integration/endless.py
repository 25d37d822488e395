"""A worker that trains until a file is there: `python endless.py FILE`, as a script of `ps-worker`.

Fifty steps a second are enough for who looks at it, and leave the cores to the others.
"""

import sys
import time
from pathlib import Path

import torch

import ps_worker as ps

PATH = str(Path(__file__))
PAUSE_S = 0.02


def main(end: Path) -> None:
    """Trains."""
    model = torch.nn.Linear(300, 200)
    with ps.connect() as worker:
        optimizer = worker.wrap(torch.optim.Adam(model.parameters(), lr=1e-3), model)
        while not end.exists():
            optimizer.zero_grad()
            loss = model(torch.randn(4, 300)).square().mean()
            loss.backward()
            optimizer.step()
            worker.log(loss=loss)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
