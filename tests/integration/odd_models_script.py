"""Models that are odd in a pipeline, one by one: each says whether it came to the bits of one process.

Arguments: rows of a model's name in `MODELS`, a schedule and the number of stages, with colons between them.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import Tensor, nn

import ps_worker as ps

MICROBATCHES, BATCH, STEPS = 4, 8, 3


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """A view, too."""
    return nn.functional.mse_loss(output, target).unsqueeze(0)[0]


def layers(count: int) -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(8, 8) for _ in range(count)])


class Statistics(nn.Sequential):
    """Each stage has buffers that change without a new version of their tensors."""

    def __init__(self) -> None:
        parts = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(4)]
        super().__init__(*parts, nn.Linear(8, 3))


class Sideways(nn.Module):
    """What goes on from one stage does not depend on what came to it; in another a weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = layers(6), nn.Linear(8, 3)
        self.shift, self.scale = (nn.Parameter(torch.randn(8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = x + block(x).tanh()
            if index == 2:
                shift = self.shift.tanh()
            if index in (4, 5):
                x = x * self.scale
        return self.head(x + shift)


class Frozen(nn.Sequential):
    """The third of four stages is trained, and nothing before."""

    def __init__(self) -> None:
        super().__init__(*layers(6), nn.Linear(8, 3))
        for index in range(4):
            self[index].requires_grad_(False)


class Wide(nn.Module):
    """What goes from stage to stage has several elements in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.head = nn.Linear(8, 1), layers(4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x).expand(-1, 8)
        for block in self.blocks:
            x = block(x) + wide
        return self.head(x)


class Turning(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).t().contiguous().t()


class Turned(nn.Sequential):
    """Stages give views."""

    def __init__(self) -> None:
        super().__init__(*(Turning(8, 8) for _ in range(4)), nn.Linear(8, 3))


MODELS = {
    "statistics": Statistics,
    "sideways": Sideways,
    "frozen": Frozen,
    "wide": Wide,
    "turned": Turned,
}


def alone(model: nn.Module, inputs: Tensor, target: Tensor) -> None:
    """The gradients of a batch in one process, in the order of a pipeline."""
    for part, wanted in zip(inputs.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        loss_of(model(part), wanted).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(MICROBATCHES)


def main() -> None:
    with ps.connect() as worker:
        for row in sys.argv[1:]:
            name, schedule, stages = row.split(":")
            torch.manual_seed(3)
            model = MODELS[name]()
            other = copy.deepcopy(model)
            batches = [(torch.randn(BATCH, 8), torch.randn(BATCH, 3)) for _ in range(STEPS)]
            pipe = worker.pipeline(
                model,
                microbatches=MICROBATCHES,
                example=batches[0][0],
                schedule=schedule,
                stages=int(stages),
            )
            wrapped = worker.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), pipe)
            reference = torch.optim.AdamW(other.parameters(), lr=0.01, fused=True)  # as the servers run it
            for batch in batches:
                for optimizer in (wrapped, reference):
                    optimizer.zero_grad()
                pipe.step(*batch, loss_fn=loss_of)
                alone(other, *batch)
                for optimizer in (wrapped, reference):
                    optimizer.step()
            pipe.evaluate(*batches[0], loss_fn=loss_of)
            for part in batches[0][0].chunk(MICROBATCHES):
                other(part)
            has, whole = pipe.state_dict(), other.state_dict()
            if worker.group_rank == 0:  # which keeps all buffers with the job
                has |= dict(model.named_buffers())
            differ = [key for key, it in has.items() if not torch.equal(it, whole[key])]
            print("differ" if differ else "same", row, *differ, flush=True)
        worker.finish()


if __name__ == "__main__":
    main()
