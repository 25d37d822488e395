"""Early stopping that one worker decides.

    ps-lab launch --num-workers 2 --consistency ssp:3 examples/tutorials/early_stopping.py

docs/tutorials/early-stopping.md explains it.
"""

import argparse
import math

import torch
from planted import Net, load, measure
from torch import nn

import ps_worker as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100, help="at most")
    parser.add_argument("--patience", type=int, default=2, help="epochs without a better loss")
    parser.add_argument("--better-by", type=float, default=0.02, help="smaller gains do not count")
    args = parser.parse_args()

    dataset, held_out = load()
    model = Net()
    with ps.connect() as worker:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        optimizer = worker.wrap(optimizer, model)
        best = torch.tensor([math.inf, 0.0])  # the loss, and the epochs since
        worker.register_state("best", best)
        loader = worker.loader(dataset, batch_size=32)
        for epoch in worker.epochs(args.epochs):
            model.train()
            for inputs, labels in loader:
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if worker.rank == 0:
                model.eval()
                loss_now, accuracy = measure(model, held_out)
                worker.log(held_out_loss=loss_now, accuracy=accuracy)
                print(f"epoch {epoch}: loss {loss_now:.3f}, accuracy {accuracy:.3f}")
                if loss_now < best[0] - args.better_by:
                    best[0], best[1] = loss_now, 0.0
                else:
                    best[1] += 1
                if best[1] == args.patience + 1:
                    last = worker.stop_job(f"no better than {best[0]:.3f} for {args.patience} epochs")
                    print(f"epoch {last} is the last one for all workers")
        worker.finish()
        print(f"worker {worker.rank} has the final weights: accuracy {measure(model, held_out)[1]:.3f}")


if __name__ == "__main__":
    main()
