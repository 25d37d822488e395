"""A CNN on images of digits with OneCycleLR and clipped gradients: MNIST without the download.

    ps-lab launch --num-workers 2 --consistency bsp examples/mnist_like.py --epochs 4

scikit-learn's scanned digits, upsampled to 16x16. The lines marked `# ps` are all that the servers add. Each
worker clips its own gradient, before the servers average: a script sees no other.
"""

import argparse

import safetensors.torch
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import ps_worker as ps


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(24 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
        )


def load() -> tuple[TensorDataset, TensorDataset]:
    """1408 training and 389 test digits of 16x16, always the same."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    images = nn.functional.interpolate(images, size=16, mode="bilinear")
    parts = train_test_split(images, torch.tensor(labels), train_size=1408, random_state=0, stratify=labels)
    return TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.1, help="the largest")
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of a gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="a file for the final weights, as safetensors")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load()
    model = Net()
    with ps.connect() as worker:  # ps
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        optimizer = worker.wrap(optimizer, model)  # ps
        loader = worker.loader(train, batch_size=args.batch_size, seed=args.seed, drop_last=True)  # ps
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=args.lr, total_steps=args.epochs * len(loader)
        )
        worker.register_state("scheduler", scheduler)  # ps
        for _ in worker.epochs(args.epochs):  # ps
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                scheduler.step()
        worker.finish()  # ps

        images, labels = test.tensors
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        if worker.rank == 0:  # ps
            print(f"test accuracy {accuracy:.4f}")
            if args.save:
                safetensors.torch.save_file(dict(model.named_parameters()), args.save)


if __name__ == "__main__":
    main()
