"""The work of TensorFlow's ParameterServerStrategy, in PyTorch.

    ps-lab launch --num-servers 2 --num-workers 2 --consistency asp examples/tutorials/from_tensorflow.py

docs/tutorials/from-tensorflow.md puts a script of TensorFlow beside it, line by line.
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
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = worker.wrap(optimizer, model, buckets=ps.BucketOptions(partition_bytes=256 << 10))
        loader = worker.loader(dataset, batch_size=32, shuffle=True, seed=1)
        for _ in worker.epochs(args.epochs):
            for inputs, labels in loader:
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                worker.log(loss=loss)
        worker.finish()
        if worker.rank == 0:
            print(f"accuracy {measure(model, test)[1]:.3f}")
            if args.save:
                torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
