"""Optimizers on a device: the steps of those on the host, whose weights they change."""

from __future__ import annotations

import pytest
import torch

from ps_server.shard.optimizer.device_optimizer import DeviceOptimizer, device_of, optimizer_on
from ps_server.shard.optimizer.piece_optimizer import KNOWN, PieceOptimizer
from ps_wire.errors import PsError, UsageError
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


def test_plain_sgd_runs_on_the_device_too():
    assert PieceOptimizer("SGD", (("lr", 0.1),), pieces()).plain((("lr", 0.1),))
    assert not DeviceOptimizer("SGD", (("lr", 0.1),), pieces(), device=HOST).plain((("lr", 0.1),))


def test_on_the_host_nothing_is_copied():
    assert optimizer_on(device_of("cpu")) is PieceOptimizer


@pytest.mark.parametrize("text", ["toaster", "meta:nowhere"])
def test_a_device_that_is_not_here_is_named(text: str):
    with pytest.raises(UsageError, match=f"--device '{text}'") as caught:
        device_of(text)
    assert isinstance(caught.value, PsError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(UsageError, match="--device 'cuda'"):
        device_of("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", KNOWN)
def test_a_gpu_steps_as_the_host_does(name: str):
    group, mine, expected = GROUPS[name], pieces(), pieces()
    train(DeviceOptimizer(name, group, mine, device=torch.device("cuda")), group, range(3))
    train(PieceOptimizer(name, group, expected), group, range(3))
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other)
