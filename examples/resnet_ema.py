"""A small ResNet with BatchNorm on scikit-learn's digits, and a moving average (EMA) of its weights.

    ps-lab launch --num-workers 2 --consistency ssp:2 examples/resnet_ema.py --epochs 4

The lines marked `# ps` are all that the servers add. The statistics of BatchNorm are each worker's own while
it trains; `finish` loads those of the lowest worker with the final weights. The average is each worker's own,
of the weights that it has seen.
"""

import argparse

import safetensors.torch
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import ps_worker as ps


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + self.shortcut(x)).relu()


class ResNet(nn.Sequential):
    def __init__(self, width: int = 8) -> None:
        super().__init__(
            *(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)),
        )


def load() -> tuple[TensorDataset, TensorDataset]:
    """1408 training and 389 test digits of 8x8, always the same."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    parts = train_test_split(images, torch.tensor(labels), train_size=1408, random_state=0, stratify=labels)
    return TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--decay", type=float, default=0.95, help="of the moving average, per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="a file for the final weights, buffers and average, as safetensors")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load()
    model = ResNet()
    with ps.connect() as worker:  # ps
        optimizer = torch.optim.SGD(
            model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4
        )
        optimizer = worker.wrap(optimizer, model)  # ps
        loader = worker.loader(train, batch_size=args.batch_size, seed=args.seed)  # ps
        scheduler = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, milestones=[args.epochs // 2, args.epochs * 3 // 4], gamma=0.2
        )
        worker.register_state("scheduler", scheduler)  # ps
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.decay))
        worker.register_state("ema", ema)  # ps
        loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
        for _ in worker.epochs(args.epochs):  # ps
            model.train()
            for images, labels in loader:
                loss_of(model(images), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                worker.synchronize()  # ps: the weights are read outside the model's forward
                ema.update_parameters(model)
            scheduler.step()
        worker.finish()  # ps

        images, labels = test.tensors
        accuracies = []
        for evaluated in (model, ema):
            evaluated.eval()
            with torch.no_grad():
                accuracies.append((evaluated(images).argmax(dim=1) == labels).float().mean().item())
        if worker.rank == 0:  # ps
            print(f"test accuracy {accuracies[0]:.4f}, of the average {accuracies[1]:.4f}")
            if args.save:
                average = {f"ema.{name}": value for name, value in ema.module.state_dict().items()}
                safetensors.torch.save_file({**model.state_dict(), **average}, args.save)


if __name__ == "__main__":
    main()
