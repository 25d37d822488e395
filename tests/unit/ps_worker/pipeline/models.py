"""Models that can be cut into stages, each with one thing that forwards do between blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

WIDTH, CHARACTERS, CONTEXT = 8, 11, 6


class Block(nn.Module):
    """A residual block, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + self.dropout(self.mlp(self.norm(x if mask is None else x * mask)))


class Transformer(nn.Module):
    """Embeddings, a trunk whose blocks all get a mask, and an output layer that is tied to the embedding."""

    mask: Tensor

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.position = nn.Parameter(torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.rand(CONTEXT, 1), persistent=False)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        length = x.shape[1]
        assert length <= CONTEXT
        x = self.embedding(x) + self.position[:length] * scale
        mask = self.mask[:length]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Trunk(nn.Module):
    """Layers with a value of its own that all of them get."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.sigmoid(x.mean(-1, keepdim=True))
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Nested(nn.Module):
    """A trunk in a module of its own between Sequentials in each other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(5, WIDTH), nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
        self.trunk = Trunk()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(self.stem(x))).mean(1)


class Encoder(nn.Module):
    """torch's own encoder, whose forward looks at its masks where it is not told of them."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.1, batch_first=True)
        self.stem = nn.Linear(5, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.stem(x), mask=self.mask, is_causal=True)


class Skips(nn.Module):
    """A tensor of each block on the way down goes to one on the way up; a constant is made in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = []
        for layer in self.down:
            x = F.relu(layer(x))
            kept.append(x)
        for layer in self.up:
            x = layer(x + kept.pop()) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        return x, x.sum()
