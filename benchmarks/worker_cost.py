"""What the worker library costs beside moving bytes: `wrap`, a step, and the checks of a step.

    python benchmarks/worker_cost.py

One worker in this process, one server in another, bsp, SGD. Three figures, each the least of several tries,
in CPU time of the training thread and by the wall clock:

    wrap    `worker.wrap` of a model with 5,000 parameters (2,500 linear layers of 16 x 16)
    beyond  backward and `step()` of that model, less backward in plain torch, less one copy of all gradients.
            By the wall clock also less a round of one tensor with as many bytes, which other threads move,
            and less torch's own optimizer step, which is the server's work here. All take turns. Once
            more for layers of 64 x 64, which overlap: their hooks are counted, and by the wall clock, so is
            what they save
    checks  of a model of 50 M parameters, batch 16: everything in a step that only looks (weights, gradients,
            hyper-parameters) over a whole step of plain torch

Prints one JSON line.
"""

from __future__ import annotations

import functools
import gc
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

import ps_worker as ps
from ps_lab.cluster.cluster import Cluster
from ps_worker.optimizer.bucket_gradients import BucketGradients
from ps_worker.optimizer.shown_weights import ShownWeights
from ps_worker.optimizer.table_gradients import TableGradients

PARAMETERS = 5000
NARROW, WIDE = 16, 64
LOOKS = [
    (ShownWeights, "check"),
    (ShownWeights, "refresh"),
    (TableGradients, "check_left"),
    (BucketGradients, "keep"),
]


class Times:
    """The least CPU and wall-clock seconds of what was timed."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = float("inf")

    def time(self, body: Callable[[], Any]) -> Any:
        begun = time.perf_counter(), time.thread_time()
        result = body()
        self.take(time.thread_time() - begun[1], time.perf_counter() - begun[0])
        return result

    def take(self, cpu_s: float, wall_s: float) -> None:
        self.cpu_s, self.wall_s = min(self.cpu_s, cpu_s), min(self.wall_s, wall_s)

    def ms(self) -> dict[str, float]:
        return {"cpu_ms": round(1e3 * self.cpu_s, 2), "wall_ms": round(1e3 * self.wall_s, 2)}


class Looks:
    """Adds up the time in the functions that only look."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0
        for owner, name in LOOKS:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self.cpu_s += time.thread_time() - begun[1]
                self.wall_s += time.perf_counter() - begun[0]

        return timed

    def take(self) -> tuple[float, float]:
        taken = self.cpu_s, self.wall_s
        self.cpu_s = self.wall_s = 0.0
        return taken


def many_parameters(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(PARAMETERS // 2)])


def reference_model() -> torch.nn.Module:
    """50 M parameters in 48 tensors."""
    width, blocks = 1024, 12
    layers: list[torch.nn.Module] = []
    for _ in range(blocks):
        layers += [
            torch.nn.Linear(width, 2 * width),
            torch.nn.ReLU(),
            torch.nn.Linear(2 * width, width),
        ]
    return torch.nn.Sequential(*layers)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    optimizer.step()
    model.zero_grad()


def connect(address: str, job: str) -> ps.Worker:
    return ps.connect(servers=address, job=job, consistency="bsp", num_workers=1, worker=0)


def wrap_cost(address: str, tries: int) -> Times:
    times = Times()
    for index in range(tries):
        model = many_parameters(NARROW)
        optimizer = sgd(model)
        with connect(address, f"wrap-{index}") as worker:
            gc.collect()  # what came before is not wrap's
            times.time(functools.partial(worker.wrap, optimizer, model))
    return times


def step_cost(address: str, width: int, steps: int) -> dict[str, Times]:
    wrapped, alone = many_parameters(width), many_parameters(width)
    batch = torch.randn(4, width)
    names = ("backward", "step", "plain backward", "plain step", "copy", "round")
    times = {name: Times() for name in names}
    numel = [parameter.numel() for parameter in alone.parameters()]
    flat = {"flat": torch.zeros(sum(numel))}
    gradient = {"flat": torch.ones(sum(numel))}
    pieces = gradient["flat"].split(numel)
    views = [piece.view_as(own) for piece, own in zip(pieces, alone.parameters(), strict=True)]
    torch_optimizer = sgd(alone)
    with connect(address, f"step-{width}") as worker:
        optimizer = worker.wrap(sgd(wrapped), wrapped)
        table = worker.table(flat, optimizer=ps.SGD(lr=1e-6))

        def move() -> None:
            table.push(gradient)
            table.pull(out=flat).result()

        for _ in range(3):
            train(wrapped, optimizer, batch)
        assert optimizer.overlaps == (width == WIDE)
        gc.collect()
        for _ in range(steps):
            times["backward"].time(wrapped(batch).square().mean().backward)
            times["step"].time(optimizer.step)
            wrapped.zero_grad()
            times["round"].time(move)
            times["plain backward"].time(alone(batch).square().mean().backward)
            gradients = [parameter.grad for parameter in alone.parameters()]
            times["copy"].time(functools.partial(torch._foreach_copy_, views, gradients))
            times["plain step"].time(torch_optimizer.step)
            alone.zero_grad()
    return times


def check_cost(address: str, steps: int) -> dict[str, Times]:
    wrapped, alone = reference_model(), reference_model()
    batch = torch.randn(16, 1024)
    times = {"checks": Times(), "plain": Times()}
    torch_optimizer = sgd(alone)
    looks = Looks()
    with connect(address, "checks") as worker:
        optimizer = worker.wrap(sgd(wrapped), wrapped)
        for _ in range(3):
            train(wrapped, optimizer, batch)
        assert optimizer.overlaps
        for _ in range(steps):
            looks.take()
            train(wrapped, optimizer, batch)
            times["checks"].take(*looks.take())
            times["plain"].time(lambda: train(alone, torch_optimizer, batch))
    return times


def beyond(step: dict[str, Times]) -> dict[str, float]:
    """What a step takes beyond plain torch and moving its bytes: see the module's docstring."""
    cpu_s = step["backward"].cpu_s + step["step"].cpu_s
    cpu_s -= sum(step[name].cpu_s for name in ("plain backward", "copy"))
    wall_s = step["backward"].wall_s + step["step"].wall_s
    wall_s -= sum(step[name].wall_s for name in ("plain backward", "plain step", "copy", "round"))
    return {"cpu_ms": round(1e3 * cpu_s, 2), "wall_ms": round(1e3 * wall_s, 2)}


def main() -> None:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(num_servers=1, on_line=lambda _name, _line: None))
        (address,) = cluster.addresses
        wrap = wrap_cost(address, tries=6)
        steps = {width: step_cost(address, width, steps=30) for width in (NARROW, WIDE)}
        checks = check_cost(address, steps=12)
    figures = {
        "parameters": PARAMETERS,
        "wrap": wrap.ms(),
        "steps": {
            width: {name: times.ms() for name, times in step.items()} | {"beyond": beyond(step)}
            for width, step in steps.items()
        },
        "checks": {name: times.ms() for name, times in checks.items()},
        "checks_share": {
            "cpu": round(checks["checks"].cpu_s / checks["plain"].cpu_s, 5),
            "wall": round(checks["checks"].wall_s / checks["plain"].wall_s, 5),
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
