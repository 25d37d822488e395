"""A training script on a GPU: says whether it comes to the weights of plain torch there, bit for bit.

Arguments: words that change what it does. All workers compute on the same GPU, which gets work in backward
that keeps it busy, so that gradients are there long after the host has queued what makes them.
"""

from __future__ import annotations

import copy
import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

import ps_worker as ps

STEPS, WORKERS, WIDTH, BATCH = 6, 2, 192, 16
LR = 2.0**-5  # its products are exact: kernels may round before they add, or not
BUSY_CYCLES = 2_000_000  # of the GPU's clock: some 1 ms
SCALE = 2.0**8
BUCKETS = ps.BucketOptions(first_bucket_bytes=1 << 16, bucket_bytes=1 << 18)
GPU = torch.device("cuda")


class Busy(torch.autograd.Function):
    """Nothing but time on the GPU, in backward."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(BUSY_CYCLES)
        return gradient


class Block(nn.Module):
    def __init__(self, *, busy: bool) -> None:
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.busy = busy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x + torch.tanh(self.inside(self.norm(x)))
        return Busy.apply(made) if self.busy else made


def model_of(words: list[str]) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(*(Block(busy="compiled" not in words) for _ in range(6)), nn.Linear(WIDTH, 3))
    return made.bfloat16() if "half" in words else made


def loss_of(forward: Any, rank: int, step: int, words: list[str]) -> torch.Tensor:
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step)).to(GPU)
    with torch.autocast("cuda", torch.float16) if "scaled" in words else nullcontext():
        made = forward(x.bfloat16() if "half" in words else x)
    return made.float().square().mean()


def compiled(model: nn.Module, words: list[str]) -> Any:
    mode = "reduce-overhead" if "graphs" in words else "default"
    return torch.compile(model, mode=mode) if "compiled" in words else model


def served(worker: ps.Worker, model: nn.Module, words: list[str]) -> Any:
    if "moved" not in words:
        model.to(GPU)
    optimizer = worker.wrap(
        torch.optim.SGD(model.parameters(), lr=LR),
        model,
        overlap={"on": True, "off": False}.get(words[0], "auto"),
        gradient_as_bucket_view="views" in words,
        buckets=BUCKETS,
    )
    model.to(GPU)
    forward = compiled(model, words)
    scaler = torch.amp.GradScaler("cuda", init_scale=SCALE, enabled="scaled" in words)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(forward, worker.rank, step, words)).backward()
        scaler.step(optimizer)
        scaler.update()
    worker.synchronize()
    return optimizer


def alone(model: nn.Module, words: list[str]) -> None:
    """Plain torch: steps by the mean of all workers' gradients; weights in float32 beside the model."""
    model.to(GPU)
    forward = compiled(model, words)
    masters = [it.detach().float() for it in model.parameters()]
    scale = SCALE if "scaled" in words else 1.0
    for step in range(STEPS):
        totals = [torch.zeros_like(it) for it in masters]
        for rank in range(WORKERS):
            model.zero_grad()
            (loss_of(forward, rank, step, words) * scale).backward()
            for total, it in zip(totals, model.parameters(), strict=True):
                assert it.grad is not None
                total.add_(it.grad.float() / scale)
        with torch.no_grad():
            for master, total, it in zip(masters, totals, model.parameters(), strict=True):
                master.sub_(total / WORKERS * LR)
                it.copy_(master)


def main() -> None:
    words = sys.argv[1:]
    torch.use_deterministic_algorithms(mode=True)
    with ps.connect() as worker:
        model = model_of(words)
        expected = copy.deepcopy(model)
        optimizer = served(worker, model, words)
        worker.finish()
        alone(expected, words)
        for (name, mine), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
            assert mine.device.type == "cuda", name
            assert mine.isfinite().all(), name
            assert torch.equal(mine, theirs), (name, (mine - theirs).abs().max())
        print("same weights, overlaps:", optimizer.overlaps, flush=True)


main()
