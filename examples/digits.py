"""A small CNN on scikit-learn's scanned digits. The lines marked `# ps` are all that the servers add.

    ps-lab launch --num-workers 4 --consistency ssp:3 examples/digits.py --epochs 10

The defaults reach 97 % test accuracy under bsp, ssp:3 and asp with 4 workers. Under ssp and asp each gradient
is applied by itself, to weights that have moved on since it was computed: a low beta1 (less momentum) is what
makes one set of hyper-parameters good for all three.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import ps_worker as ps


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10)),
        )


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test digits: 1437 and 360 images of 8x8, always the same."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    labels = torch.tensor(labels)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label-skew", type=float, help="alpha: each worker has other shares of the digits")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load()
    model = Net()
    with ps.connect() as worker:  # ps
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.5, 0.99))
        optimizer = worker.wrap(optimizer, model)  # ps
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
        worker.register_state("scheduler", scheduler)  # ps
        if args.label_skew:
            number = worker.rank * worker.group_size + worker.group_rank
            skew = {"alpha": args.label_skew, "worker": number, "seed": args.seed}
            train = ps.LabelSkew(train, train.tensors[1], **skew)
        loader = worker.loader(train, batch_size=args.batch_size, shuffle=True, seed=args.seed)  # ps
        start = time.perf_counter()
        for _ in worker.epochs(args.epochs):  # ps
            model.train()
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                worker.log(loss=loss.item())  # ps
            scheduler.step()
        worker.finish()  # ps: all have finished: these are the final weights
        seconds = time.perf_counter() - start

        model.eval()
        images, labels = test.tensors
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        worker.log(accuracy=accuracy, seconds=seconds)  # ps
        if worker.rank == 0:  # ps
            print(f"test accuracy {accuracy:.4f} after {seconds:.1f} s")


if __name__ == "__main__":
    main()
