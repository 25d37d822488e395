"""A training script for groups of ranks: says what it had in each step, for whoever checks the arithmetic.

Arguments: folder, steps, then words that change what it does.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo

import ps_worker as ps
from ps_worker.group import group
from ps_worker.group.devices import gpus

MEETS = 20  # the step after which rank 1 of worker 1 stops, and rank 0 waits for it in a call of torch's


def digest(model: torch.nn.Module) -> str:
    state = b"".join(it.detach().numpy().tobytes() for it in model.parameters())
    return hashlib.sha256(state).hexdigest()


def on_devices(words: list[str]) -> None:
    """On ranks of worker 1 the host counts as a GPU of their own, and gloo makes the calls of NCCL."""
    if "devices" not in words or int(os.environ["RANK"]) < 2:
        return

    def calls(met: Any, ranks: Any) -> Any:
        return ProcessGroupGloo(PrefixStore("devices", met.store), ranks.rank, ranks.size)

    gpus.KIND = "cpu"
    gpus.here = lambda *_: (f"of rank {os.environ['RANK']}",)
    group.REDUCES = {**group.REDUCES, "gloo": lambda *_: group.NCCL}
    group._nccl = calls


def model_of(me: tuple[int, int], words: list[str]) -> torch.nn.Module:
    width = 4000 if "wide" in words else 400 if "large" in words else 40
    width += me == (0, 1) and "other model" in words
    return torch.nn.Sequential(torch.nn.Linear(30, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))


def main() -> None:
    folder, steps, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    on_devices(words)
    with ps.connect() as worker:
        me = (worker.rank, worker.group_rank)
        torch.manual_seed(sum(me))  # the leader of worker 0 starts the job; the others are given its weights
        model = model_of(me, words)
        size = max(2, worker.group_size)
        ones = [torch.nn.Parameter(torch.ones(17)) for _ in range(size)]  # each is used on one rank alone
        for rank, parameter in enumerate(ones):
            model.register_parameter(f"of_rank_{rank}", parameter)
        views = "views" in words and me[0] == 0
        several = ps.BucketOptions(first_bucket_bytes=4096, bucket_bytes=8192)  # the last has each rank's own
        if "wide" in words:
            several = ps.BucketOptions(partition_bytes=32768)
        optimizer = worker.wrap(
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if "plain" in words else 0.9),
            model,
            gradient_as_bucket_view=views,
            buckets=several,
        )
        print("started", *me, flush=True)

        def shown() -> dict[str, Any]:
            """Once all modules have waited for their weights."""
            return {"weights": [it.detach().clone() for it in model.parameters()], "digest": digest(model)}

        rows, under_way = [shown()], 0
        generator = torch.Generator().manual_seed(100 * me[0] + me[1])
        for step in range(steps):
            if "print" in words:
                print("step", step, flush=True)
            if me == (0, 1) and step == 3 and "leaves early" in words:
                break
            optimizer.zero_grad(set_to_none=not views)
            loss = model(torch.randn(8, 30, generator=generator)).square().mean()
            rows[-1] |= shown()
            loss = loss + (ones[me[1]] * step).sum()
            if not (me == (1, 0) and step == 2):  # that rank has nothing in this step
                loss.backward()
            given = [None if it.grad is None else it.grad.clone() for it in model.parameters()]
            optimizer.step()
            if "meets" in words and step == MEETS and me[0] == 1:
                if me[1] == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
                torch.distributed.barrier(worker.group)
            rows.append(
                {
                    "gradients": given,
                    "left": [None if it.grad is None else it.grad.clone() for it in model.parameters()],
                }
            )
            under_way += optimizer._cycle.arrival.under_way
        worker.synchronize()
        rows[-1] |= shown()
        worker.finish()
        rows.append({"digest": digest(model), "overlaps": optimizer.overlaps, "under way": under_way})
        torch.save(rows, folder / f"{me[0]}-{me[1]}.pt")


main()
