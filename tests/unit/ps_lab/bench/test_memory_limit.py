"""The limit of the memory does the servers' arithmetic: law 1's, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ps_lab.bench.children import memory_limit, optimizers
from ps_lab.bench.children.memory_limit import MemoryLimit
from ps_lab.bench.limit import ONE_PASS_OPTIMIZERS
from ps_lab.bench.optimizers import OPTIMIZERS
from ps_wire.process import kernels


def in_order(step: Callable[[int], None], pieces: range) -> None:
    for piece in pieces:
        step(piece)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "PIECE_ELEMENTS", 16)
    monkeypatch.setattr(memory_limit, "ONE_PASS_ELEMENTS", 16)
    monkeypatch.setattr(optimizers, "LEARNING_RATE", 0.1)


def made(
    optimizer: str, *, workers: int, bsp: bool, one_pass: bool = False
) -> tuple[MemoryLimit, list[torch.Tensor]]:
    limit = MemoryLimit(parameters=40, workers=workers, optimizer=optimizer, bsp=bsp, one_pass=one_pass)
    gradients = [torch.randn(40, generator=torch.Generator().manual_seed(rank)) for rank in range(workers)]
    for own, gradient in zip(limit._gradients, gradients, strict=True):
        own.copy_(gradient)
    return limit, gradients


WAYS = [(optimizer, False) for optimizer in OPTIMIZERS] + [(it, True) for it in ONE_PASS_OPTIMIZERS]


@pytest.mark.parametrize(("optimizer", "one_pass"), WAYS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_under_bsp_a_round_is_one_step_on_the_mean(optimizer: str, workers: int, one_pass: bool) -> None:
    if one_pass and kernels.KERNELS is None:
        pytest.skip("no compiled kernels")
    limit, gradients = made(optimizer, workers=workers, bsp=True, one_pass=one_pass)
    weights = torch.nn.Parameter(torch.ones(40))
    alone = optimizers.make(optimizer, [weights])
    for _ in range(3):
        limit.round(in_order)
        weights.grad = sum(gradients[1:], gradients[0]) / workers
        alone.step()
    assert torch.equal(limit.halves[1], weights.detach())
    assert not torch.equal(limit.halves[0], limit.halves[1])


def test_otherwise_a_round_is_a_step_and_a_copy_for_each_worker() -> None:
    limit, gradients = made("adam", workers=2, bsp=False)
    weights = torch.nn.Parameter(torch.ones(40))
    alone = optimizers.make("adam", [weights])
    seen = []
    limit.round(in_order)
    for gradient in gradients:
        weights.grad = gradient
        alone.step()
        seen.append(weights.detach().clone())
    assert torch.equal(limit.halves[0], seen[-1])
    assert all(torch.equal(copy, expected) for copy, expected in zip(limit._copies, seen, strict=True))
