"""A small GPT with autocast, a GradScaler, accumulated gradients, warm-up and, with --compile, torch.compile.

    ps-lab launch --num-workers 2 --consistency bsp examples/gpt_amp.py --steps 100 --compile inductor

It reads the text of Python's own documentation, a character at a time. The lines marked `# ps` are all that
the servers add.
"""

import argparse
import contextlib
import math
from pydoc_data.topics import topics

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import ps_worker as ps


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*split.unbind(), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The output layer's weights are the embedding's."""

    def __init__(self, characters: int, context: int, width: int, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.embedding.weight
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.embedding(x) + self.position(places))))


def load(count: int, context: int) -> tuple[TensorDataset, int]:
    """`count` pieces of the text from random places, always the same, and the number of characters."""
    text = "".join(topics[name] for name in sorted(topics))
    number = {character: index for index, character in enumerate(sorted(set(text)))}
    starts = torch.randint(len(text) - context, (count,), generator=torch.Generator().manual_seed(0))
    pieces = torch.tensor([number[character] for character in text]).unfold(0, context + 1, 1)[starts]
    return TensorDataset(pieces[:, :-1], pieces[:, 1:]), len(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="of each worker's micro-batches")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--context", type=int, default=64, help="characters a prediction may look back")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of autocast")
    parser.add_argument("--compile", metavar="BACKEND", help="of torch.compile, such as inductor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="a file for the final weights, as safetensors")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    with ps.connect() as worker:  # ps
        samples = args.steps * args.accumulate * args.batch_size * worker.num_workers
        data, characters = load(samples, args.context)
        model = GPT(characters, args.context, args.width)
        decay = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        no_decay = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
        optimizer = worker.wrap(optimizer, model)  # ps
        warmup = max(1, args.steps // 10)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / args.steps)),
        )
        scaler = torch.amp.GradScaler("cpu")
        worker.register_state("scheduler", scheduler)  # ps
        worker.register_state("scaler", scaler)  # ps
        forward = torch.compile(model, backend=args.compile) if args.compile else model

        losses = []
        loader = worker.loader(data, batch_size=args.batch_size, seed=args.seed)  # ps
        for number, (x, y) in enumerate(loader, start=1):
            last = number % args.accumulate == 0
            with contextlib.nullcontext() if last else optimizer.no_sync():  # ps
                with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
                    loss = F.cross_entropy(forward(x).flatten(0, 1), y.flatten())
                scaler.scale(loss / args.accumulate).backward()
            losses.append(loss.item())
            if last:
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()
        worker.finish()  # ps
        if worker.rank == 0:  # ps
            print(f"loss {sum(losses[-10:]) / 10:.4f}")
            if args.save:
                safetensors.torch.save_file(dict(model.named_parameters()), args.save)


if __name__ == "__main__":
    main()
