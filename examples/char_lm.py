"""A character-level transformer of about a million parameters on the text of Python's own documentation.

    ps-lab launch --num-workers 2 --consistency bsp examples/char_lm.py --steps 200

The lines marked `# ps` are all that the servers add.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import ps_worker as ps

CONTEXT = 64  # characters that a prediction may look back


class Text(Dataset):
    """`count` pieces of the text from fixed random places: characters, and the ones that follow them."""

    def __init__(self, count: int, seed: int) -> None:
        text = "".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        number = {character: index for index, character in enumerate(self.characters)}
        self.text = torch.tensor([number[character] for character in text])
        places = torch.Generator().manual_seed(seed)
        self.starts = torch.randint(len(text) - CONTEXT, (count,), generator=places)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.text[self.starts[index] : self.starts[index] + CONTEXT + 1]
        return piece[:-1], piece[1:]


class Transformer(nn.Module):
    def __init__(self, characters: int, width: int = 144, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x) + self.position, mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300, help="of each worker")
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)

    with ps.connect() as worker:  # ps
        data = Text(args.steps * args.batch_size * worker.num_workers, args.seed)
        model = Transformer(len(data.characters))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        optimizer = worker.wrap(optimizer, model)  # ps
        loader = worker.loader(data, batch_size=args.batch_size, shuffle=False)  # ps
        if worker.rank == 0:  # ps
            print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(data.text):,} characters")
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.log(loss=loss.item())  # ps
            if worker.rank == 0 and worker.step % 20 == 0:  # ps
                print(f"step {worker.step}: loss {loss.item():.3f}")
        worker.finish()  # ps


if __name__ == "__main__":
    main()
