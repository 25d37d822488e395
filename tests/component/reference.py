"""Plain torch doing what a BSP job does: N replicas that average their gradients in rank order.

A *script* is `script(rank, model, optimizer)`, an ordinary training loop. `alone` runs it in plain torch with
one replica per worker in threads; `served` runs the same one under the service. Both give the weights.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.component.service import Cluster, run_workers, together
from tests.until import LIMIT_S

Script = Callable[[int, torch.nn.Module, torch.optim.Optimizer], Any]
MakeOptimizer = Callable[..., torch.optim.Optimizer]


def in_turns(script: Script) -> Script:
    """The script, whose replicas compute one at a time and wait for each other only in `optimizer.step()`.

    torch compiles under autocast with the lock of autocast's cache held, for which another thread waits with
    the GIL: two threads of a process that compile at once may hang for ever. Workers are processes.
    """
    turn = threading.Lock()

    def run(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        step = optimizer.step

        @torch.compiler.disable
        def step_between_turns(*given: Any) -> Any:
            turn.release()
            try:
                return step(*given)
            finally:
                turn.acquire()

        optimizer.step = step_between_turns  # type: ignore[method-assign]
        with turn:
            return script(rank, model, optimizer)

    return run


def batch(rank: int, step: int, *shape: int) -> torch.Tensor:
    """Random numbers that depend on nothing but these."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(*shape, generator=generator)


_seeding = threading.Lock()  # threads share torch's generator


def seeded(make: Callable[[], torch.nn.Module], seed: int = 0) -> torch.nn.Module:
    with _seeding, torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


class _Averaging:
    """Hooks of N optimizers in N threads: each step takes the weighted mean of what all have."""

    def __init__(self, num_workers: int, weights: Callable[[int, int], float]) -> None:
        self._barrier = threading.Barrier(num_workers, timeout=LIMIT_S)
        self._num_workers = num_workers
        self._given: list[Any] = [None] * num_workers
        self._weights = weights

    def attach(self, rank: int, optimizer: torch.optim.Optimizer) -> None:
        step, own = 0, []

        def before(*_: object) -> None:
            nonlocal step, own
            parameters = [item for group in optimizer.param_groups for item in group["params"]]
            own = [parameter.grad for parameter in parameters]
            self._given[rank] = [None if grad is None else grad.detach().clone() for grad in own]
            self._barrier.wait()
            weights = [self._weights(worker, step) for worker in range(self._num_workers)]
            for place, parameter in enumerate(parameters):
                parameter.grad = _mean([given[place] for given in self._given], weights)
            self._barrier.wait()
            step += 1

        def after(*_: object) -> None:
            parameters = [item for group in optimizer.param_groups for item in group["params"]]
            for parameter, grad in zip(parameters, own, strict=True):
                parameter.grad = grad

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)


def _mean(gradients: list[torch.Tensor | None], weights: list[float]) -> torch.Tensor | None:
    """In rank order, each product and sum rounded; None counts as zeros unless all are None."""
    there = [gradient for gradient in gradients if gradient is not None]
    if not there:
        return None
    total = torch.zeros_like(there[0])
    for place, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
        product = torch.zeros_like(total) if gradient is None else gradient * weight
        total = product if place == 0 else total + product
    return total / sum(weights)


def alone(
    script: Script,
    model: torch.nn.Module,
    make: MakeOptimizer,
    *,
    num_workers: int = 1,
    fused: bool = True,
    weights: Callable[[int, int], float] = lambda _rank, _step: 1.0,
) -> torch.nn.Module:
    averaging = _Averaging(num_workers, weights)
    models = [copy.deepcopy(model) for _ in range(num_workers)]

    def one(rank: int) -> None:
        optimizer = make(models[rank], **({"fused": True} if fused else {"foreach": False}))
        if num_workers > 1:
            averaging.attach(rank, optimizer)
        script(rank, models[rank], optimizer)

    together([lambda rank=rank: one(rank) for rank in range(num_workers)])
    return models[0]


def served(
    cluster: Cluster,
    script: Script,
    model: torch.nn.Module,
    make: MakeOptimizer,
    *,
    num_workers: int = 1,
    consistency: str = "bsp",
    carrier: str = "auto",
    **options: Any,
) -> torch.nn.Module:
    """Worker 0's model after `finish`; all workers' weights are checked to be equal."""
    models = [copy.deepcopy(model) for _ in range(num_workers)]
    for rank, replica in enumerate(models[1:], start=1):  # only worker 0's weights may count
        for parameter in replica.parameters():
            parameter.data.add_(float(rank))

    def body(worker: Any) -> None:
        mine = models[worker.rank]
        optimizer = worker.wrap(make(mine), mine, **options)
        script(worker.rank, mine, optimizer)
        worker.finish()

    run_workers(cluster, body, num_workers=num_workers, consistency=consistency, carrier=carrier)
    for replica in models[1:]:
        assert_same(replica, models[0])
    return models[0]


def assert_same(got: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Bit for bit."""
    for (name, one), other in zip(got.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other), (name, (one - other).abs().max())


def check(
    cluster: Cluster,
    script: Script,
    model: torch.nn.Module,
    make: MakeOptimizer,
    *,
    num_workers: int = 1,
    reference: MakeOptimizer | None = None,
    **options: Any,
) -> torch.nn.Module:
    """`served` gives the bytes of `alone` (under `reference`), and not those of the start."""
    expected = alone(script, model, reference or make, num_workers=num_workers)
    moved = [
        not torch.equal(one, other)
        for one, other in zip(expected.parameters(), model.parameters(), strict=True)
    ]
    assert any(moved)
    got = served(cluster, script, model, make, num_workers=num_workers, **options)
    assert_same(got, expected)
    return got
