"""Adam from one half into the other: torch's bits, and torch itself wherever the kernel cannot do it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_server.shard.optimizer import adam
from ps_server.shard.optimizer.partition_tensors import PartitionTensors
from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer
from ps_wire.process import kernels
from ps_wire.process.kernels import KERNELS, STREAMED_BYTES
from ps_wire.spec.plan import Piece

pytestmark = pytest.mark.skipif(KERNELS is None, reason="there are no compiled kernels here")

START = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
SIZES = (5, 31, 1013, STREAMED_BYTES // 4 + 9)


def group(**changed: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((START | {"maximize": False} | changed).items())


def pieces() -> list[Piece]:
    """At places that are multiples of 16, as plans have them."""
    made, offset = [], 0
    for parameter, numel in enumerate(SIZES):
        made.append(Piece(parameter=parameter, offset=offset, parameter_offset=0, numel=numel))
        offset += -(-numel // 16) * 16
    return made


NUMEL = pieces()[-1].offset + -(-SIZES[-1] // 16) * 16


def values(name: str, start: tuple[tuple[str, Any], ...], *, doubled: bool) -> PartitionTensors:
    weights = torch.zeros(NUMEL)
    for piece in pieces():
        generator = torch.Generator().manual_seed(piece.parameter)
        weights[piece.offset : piece.offset + piece.numel] = torch.randn(piece.numel, generator=generator)
    made = PartitionTensors(weights, pieces(), lambda parts: PieceOptimizer(name, start, parts))
    if doubled:
        made.double((torch.zeros(NUMEL), torch.zeros(NUMEL)), 0, loaded=True)
    return made


def gradient(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    exponents = torch.randint(-20, 2, (NUMEL,), generator=generator)
    return torch.randn(NUMEL, generator=generator) * torch.pow(10.0, exponents)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def run(made: PartitionTensors, groups: list[Any], absent: dict[int, int]) -> list[bytes]:
    """The weights after each step, and all state at the end; `absent`: in which step which piece has none."""
    seen = []
    for step, now in enumerate(groups):
        made.apply(gradient(step), [absent.get(step) != place for place in range(len(SIZES))], now)
        seen.append(bits(made.now))
    for state in made.export_state():
        seen += [bits(state[key]) for key in sorted(state)]
    return seen


CASES = {
    "plain": ("Adam", {}),
    "l2": ("Adam", {"weight_decay": 0.1}),
    "decoupled": ("AdamW", {"weight_decay": 0.01}),
    "decoupled Adam": ("Adam", {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    "other betas": ("AdamW", {"betas": (0.8, 0.95), "eps": 1e-3}),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_into_the_other_half_are_torchs_to_the_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a piece that comes later, one that is left out, and a learning rate that changes."""
    name, options = CASES[case]
    groups = [group(**options | {"lr": rate}) for rate in (0.01, 0.01, 0.3, 0.0, 0.01)]
    absent = {0: 2, 3: 1}
    crossed = []
    step_pieces = adam.Adam.step_pieces

    def counted(self: adam.Adam, *rest: Any) -> Any:
        crossed.append(rest)
        return step_pieces(self, *rest)

    monkeypatch.setattr(adam.Adam, "step_pieces", counted)
    expected = run(values(name, groups[0], doubled=False), groups, absent)
    assert not crossed
    assert run(values(name, groups[0], doubled=True), groups, absent) == expected
    assert len(crossed) == len(groups)


@pytest.mark.parametrize(
    "options", [{"amsgrad": True}, {"maximize": True}, {"betas": (0.5, 0.999)}], ids=lambda it: next(iter(it))
)
def test_what_the_kernel_cannot_do_is_torchs(options: dict[str, Any]) -> None:
    now = group(**options)
    assert adam.across("Adam", now, [torch.zeros(3)]) is None
    expected = run(values("Adam", now, doubled=False), [now] * 3, {})
    assert run(values("Adam", now, doubled=True), [now] * 3, {}) == expected


def test_only_a_kernel_with_torchs_bits_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only for memory that it can read."""

    class Wrong(kernels.Kernels):
        def __init__(self) -> None:
            pass

        def adam(self, pieces: kernels.AdamPieces, **numbers: float) -> None:
            assert KERNELS is not None
            KERNELS.adam(pieces, **numbers | {"eps": numbers["eps"] * 1.01})

    here = [torch.zeros(3)]
    assert adam.across("Adam", group(), here) is not None
    assert adam.across("Adam", group(), [torch.zeros(3, dtype=torch.float64)]) is None
    assert adam.across("RMSprop", group(), here) is None
    monkeypatch.setattr(kernels, "KERNELS", Wrong())
    assert adam.across("Adam", group(), here) is None
    monkeypatch.setattr(kernels, "KERNELS", None)
    assert adam.across("Adam", group(), here) is None
