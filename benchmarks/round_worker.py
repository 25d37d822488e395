"""One worker of a round-trip benchmark: pushes every gradient and pulls every weight, round after round.

Run by `roundtrip.py` through `ps-worker`; waits for a line on stdin before each round, so that rounds of
different systems can be interleaved, and answers with the seconds that the round took.
"""

from __future__ import annotations

import sys
import time

import torch
from shapes import MODELS

import ps_worker as ps


def main() -> None:
    model, partition_kib, optimizer = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    shapes = MODELS[model]()
    weights = {str(index): torch.ones(shape) for index, shape in enumerate(shapes)}
    gradients = {name: torch.full_like(tensor, 1e-3) for name, tensor in weights.items()}
    buckets = ps.BucketOptions(partition_bytes=partition_kib << 10)
    with ps.connect() as worker:
        table = worker.table(weights, optimizer=getattr(ps, optimizer)(lr=1e-6), buckets=buckets)
        print("ready", flush=True)
        for _ in sys.stdin:
            started_s = time.perf_counter()
            table.push(gradients)
            table.pull(out=weights).result()
            print(time.perf_counter() - started_s, time.process_time(), flush=True)


main()
