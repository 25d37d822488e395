"""What jobs come to: weights, optimizer states and ledgers, of a matrix and of pushes in a scripted order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.unchanged import states
from tests.unchanged.running import Service, script, service
from tests.unchanged.tree import Tree

MODELS = ("Mlp", "Tied", "Conv")
CARRIERS = ("tcp", "uds", "shm", "grpc")
OPTIMIZERS = ("SGD", "Adam", "AdamW")
SHARDS = (1, 2)
WORKERS = 2
STEPS = 5

Record = dict[str, Any]  # name -> value, as JSON has it


def rows(names: Sequence[tuple[str, str, str]], *, prefix: str = "", **more: Any) -> list[dict[str, Any]]:
    """Jobs of `bsp`: one for each model, carrier and optimizer."""
    return [
        {
            "job": f"{prefix}{model}-{carrier}-{optimizer}",
            "model": model,
            "carrier": carrier,
            "optimizer": optimizer,
            "consistency": "bsp",
            "num_workers": WORKERS,
            "steps": STEPS,
            **more,
        }
        for model, carrier, optimizer in names
    ]


def plan_of(folder: Path, jobs: Sequence[dict[str, Any]], servers: str, worker: int) -> str:
    """The file of one worker's rows."""
    path = folder / f"plan-{jobs[0]['job']}-{worker}.json"
    path.write_text(json.dumps([job | {"servers": servers, "worker": worker} for job in jobs]))
    return str(path)


def matrix(tree: Tree, folder: Path) -> Iterator[tuple[str, Any]]:
    """All models, carriers, optimizers and numbers of shards, each with two workers."""
    jobs = rows(list(itertools.product(MODELS, CARRIERS, OPTIMIZERS)))
    for num_shards in SHARDS:
        with service(tree, num_shards) as servers, ExitStack() as stack:
            plans = [plan_of(folder, jobs, servers.servers, worker) for worker in range(WORKERS)]
            workers = [stack.enter_context(script(tree, "train.py", plan)) for plan in plans]
            for job, (number, worker) in itertools.product(jobs, enumerate(workers)):
                answer = worker.answer()
                for kind in ("weights", "state", "ledger"):
                    yield f"matrix/{job['job']}/{num_shards} shards/worker {number}/{kind}", answer[kind]
            for worker in workers:
                worker.end()


def in_order(tree: Tree, folder: Path) -> Iterator[tuple[str, Any]]:
    """The models whose outcome depends on the order of pushes; what is handed over of their jobs, too."""
    for num_shards in SHARDS:
        with ExitStack() as stack:
            servers = Service(stack, num_shards)
            own = [folder / f"state-{num_shards}-{shard}" for shard in range(num_shards)]
            servers.start(tree, [("--state-dir", str(path)) for path in own])
            worker = stack.enter_context(script(tree, "in_order.py", servers.servers))
            while "standing" not in (answer := worker.answer()):
                for kind in ("seen", "weights", "ledgers"):
                    yield f"in order/{answer['job']}/{num_shards} shards/{kind}", answer[kind]
            servers.stop()
            for shard, path in enumerate(own):
                (file,) = path.glob("hand-off-*.safetensors")
                for name, value in states.hand_off(file):
                    yield f"hand-off/{num_shards} shards/shard {shard}/{name}", value
