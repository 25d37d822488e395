"""Models of the step benchmark: small enough for a few cores, with layers as real models have them.

One computes nothing, and takes as long: where several hosts are on one machine, it stands for hosts each of
which has an accelerator.

Legend: B = batch, D = width, T = tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

MLP_WIDTH, MLP_BLOCKS = 1024, 12  # 50 million parameters
GPT_WIDTH, GPT_HEADS, GPT_BLOCKS, GPT_VOCABULARY, GPT_TOKENS = 384, 6, 6, 4096, 64
WAITING_WIDTH, WAITING_BLOCKS = 1072, 12  # as many parameters as the GPT, 13.8 million
WAITING_FORWARD_S, WAITING_BACKWARD_S = 0.017, 0.033  # of a block: with all, what four GPTs take on two cores
CNN_CHANNELS, CNN_CLASSES, CNN_PIXELS = 64, 10, 32


class SplitLinear(nn.Module):
    """A linear layer whose rows lie in several parameters: the same arithmetic in smaller tensors."""

    def __init__(self, inputs: int, outputs: int, *, split: int) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs)
        self.weights = nn.ParameterList(part.clone() for part in whole.weight.detach().tensor_split(split))
        self.biases = nn.ParameterList(part.clone() for part in whole.bias.detach().tensor_split(split))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs) -> (B, outputs)."""
        parts = [functional.linear(x, *part) for part in zip(self.weights, self.biases, strict=True)]
        return torch.cat(parts, dim=-1)


class Residual(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, inputs, height, width) -> (B, outputs, height / stride, width / stride)."""
        return functional.relu(self.body(x) + self.shortcut(x))


class Gpt(nn.Module):
    """A causal transformer over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(GPT_VOCABULARY, GPT_WIDTH)
        layer = nn.TransformerEncoderLayer(
            GPT_WIDTH, GPT_HEADS, 4 * GPT_WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, GPT_BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(GPT_WIDTH, GPT_VOCABULARY)
        self.mask: torch.Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(GPT_TOKENS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T) -> (B, vocabulary, T)."""
        hidden = self.blocks(self.embedding(tokens), mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden).transpose(1, 2)
        return logits


class _Elsewhere(torch.autograd.Function):
    """Computation of an accelerator: it takes its time, and no core."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """(B, D), (D, D) -> (B, D)."""
        ctx.save_for_backward(weight)
        time.sleep(WAITING_FORWARD_S)
        return x + weight[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, D) -> (B, D), (D, D)."""
        (weight,) = ctx.saved_tensors
        time.sleep(WAITING_BACKWARD_S)
        return gradient, torch.full_like(weight, 1e-6)


class Waiting(nn.Module):
    """A layer of D x D parameters whose forward and backward are elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WAITING_WIDTH, WAITING_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, D) -> (B, D)."""
        made: torch.Tensor = _Elsewhere.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return made


def waiting(_split: int) -> nn.Module:
    """See `Waiting`."""
    return nn.Sequential(*(Waiting() for _ in range(WAITING_BLOCKS)))


def mlp(split: int) -> nn.Module:
    """Blocks of two linear layers, D -> 2 D -> D."""
    layers: list[nn.Module] = []
    for _ in range(MLP_BLOCKS):
        layers.append(SplitLinear(MLP_WIDTH, 2 * MLP_WIDTH, split=split))
        layers.append(nn.ReLU())
        layers.append(SplitLinear(2 * MLP_WIDTH, MLP_WIDTH, split=split))
    return nn.Sequential(*layers)


def cnn(_split: int) -> nn.Module:
    """A small ResNet."""
    width = CNN_CHANNELS
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width, width, 2),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CNN_CLASSES),
    )


def gpt(_split: int) -> nn.Module:
    """See `Gpt`."""
    return Gpt()


BUILD: dict[str, Callable[[int], nn.Module]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "waiting": waiting}


def make_loss(
    name: str, batch_size: int, seed: int, device: torch.device
) -> Callable[[nn.Module], torch.Tensor]:
    """A function from the model to its loss on one batch, the same at each call and on each device."""
    generator = torch.Generator().manual_seed(seed)
    if name in ("mlp", "waiting"):
        width = MLP_WIDTH if name == "mlp" else WAITING_WIDTH
        values = torch.randn(batch_size, width, generator=generator).to(device)
        return lambda model: model(values).square().mean()
    if name == "cnn":
        x = torch.randn(batch_size, 3, CNN_PIXELS, CNN_PIXELS, generator=generator)
        y = torch.randint(CNN_CLASSES, (batch_size,), generator=generator)
    else:
        x = torch.randint(GPT_VOCABULARY, (batch_size, GPT_TOKENS), generator=generator)
        y = torch.randint(GPT_VOCABULARY, (batch_size, GPT_TOKENS), generator=generator)
    x, y = x.to(device), y.to(device)
    return lambda model: functional.cross_entropy(model(x), y)
