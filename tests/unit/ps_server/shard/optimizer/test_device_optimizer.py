"""Optimizers on a device: the steps of those on the host, whose weights they change."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ps_server.shard.optimizer import steppers
from ps_server.shard.optimizer.bound_optimizer import BoundOptimizer
from ps_server.shard.optimizer.device_optimizer import DeviceOptimizer, optimizer_on
from ps_server.shard.optimizer.piece_optimizer import KNOWN, PieceOptimizer
from ps_server.shard.optimizer.versioned_weights import VersionedWeights
from ps_wire.process.device import device_of
from ps_wire.spec.plan import Piece
from ps_wire.spec.table import Group

HOST = torch.device("cpu")  # copies to it are copies, too, so that this runs without an accelerator
GROUPS: dict[str, Group] = dict.fromkeys(KNOWN, (("lr", 0.1),))
SIZES = (64, 19)


def pieces() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for size in SIZES]


def gradients(step: int) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(step)
    made: list[torch.Tensor | None] = [torch.randn(size, generator=generator) for size in SIZES]
    return [made[0], None] if step == 1 else made  # a piece without a gradient keeps its weights


def train(optimizer: PieceOptimizer, group: Group, steps: range) -> None:
    for step in steps:
        optimizer.step(gradients(step), group)


@pytest.mark.parametrize("name", KNOWN)
def test_a_step_on_a_device_changes_the_weights_on_the_host_as_one_there(name: str):
    group, mine, expected = GROUPS[name], pieces(), pieces()
    train(DeviceOptimizer(name, group, mine, device=HOST), group, range(3))
    train(PieceOptimizer(name, group, expected), group, range(3))
    assert all(map(torch.equal, mine, expected))


def test_weights_that_were_loaded_or_moved_since_are_those_that_are_stepped():
    group, mine, expected = GROUPS["Adam"], pieces(), pieces()
    optimizer, plain = (
        DeviceOptimizer("Adam", group, mine, device=HOST),
        PieceOptimizer("Adam", group, expected),
    )
    for made in (mine, expected):
        made[0].fill_(5.0)
    moved = [piece.clone() for piece in mine]
    optimizer.rebind(moved)
    train(optimizer, group, range(2))
    train(plain, group, range(2))
    assert all(map(torch.equal, moved, expected))
    assert (mine[0] == 5.0).all()


def test_state_leaves_and_comes_as_on_the_host():
    group, mine, expected = GROUPS["AdamW"], pieces(), pieces()
    first = DeviceOptimizer("AdamW", group, mine, device=HOST)
    train(first, group, range(2))
    second = DeviceOptimizer("AdamW", group, mine, device=HOST)
    second.import_state(first.export_state())
    train(second, group, range(2, 4))
    train(PieceOptimizer("AdamW", group, expected), group, range(4))
    assert all(map(torch.equal, mine, expected))


def test_no_way_past_the_device_is_taken():
    """What would step the weights on the host does not fit, in one memory or two."""
    group: Group = (("betas", (0.9, 0.999)), ("eps", 1e-8), ("lr", 0.1), ("weight_decay", 0.0))
    piece = Piece(parameter=0, offset=0, parameter_offset=0, numel=16)
    for name, own in (("SGD", group[2:3]), ("Adam", group)):
        for make in (PieceOptimizer, partial(DeviceOptimizer, device=HOST)):
            made = BoundOptimizer(
                VersionedWeights(torch.zeros(16)), [piece], [piece], partial(make, name, own)
            )
            made.weights.double((torch.zeros(16), torch.zeros(16)), 0, loaded=True)
            ways = [stepper for stepper, _ in steppers.fitting(made, own)]
            if make is not PieceOptimizer:
                assert ways == [steppers.IN_PLACE]
            elif name == "SGD":
                assert ways == [steppers.PLAIN, steppers.IN_PLACE]


def test_on_the_host_nothing_is_copied():
    assert optimizer_on(device_of("cpu")) is PieceOptimizer


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", KNOWN)
def test_a_gpu_steps_as_the_host_does(name: str):
    group, mine, expected = GROUPS[name], pieces(), pieces()
    train(DeviceOptimizer(name, group, mine, device=torch.device("cuda")), group, range(3))
    train(PieceOptimizer(name, group, expected), group, range(3))
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other)
