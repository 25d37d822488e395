"""The script torch_rpc.py with servers that exist already.

    ps-lab launch --num-servers 1 --num-workers 2 --consistency asp examples/tutorials/from_torch_rpc.py

docs/tutorials/from-torch-rpc.md puts the two beside each other, line by line.
"""

import argparse

from planted import Net, load, measure
from torch import nn

import ps_worker as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dataset, test = load()
    model = Net()
    with ps.connect() as worker:
        table = worker.table(dict(model.named_parameters()), optimizer=ps.SGD(lr=0.05))
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        table.pull(out=weights).result()
        loader = worker.loader(dataset, batch_size=32)
        for _ in worker.epochs(args.epochs):
            for inputs, labels in loader:
                model.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
                table.push(gradients)
                table.pull(out=weights).result()
        worker.finish()
        table.pull(out=weights).result()
        if worker.rank == 0:
            print(f"accuracy {measure(model, test)[1]:.3f}")


if __name__ == "__main__":
    main()
