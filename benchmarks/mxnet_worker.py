"""MXNet's `dist_sync` key-value store on the same unit of work; needs mxnet==1.9.1 and numpy==1.23.5.

Started by `roundtrip.py --versus mxnet` with the interpreter in PS_BENCH_MXNET_PYTHON.
"""

from __future__ import annotations

import sys
import time

import mxnet as mx
from shapes import MODELS


def main() -> None:
    store = mx.kv.create("dist_sync")
    shapes = MODELS[sys.argv[1]]()
    if store.rank == 0:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1e-6))
    weights = [mx.nd.ones(shape) for shape in shapes]
    gradients = [mx.nd.ones(shape) * 1e-3 for shape in shapes]
    for key, weight in enumerate(weights):
        store.init(key, weight)
    mx.nd.waitall()
    store._barrier()
    print("ready", flush=True)
    for _ in sys.stdin:
        started_s = time.perf_counter()
        for key, (gradient, weight) in enumerate(zip(gradients, weights)):  # noqa: B905 - runs under an old Python, too
            store.push(key, gradient, priority=-key)
            store.pull(key, out=weight, priority=-key)
        mx.nd.waitall()
        print(time.perf_counter() - started_s, time.process_time(), flush=True)
    store._barrier()


main()
