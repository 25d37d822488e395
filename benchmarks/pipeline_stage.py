"""One stage of the pipeline benchmark, which takes turns: the project's pipeline, or torch's own.

Both run torch's 1f1b over the same stages of the same model. The project's pushes to servers, which step;
torch's steps a fused AdamW of its own.
"""

import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import ps_worker as ps
from ps_lab.bench.turns import read_configuration, take_turns
from ps_worker.pipeline.blocks import blocks_of

WIDTH, CONTEXT, BLOCKS = 256, 64, 8


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(BLOCKS)
        )
    )


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def project(configuration: Mapping[str, Any], x: Tensor, target: Tensor) -> None:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with ps.connect() as worker:
        pipe = worker.pipeline(model, example=x, microbatches=configuration["microbatches"])
        wrapped = worker.wrap(optimizer, pipe)

        def turn() -> None:
            for _ in range(configuration["steps"]):
                pipe.step(x, target, loss_fn=loss_of)
                wrapped.step()
                wrapped.zero_grad()

        take_turns(turn, tensors=0, parameters=0)


def torchs(configuration: Mapping[str, Any], x: Tensor, target: Tensor) -> None:
    rank, stages = configuration["rank"], configuration["stages"]
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{configuration['port']}", rank=rank, world_size=stages
    )
    blocks = blocks_of(build())
    cuts = [BLOCKS * stage // stages for stage in range(stages + 1)]
    begin, end = list(pairwise(cuts))[rank]
    module = blocks.stage(begin, end)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, configuration["microbatches"], loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def turn() -> None:
        for _ in range(configuration["steps"]):
            if rank == 0:
                schedule.step(x, target=target, losses=[]) if stages == 1 else schedule.step(x)
            elif rank == stages - 1:
                schedule.step(target=target, losses=[])
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()

    take_turns(turn, tensors=0, parameters=0)


def main() -> None:
    configuration = read_configuration()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    x = torch.randn(configuration["batch_size"], CONTEXT, WIDTH, generator=torch.Generator().manual_seed(1))
    {"project": project, "torch": torchs}[configuration["mode"]](configuration, x, -x)


if __name__ == "__main__":
    main()
