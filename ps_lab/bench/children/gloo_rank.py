"""One rank of gloo: all-reduces the whole gradient in buckets, then steps the fused optimizer over its copy.

The sum is not divided by the number of ranks: a learning rate can hold the division, so the peer is spared
it. Weights and gradient are one flat tensor each, which spares it the overhead of many.
"""

from __future__ import annotations

import datetime as dt

import torch
import torch.distributed as dist

from ps_lab.bench.children import optimizers
from ps_lab.bench.turns import read_configuration, take_turns

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default
START_LIMIT = dt.timedelta(minutes=5)


def main() -> None:
    """Joins the other ranks, and takes turns until told no more."""
    configuration = read_configuration()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{configuration['host']}:{configuration['port']}",
        rank=configuration["rank"],
        world_size=configuration["world_size"],
        timeout=START_LIMIT,
    )
    weights = torch.nn.Parameter(torch.ones(configuration["parameters"]))
    weights.grad = torch.full_like(weights, 1e-3)
    buckets = torch.split(weights.grad, BUCKET_BYTES // weights.element_size())
    optimizer = optimizers.make(configuration["optimizer"], [weights])

    def turn() -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
        optimizer.step()

    take_turns(turn)


if __name__ == "__main__":
    main()
