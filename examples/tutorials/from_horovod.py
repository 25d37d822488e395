"""The habits of a Horovod script, with servers.

    ps-lab launch --num-workers 2 --consistency bsp examples/tutorials/from_horovod.py

docs/tutorials/from-horovod.md puts a script of Horovod beside it, line by line.
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
        torch.manual_seed(worker.rank)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * worker.num_workers, momentum=0.9)
        optimizer = worker.wrap(optimizer, model)
        loader = worker.loader(dataset, batch_size=16, shuffle=True)
        for epoch in worker.epochs(args.epochs):
            for number, (inputs, labels) in enumerate(loader):
                loss = nn.functional.cross_entropy(model(inputs), labels) / 2
                if number % 2 == 0:
                    with optimizer.no_sync():
                        loss.backward()
                    continue
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            mean = worker.all_reduce(loss.item())
            if worker.rank == 0:
                print(f"epoch {epoch}: loss {mean:.3f}")
        worker.finish()
        if worker.rank == 0:
            print(f"accuracy {measure(model, test)[1]:.3f}")
            if args.save:
                torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
