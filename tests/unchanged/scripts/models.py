"""The three models that are trained, and their batches: fixed by numbers alone."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    """Sizes that are no multiple of 16, so that cuts and padding matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 67)
        self.second = nn.Linear(67, 29)
        self.third = nn.Linear(29, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Tied(nn.Module):
    """The output layer is the embedding's matrix; one layer never takes part."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(41, 13)
        self.middle = nn.Linear(13, 13)
        self.never = nn.Linear(13, 13)
        self.out = nn.Linear(13, 41, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x.abs() * 100).long() % 41
        return self.out(torch.tanh(self.middle(self.embedding(words).mean(1))))


class Conv(nn.Module):
    """A convolution in channels_last, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.out = nn.Linear(5 * 11, 3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.reshape(len(x), 1, 1, 13).expand(-1, 1, 3, 13)
        return self.out(torch.relu(self.norm(self.conv(image))).flatten(1))


MODELS = {"Mlp": Mlp, "Tied": Tied, "Conv": Conv}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Of a batch that worker and step fix."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    return model(torch.randn(8, 13, generator=random)).square().mean()
