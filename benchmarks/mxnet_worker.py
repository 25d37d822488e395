"""MXNet's `dist_sync` key-value store on the same unit of work; needs mxnet==1.9.1 and numpy==1.23.5.

Started by `peers.py` with the interpreter of an environment of its own; of this project it imports only
`turns`.
"""

from __future__ import annotations

import mxnet as mx

from ps_lab.bench.turns import read_configuration, take_turns

OPTIMIZERS = {"sgd": mx.optimizer.SGD, "adam": mx.optimizer.Adam, "adagrad": mx.optimizer.AdaGrad}


def main() -> None:
    configuration = read_configuration()
    shapes = [tuple(shape) or (1,) for shape in configuration["shapes"]]
    store = mx.kv.create("dist_sync")
    if store.rank == 0:
        store.set_optimizer(OPTIMIZERS[configuration["optimizer"]](learning_rate=1e-6))
    weights = [mx.nd.ones(shape) for shape in shapes]
    gradients = [mx.nd.ones(shape) * 1e-3 for shape in shapes]
    for key, weight in enumerate(weights):
        store.init(key, weight)
    mx.nd.waitall()
    store._barrier()

    def turn() -> None:
        for key, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
            store.push(key, gradient, priority=-key)
            store.pull(key, out=weight, priority=-key)
        mx.nd.waitall()

    take_turns(turn)


main()
