"""The script ddp.py with servers in place of DistributedDataParallel.

    ps-lab launch --num-workers 2 --consistency bsp examples/tutorials/from_ddp.py

docs/tutorials/from-ddp.md puts the two beside each other, line by line.
"""

import argparse

import torch
from planted import Net, load, measure
from torch import nn

import ps_worker as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save", help="a file for the weights")
    args = parser.parse_args()

    with ps.connect() as worker:
        dataset, test = load()
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = worker.wrap(optimizer, model, clip_grad_norm=1.0)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
        worker.register_state("scheduler", scheduler)
        loader = worker.loader(dataset, batch_size=32, shuffle=True)
        for _ in worker.epochs(args.epochs):
            for inputs, labels in loader:
                with optimizer.no_sync():
                    (nn.functional.cross_entropy(model(inputs[:16]), labels[:16]) / 2).backward()
                loss = nn.functional.cross_entropy(model(inputs[16:]), labels[16:]) / 2
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                worker.log(loss=loss)
            scheduler.step()
        mean = worker.all_reduce(loss.item())
        worker.finish()
        if worker.is_first:
            loss_of_test, accuracy = measure(model, test)
            print(f"loss {mean:.3f}, of the test {loss_of_test:.3f}, accuracy {accuracy:.3f}")
            if args.save:
                torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
