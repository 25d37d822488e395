"""A small CNN on scikit-learn's scanned digits, trained by groups of ranks. `# ps`: what the servers add.

    ps-lab launch --num-workers 2 --group-size 2 --consistency ssp:3 examples/digits_groups.py --epochs 10

Two groups of two processes each: the ranks of a group reduce their gradients among themselves, and are one
worker for the servers. The batch size is that of a rank.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import ps_worker as ps


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
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = load()
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    with ps.connect() as worker:  # ps
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.5, 0.99))
        optimizer = worker.wrap(optimizer, model)  # ps
        loader = worker.loader(train, batch_size=args.batch_size)  # ps: each rank gets its part of each batch
        for epoch in worker.epochs(args.epochs):  # ps
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if worker.group is not None:  # ps: a figure over the ranks of this group
                mean = loss.detach().clone()
                dist.all_reduce(mean, group=worker.group)
                loss = mean / worker.group_size
            if worker.is_first:  # ps: one process of all
                print(f"epoch {epoch}: loss {loss.item():.4f}")
        worker.finish()  # ps: all have finished: these are the final weights

        images, labels = test.tensors
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        if worker.is_first:  # ps
            print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
