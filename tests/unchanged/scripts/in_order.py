"""Three workers of one process that push in a scripted order, on which the outcome depends.

`in_order.py SERVERS`: one job per consistency model. A line of JSON on stdout tells what it came to; then the
workers stay in their jobs until a line comes on stdin.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from digest import digests, ledger

import ps_worker as ps

WORKERS = 3
SIZES = ps.BucketOptions(bucket_bytes=1 << 14, first_bucket_bytes=1 << 12, partition_bytes=1 << 12)
JOBS = {
    "ssp:3": lambda: ps.SGD(lr=0.1, momentum=0.9),
    "asp": lambda: ps.Adam(lr=0.01),
    "bsp:backup=1": lambda: ps.AdamW(lr=0.01, weight_decay=0.1),
}
# Whose turn it is; no worker is ever more than three steps ahead.
TURNS = (0, 0, 1, 0, 2, 1, 1, 2, 2, 0, 2, 1, 0, 0, 1, 2, 2, 1)
# Under backup workers: who is in time, and who is late, step by step.
ROUNDS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2))


def start() -> dict[str, torch.Tensor]:
    """The tensors that tables begin with."""
    random = torch.Generator().manual_seed(3)
    return {"a": torch.randn(37, 41, generator=random), "b": torch.randn(2311, generator=random)}


def gradient(worker: int, step: int) -> dict[str, torch.Tensor]:
    """What a worker pushes; every fourth push leaves one tensor out."""
    random = torch.Generator().manual_seed(100 * worker + step)
    made = {name: torch.randn(it.shape, generator=random) for name, it in start().items()}
    return {"a": made["a"]} if (worker + step) % 4 == 3 else made


def by_turns(tables: list[ps.Table]) -> list[Any]:
    """Each turn reads, then pushes; the versions and clocks that are seen."""
    seen = []
    for rank in TURNS:
        pulled = tables[rank].pull().result()
        seen.append([rank, pulled.version, sorted(pulled.clocks.items())])
        tables[rank].push(gradient(rank, tables[rank].step)).result()
    return seen


def by_rounds(tables: list[ps.Table]) -> list[Any]:
    """In each round two push, and when both have the new weights the third comes too late."""
    seen = []
    for first, second, late in ROUNDS:
        for rank in (first, second):
            tables[rank].push(gradient(rank, tables[rank].step)).result()
        for rank in (first, second):
            pulled = tables[rank].pull().result()
            seen.append([rank, pulled.version, sorted(pulled.clocks.items())])
        tables[late].push(gradient(late, tables[late].step)).result()
        pulled = tables[late].pull().result()
        seen.append([late, pulled.version, sorted(pulled.clocks.items())])
    return seen


def run(
    servers: str, consistency: str, stay: Callable[[], None], told: Callable[[dict[str, Any]], None]
) -> None:
    """Runs one job, tells what it came to, and stays in it."""
    job = consistency.replace(":", "-").replace("=", "-")

    def join(rank: int) -> ps.Worker:
        return ps.connect(
            servers=servers,
            job=job,
            consistency=consistency,
            num_workers=WORKERS,
            worker=rank,
            carrier="tcp",
            lease=300.0,  # beside any load
        )

    def table(worker: ps.Worker) -> ps.Table:
        return worker.table(start(), optimizer=JOBS[consistency](), buckets=SIZES)

    workers = [join(rank) for rank in range(WORKERS)]  # one after the other: servers note who came first
    with ThreadPoolExecutor(WORKERS) as pool:
        tables = list(pool.map(table, workers))
    seen = by_rounds(tables) if consistency.startswith("bsp") else by_turns(tables)
    told(
        {
            "job": job,
            "seen": seen,
            "weights": digests(dict(tables[0].pull().result().values)),
            "ledgers": [
                ledger(stats) | {"max_gap": stats.max_gap} for stats in (it.stats() for it in workers)
            ],
        }
    )
    stay()


def main() -> None:
    """Runs the jobs one after the other; all stay until the end."""
    torch.set_num_threads(1)
    over = threading.Event()
    threading.excepthook = lambda failed: (sys.__excepthook__(*failed[:3]), os._exit(1))
    for consistency in JOBS:
        told = threading.Event()

        def tell(answer: dict[str, Any], told: threading.Event = told) -> None:
            print(json.dumps(answer), flush=True)
            told.set()

        threading.Thread(target=run, args=(sys.argv[1], consistency, over.wait, tell), daemon=True).start()
        told.wait()
    print(json.dumps({"standing": True}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
