"""A worker of many jobs, one after the other: `train.py PLAN.json`, in which each job is a row.

Only what the package makes public is used, so that it runs with any build. A line of JSON on stdout is an
answer. With `pause_at` it says so at that step, and waits for a line on stdin.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from digest import digests, ledger
from models import MODELS, OPTIMIZERS, loss_of

import ps_worker as ps

SIZES = ps.BucketOptions(bucket_bytes=1 << 14, first_bucket_bytes=1 << 12, partition_bytes=1 << 12)
PATIENCE = {"lease": 300.0, "retry_limit": 300.0}  # beside any load, and while servers are replaced


def train(row: dict[str, Any]) -> dict[str, Any]:
    """Runs one job; what it came to."""
    torch.manual_seed(7)
    model = MODELS[row["model"]]()
    keys = ("servers", "job", "consistency", "num_workers", "worker", "carrier")
    with ps.connect(**{key: row[key] for key in keys}, **PATIENCE) as worker:
        optimizer = worker.wrap(OPTIMIZERS[row["optimizer"]](model.parameters()), model, buckets=SIZES)
        for step in range(row["steps"]):
            if step == row.get("pause_at"):
                worker.synchronize()
                say({"paused": row["job"]})
                sys.stdin.readline()
            loss_of(model, worker.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        worker.synchronize()
        state = digests(optimizer.state_dict())
        worker.barrier()
        figures = ledger(worker.stats())
        worker.barrier()
        worker.finish()
    return {"weights": digests(model.state_dict()), "state": state, "ledger": figures}


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in json.loads(Path(sys.argv[1]).read_text()):
        say({"job": each["job"], "worker": each["worker"]} | train(each))
