"""The best checkpoint of a run, with all that is needed to go on from it.

    ps-lab launch --num-workers 2 --consistency ssp:3 examples/tutorials/best_checkpoint.py --save best.pt

docs/tutorials/best-checkpoint.md explains it.
"""

import argparse
import math
from pathlib import Path

import torch
from planted import Net, load, measure
from torch import nn

import ps_worker as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save", type=Path, default="best.pt")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    args = parser.parse_args()

    dataset, held_out = load()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, betas=(0.5, 0.99))
    first = 0
    if args.resume:
        kept = torch.load(args.resume, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["epoch"] + 1
    with ps.connect() as worker:
        optimizer = worker.wrap(optimizer, model)
        best = torch.tensor(math.inf)
        worker.register_state("best", best)
        loader = worker.loader(dataset, batch_size=32)
        for epoch in worker.epochs(args.epochs, start=first):
            for inputs, labels in loader:
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if worker.is_first:
                loss_now, accuracy = measure(model, held_out)
                print(f"epoch {epoch}: loss {loss_now:.3f}, accuracy {accuracy:.3f}")
                if loss_now < best:
                    best.fill_(loss_now)
                    half = args.save.with_suffix(".half")
                    kept = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(kept, half)
                    half.replace(args.save)
        worker.finish()
        if worker.is_first:
            print(f"the best loss is {best:.3f}; its weights are in {args.save}")


if __name__ == "__main__":
    main()
