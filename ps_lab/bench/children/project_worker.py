"""A worker of the project: pushes the gradient of every parameter and pulls every new weight, each turn.

Run by `ps-worker`. It takes the way of a training script, `worker.wrap`, with gradients that are there
already, where they are pushed from (as those of the gloo peer lie in its flat buckets): the weights of a step
then arrive in the parameters themselves.
"""

from __future__ import annotations

import torch

import ps_worker as ps
from ps_lab.bench.children import optimizers
from ps_lab.bench.turns import read_configuration, take_turns


def main() -> None:
    """Joins, and takes turns until told no more."""
    configuration = read_configuration()
    torch.set_num_threads(1)
    model = torch.nn.ParameterList([torch.ones(shape) for shape in configuration["shapes"]])
    with ps.connect() as worker:
        inner = optimizers.make(configuration["optimizer"], model, fused=False)
        optimizer = worker.wrap(inner, model, overlap=False, gradient_as_bucket_view=True)
        for parameter in model:  # only now: what the servers have taken is not here twice
            parameter.grad = torch.full_like(parameter, 1e-3)

        def turn() -> None:
            optimizer.step()
            worker.synchronize()

        take_turns(turn, worker.finish)


if __name__ == "__main__":
    main()
