"""Plain SGD from one memory into another is torch's fused step in place, to the bit."""

from __future__ import annotations

import pytest
import torch

from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer

PLAIN = (
    ("dampening", 0),
    ("lr", 0.37),
    ("maximize", False),
    ("momentum", 0),
    ("nesterov", False),
    ("weight_decay", 0),
)


def with_value(name: str, value: object) -> tuple[tuple[str, object], ...]:
    return tuple((key, value if key == name else old) for key, old in PLAIN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_out_of_place_is_in_place_to_the_bit(dtype: torch.dtype):
    """Whatever the tail: kernels treat the last elements of a vector differently."""
    generator = torch.Generator().manual_seed(3)
    for numel in [*range(1, 70), 1001, 4097, 65_537]:
        weights = torch.randn(numel, dtype=dtype, generator=generator)
        gradient = torch.randn(numel, dtype=dtype, generator=generator)
        inside, out = weights.clone(), torch.empty_like(weights)
        optimizer = PieceOptimizer("SGD", PLAIN, [inside])
        assert optimizer.plain(PLAIN)
        optimizer.step_plain(weights, gradient, PLAIN, out=out)
        optimizer.step([gradient], PLAIN)
        assert torch.equal(out, inside), numel


@pytest.mark.parametrize(
    ("name", "value"), [("momentum", 0.9), ("weight_decay", 1e-4), ("maximize", True)], ids=str
)
def test_what_does_more_than_that_is_not_plain(name: str, value: object):
    group = with_value(name, value)
    optimizer = PieceOptimizer("SGD", group, [torch.zeros(4)])
    assert not optimizer.plain(group)


def test_other_optimizers_and_dtypes_are_not_plain():
    group = (("lr", 0.1),)
    assert not PieceOptimizer("Adagrad", group, [torch.zeros(4)]).plain(group)
    assert not PieceOptimizer("SGD", PLAIN, [torch.zeros(4, dtype=torch.bfloat16)]).plain(PLAIN)


def test_a_group_that_changes_is_looked_at_again():
    optimizer = PieceOptimizer("SGD", with_value("momentum", 0.9), [torch.zeros(4)])
    assert not optimizer.plain(with_value("momentum", 0.9))
    assert optimizer.plain(PLAIN)
