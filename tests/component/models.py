"""Small models for tests, each with one thing that training scripts do."""

from __future__ import annotations

import torch
from torch import nn

from tests.component.reference import batch


class Mlp(nn.Module):
    """Sizes that are no multiple of 16, so that cuts and padding matter."""

    def __init__(self, width: int = 37) -> None:
        super().__init__()
        self.first = nn.Linear(13, width)
        self.second = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class Tied(nn.Module):
    """The output layer is the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 7)
        self.middle = nn.Linear(7, 7)
        self.out = nn.Linear(7, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.middle(self.embedding(x))))


class Branches(nn.Module):
    """Only the chosen branch takes part; `never` takes no part at all."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(13, 8)
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 3)
        self.never = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, *, left: bool) -> torch.Tensor:
        hidden = torch.tanh(self.trunk(x))
        return self.left(hidden) if left else self.right(hidden)


class Conv(nn.Module):
    """A convolution with weights in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.out = nn.Linear(5 * 4 * 4, 2)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x)).flatten(1))


class Normed(nn.Module):
    """BatchNorm has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 6)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.first(x)))


def loss_of(model: nn.Module, rank: int, step: int, samples: int = 4) -> torch.Tensor:
    """A loss of an `Mlp` that depends on worker and step."""
    return model(batch(rank, step, samples, 13)).square().mean()
