"""A character-level transformer in four stages, each in a process of its own. `# ps`: what the servers add.

    ps-lab launch --num-workers 1 --pipeline-stages 4 examples/char_lm_pipeline.py --steps 200

Two pipelines of two stages each, asynchronous to each other:

    ps-lab launch --num-workers 2 --pipeline-stages 2 --consistency ssp:2 examples/char_lm_pipeline.py

A stage in a terminal of its own: ps-worker --worker 0 --pipeline-stages 4 --stage 2 ... The text is that of
Python's own documentation. ps-lab pipeline plan examples/char_lm_pipeline.py:build --stages 4 shows stages.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ps_worker as ps

CONTEXT = 64  # characters that a prediction may look back
TEXT = "".join(topics[name] for name in sorted(topics))
CHARACTERS = sorted(set(TEXT))


class Transformer(nn.Module):
    def __init__(self, width: int = 144, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) + self.position
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


def pieces(count: int, seed: int) -> TensorDataset:
    """Pieces of the text from fixed random places: characters, and the ones that follow them."""
    number = {character: index for index, character in enumerate(CHARACTERS)}
    every = torch.tensor([number[character] for character in TEXT]).unfold(0, CONTEXT + 1, 1)
    starts = torch.randint(len(every), (count,), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(every[starts][:, :-1], every[starts][:, 1:])


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def build() -> tuple[nn.Module, Tensor]:
    return Transformer(), pieces(16, 0).tensors[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300, help="of each pipeline")
    parser.add_argument("--batch-size", type=int, default=16, help="of each pipeline")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    with ps.connect() as worker:  # ps
        data = pieces(args.steps * args.batch_size * worker.num_workers, args.seed)
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        pipe = worker.pipeline(  # ps
            model,
            example=data.tensors[0][: args.batch_size],
            schedule=args.schedule,
            microbatches=args.microbatches,
        )
        optimizer = worker.wrap(optimizer, pipe)  # ps
        loader = worker.loader(data, batch_size=args.batch_size, shuffle=False)  # ps
        print(f"stage {worker.group_rank} begins with {pipe.cuts[worker.group_rank]}")
        for x, y in loader:
            loss = pipe.step(x, y, loss_fn=loss_of)  # ps
            optimizer.step()
            optimizer.zero_grad()
            if worker.is_first and worker.step % 20 == 0:  # ps
                print(f"step {worker.step}: loss {loss.item():.3f}")
        worker.finish()  # ps


if __name__ == "__main__":
    main()
