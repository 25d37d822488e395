"""One process of TensorFlow's ParameterServerStrategy on the same unit of work; needs tensorflow-cpu.

Started by `peers.py` with the interpreter of an environment of its own; of this project it imports only
`turns`. The chief takes the turns: it schedules one step per worker, each of which pulls every variable and
pushes every gradient, applied on arrival, and waits for all of them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf

from ps_lab.bench.turns import answer, read_configuration, take_turns


def serve(configuration: dict[str, Any]) -> None:
    options = tf.compat.v1.ConfigProto()
    options.inter_op_parallelism_threads = 4  # a server with one hangs
    server = tf.distribute.Server(
        tf.train.ClusterSpec(configuration["cluster"]),
        job_name=configuration["role"],
        task_index=configuration["index"],
        protocol="grpc",
        config=options,
    )
    answer(ready=True)
    server.join()


def lead(configuration: dict[str, Any]) -> None:
    cluster = tf.train.ClusterSpec(configuration["cluster"])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [tf.Variable(tf.ones(shape)) for shape in configuration["shapes"]]

    @tf.function
    def step() -> tf.Tensor:
        used = 0.0
        for weight in weights:
            pulled = tf.convert_to_tensor(weight)
            gradient = tf.ones_like(pulled) * 1e-3  # made on the worker, so that it has to travel
            used += tf.reduce_sum(pulled[0:1] if pulled.shape.rank else pulled)
            weight.assign_sub(1e-6 * gradient)
        return used

    def turn() -> None:
        for _ in configuration["cluster"]["worker"]:
            coordinator.schedule(step)
        coordinator.join()

    take_turns(turn)


def main() -> None:
    configuration = read_configuration()
    (lead if configuration["role"] == "chief" else serve)(configuration)
    sys.stdout.flush()
    os._exit(0)  # the coordinator's threads would wait for the servers


main()
