"""Plain SGD from one memory into another is torch's fused step in place, to the bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from ps_server.shard.optimizer import steppers
from ps_server.shard.optimizer.bound_optimizer import BoundOptimizer
from ps_server.shard.optimizer.partition_tensors import PartitionTensors
from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer
from ps_server.shard.optimizer.versioned_weights import VersionedWeights
from ps_wire.process import kernels
from ps_wire.spec.plan import Piece

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


def bound(weights: torch.Tensor, name: str = "SGD", group: Any = PLAIN) -> BoundOptimizer:
    """One piece, which is all of the weights."""
    piece = Piece(parameter=0, offset=0, parameter_offset=0, numel=weights.numel())
    return BoundOptimizer(VersionedWeights(weights), [piece], [piece], partial(PieceOptimizer, name, group))


def plain(name: str, group: Any, dtype: torch.dtype = torch.float32) -> bool:
    made = bound(torch.zeros(4, dtype=dtype), name, group)
    return steppers.PLAIN in [stepper for stepper, _ in steppers.fitting(made, group)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_out_of_place_is_in_place_to_the_bit(dtype: torch.dtype):
    """Whatever the tail: kernels treat the last elements of a vector differently."""
    generator = torch.Generator().manual_seed(3)
    for numel in [*range(1, 70), 1001, 4097, 65_537]:
        weights = torch.randn(numel, dtype=dtype, generator=generator)
        gradient = torch.randn(numel, dtype=dtype, generator=generator)
        inside, outside = bound(weights.clone()), bound(weights.clone())
        (way, rate), (last, group) = steppers.fitting(outside, PLAIN)
        assert (way, last) == (steppers.PLAIN, steppers.IN_PLACE)
        assert way.run(outside, rate, gradient, [True])
        assert last.run(inside, group, gradient, [True])
        assert torch.equal(outside.weights.now, inside.weights.now), numel


@pytest.mark.parametrize(
    ("name", "value"), [("momentum", 0.9), ("weight_decay", 1e-4), ("maximize", True), ("lr", 1)], ids=str
)
def test_what_does_more_than_that_is_not_plain(name: str, value: object):
    assert plain("SGD", PLAIN)
    assert not plain("SGD", with_value(name, value))


def test_other_optimizers_and_dtypes_are_not_plain():
    assert not plain("Adagrad", (("lr", 0.1),))
    assert not plain("SGD", PLAIN, torch.bfloat16)


def test_a_group_that_changes_is_looked_at_again():
    """With momentum torch has a state from then on; a plain step after it leaves that alone."""
    momentum = with_value("momentum", 0.9)
    piece = Piece(parameter=0, offset=0, parameter_offset=0, numel=4)
    values = PartitionTensors(torch.zeros(4), [piece], partial(PieceOptimizer, "SGD", momentum))
    values.apply(torch.ones(4), [True], PLAIN)
    assert values.optimizer_bytes() == 0
    values.apply(torch.ones(4), [True], momentum)
    assert values.optimizer_bytes() == 16
    values.apply(torch.ones(4), [True], PLAIN)
    assert torch.equal(values.now, torch.full((4,), -0.37 * 3))


def test_a_piece_without_a_gradient_is_left_to_torch():
    made = bound(torch.ones(4))
    assert not steppers.PLAIN.run(made, 0.37, torch.ones(4), [False])
    assert steppers.IN_PLACE.run(made, PLAIN, torch.ones(4), [False])
    assert torch.equal(made.weights.now, torch.ones(4))


def test_the_last_way_takes_everything():
    """So a step is never dropped."""
    for name, group in (("SGD", PLAIN), ("Adagrad", (("lr", 0.1),))):
        ways = steppers.fitting(bound(torch.zeros(4), name, group), group)
        assert ways[-1] == (steppers.IN_PLACE, group)
    assert steppers.STEPPERS[-1] is steppers.IN_PLACE


def test_weights_that_come_to_lie_in_two_halves_are_looked_at_again(monkeypatch: pytest.MonkeyPatch):
    """There are ways that only halves have."""
    looked, fitting = [], steppers.fitting

    def look(made: BoundOptimizer, group: Any) -> Any:
        looked.append([stepper for stepper, _ in fitting(made, group)])
        return fitting(made, group)

    monkeypatch.setattr(steppers, "fitting", look)
    adam: Any = (("betas", (0.9, 0.999)), ("eps", 1e-8), ("lr", 0.1), ("weight_decay", 0.0))
    piece = Piece(parameter=0, offset=0, parameter_offset=0, numel=4)
    values = PartitionTensors(torch.zeros(4), [piece], partial(PieceOptimizer, "Adam", adam))
    values.apply(torch.ones(4), [True], adam)
    values.double((torch.zeros(4), torch.zeros(4)), 0, loaded=True)
    values.apply(torch.ones(4), [True], adam)
    assert steppers.ACROSS not in looked[0]
    assert len(looked) == 2
    assert kernels.KERNELS is None or steppers.ACROSS in looked[1]
