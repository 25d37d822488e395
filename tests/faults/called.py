"""A worker's script with a call of all workers at the end of each epoch: `called.py RECORD [EPOCH BATCH]...`.

At each epoch and batch it stands, before that batch's step, until somebody writes to the pipe RECORD.go.
It ends by writing what it has seen to RECORD. No line of it is about faults.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import ps_worker as ps

EPOCHS, SAMPLES, BATCH = 6, 96, 4
LIMIT_S = 60.0  # of a call: less than that of a test


def main(record: Path, stands: list[tuple[int, int]]) -> None:
    drawn = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    with ps.connect() as worker:
        print("joined", flush=True)
        begun = worker.broadcast({"run": 7}, limit_s=LIMIT_S)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        worker.register_state("schedule", schedule)
        worker.register_state("decay", decay)
        loader = worker.loader(TensorDataset(drawn), batch_size=BATCH, seed=1)
        worker.barrier(limit_s=LIMIT_S)
        calls, steps = [], 0
        for epoch in worker.epochs(EPOCHS):
            for number, (x,) in enumerate(loader):
                if (epoch, number) in stands:
                    stands.remove((epoch, number))  # once
                    print("stands", flush=True)
                    with Path(f"{record}.go").open("rb", buffering=0) as pipe:
                        pipe.read(1)
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            decay.step()
            steps = worker.step  # in the last epoch no batch follows for those that are sat out in its call
            found = worker.all_reduce({"epoch": epoch, "here": 1.0}, op="sum", limit_s=LIMIT_S)
            calls.append((epoch, found["epoch"] / found["here"], found["here"]))
            print("epoch", epoch, flush=True)
        ended = worker.ended
        worker.finish()
        used = {use.epoch: (use.used, use.unused) for use in worker.stats().epochs if use.loader == 0}
        found = {
            "worker": worker.rank,
            "ended": ended,
            "begun": begun,
            "calls": calls,
            "steps": steps,
            "abstained": worker.stats().abstained,
            "schedule": schedule.last_epoch,
            "decay": decay.last_epoch,
            "used": used,
        }
    record.write_text(json.dumps(found))


if __name__ == "__main__":
    where = [int(word) for word in sys.argv[2:]]
    main(Path(sys.argv[1]), list(zip(where[::2], where[1::2], strict=True)))
