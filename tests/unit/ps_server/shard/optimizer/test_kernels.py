"""The compiled pass over memory: torch's bits, nothing of a step that is not finite, and not needed."""

from __future__ import annotations

import platform
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from ps_server.shard.optimizer.mean import Scratch, mean
from ps_server.shard.optimizer.partition_tensors import PartitionTensors
from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer
from ps_wire.process import kernels
from ps_wire.process.kernels import KERNELS, Kernels, same_as_torch
from ps_wire.spec.plan import Piece

GROUP = (("lr", 0.37), ("momentum", 0), ("weight_decay", 0))
LENGTHS = [*range(1, 40), 1001, 65_537]

compiled = pytest.mark.skipif(
    KERNELS is None and (platform.machine() != "x86_64" or shutil.which("cc") is None),
    reason="no C compiler, or none of the processors that the kernels are for",
)


@pytest.fixture
def built() -> Kernels:
    assert KERNELS is not None, "there is a compiler: the installation should have built them"
    return KERNELS


def draw(numel: int, *, seed: int, scale: float = 1.0, offset: int = 0) -> torch.Tensor:
    """In memory that begins `offset` elements after where torch would have begun."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(numel + offset, generator=generator) * scale)[offset:]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def mean_of(gradients: list[torch.Tensor]) -> torch.Tensor:
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total.add_(gradient)
    return total.div_(len(gradients))


@compiled
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e30], ids=["", "denormal", "large"])
def test_mean_and_step_are_torchs_to_the_bit(built: Kernels, workers: int, scale: float):
    """Whatever the length, wherever it lies, written past the caches or not."""
    for numel in LENGTHS:
        offset = numel % 17
        gradients = [draw(numel, seed=rank, scale=scale, offset=offset + rank) for rank in range(workers)]
        weights = draw(numel, seed=99, scale=scale)
        expected = mean_of(gradients)
        out = torch.empty(numel + offset)[offset:]
        assert built.mean(gradients, out)
        assert bits(out) == bits(expected)
        assert built.mean_step(gradients, weights, 0.37, out)
        assert bits(out) == bits(torch.add(weights, expected, alpha=-0.37))


@compiled
@pytest.mark.parametrize(("workers", "ranks"), [(1, 3), (2, 2), (3, 2), (2, 3), (4, 5)])
def test_a_mean_of_means_of_ranks_is_torchs_to_the_bit(built: Kernels, workers: int, ranks: int):
    for numel in LENGTHS:
        terms = [draw(numel, seed=at, offset=at) for at in range(workers * ranks)]
        weights, out = draw(numel, seed=99), torch.empty(numel)
        expected = mean_of([mean_of(terms[at : at + ranks]) for at in range(0, len(terms), ranks)])
        assert built.mean(terms, out, ranks)
        assert bits(out) == bits(expected)
        assert built.mean_step(terms, weights, 0.37, out, ranks)
        assert bits(out) == bits(torch.add(weights, expected, alpha=-0.37))
        terms[-1][numel // 2] = float("inf")
        assert not built.mean(terms, out, ranks)
        assert not built.mean_step(terms, weights, 0.37, out, ranks)


@compiled
def test_a_large_partition_is_streamed_to_the_bit(built: Kernels):
    numel = kernels.STREAMED_BYTES // 4 + 5
    for offset in (0, 1, 7, 16):
        gradients, weights = [draw(numel, seed=1), draw(numel, seed=2)], draw(numel, seed=3)
        out = torch.full((numel + offset + 1,), 7.0)
        assert built.mean_step(gradients, weights, 0.1, out[offset:-1])
        assert bits(out[offset:-1]) == bits(torch.add(weights, mean_of(gradients), alpha=-0.1))
        assert out[-1] == 7.0
        assert (out[:offset] == 7.0).all()


@compiled
@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e30], ids=["", "denormal", "large"])
def test_a_step_and_its_copy_are_torchs_to_the_bit(built: Kernels, scale: float):
    """Wherever the copy lies; nothing beside it is touched. Aligned alike or not."""
    for numel in (*LENGTHS, kernels.STREAMED_BYTES // 4 + 5):
        offset = numel % 17
        gradient, weights = draw(numel, seed=1, scale=scale, offset=offset), draw(numel, seed=2, scale=scale)
        expected = bits(torch.add(weights, gradient, alpha=-0.37))
        out, copy = torch.empty(numel), torch.full((numel + offset + 1,), 7.0)
        before = bits(weights)
        assert built.step_copy(gradient, weights, 0.37, out, copy[offset:-1])
        assert (bits(out), bits(copy[offset:-1]), bits(weights)) == (expected, expected, before)
        assert copy[-1] == 7.0
        assert (copy[:offset] == 7.0).all()
        gradient[numel // 3] = float("nan")
        assert not built.step_copy(gradient, weights, 0.37, out, copy[offset:-1])


@compiled
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("numel", [1, 15, 100, kernels.STREAMED_BYTES // 4])
def test_every_value_that_is_not_finite_is_seen(built: Kernels, numel: int, value: float):
    """At each place where another loop takes over, and in the middle."""
    out = torch.empty(numel + 3)[3:]
    for place in {0, 7, 8, 12, 13, 16, 17, numel // 2, numel - 17, numel - 1} & set(range(numel)):
        gradients = [draw(numel, seed=1), draw(numel, seed=2)]
        gradients[1][place] = value
        assert not built.mean(gradients, out)
        assert not built.finite(gradients[1])
        assert not built.mean_step(gradients, draw(numel, seed=3), 0.1, out)
    huge = torch.full((numel,), 3e38)
    assert not built.mean([huge, huge], out)  # each is finite
    assert built.mean([huge, torch.zeros(numel)], out)  # a sum over all elements would not be
    assert built.finite(huge)


@compiled
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 4099])
def test_a_copy_is_the_bytes_and_no_other_is_touched(built: Kernels, size: int):
    source = np.arange(size, dtype=np.int64).astype(np.uint8)
    for offset in range(0, 66, 5):
        target = np.full(size + offset + 1, 77, dtype=np.uint8)
        built.copy(source.ctypes.data, target.ctypes.data + offset, size)
        assert target[offset:-1].tobytes() == source.tobytes()
        assert (target[:offset] == 77).all()
        assert target[-1] == 77


@pytest.fixture(params=["compiled", "torch"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to do the same."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "KERNELS", None)
    elif KERNELS is None:
        pytest.skip("there are no compiled kernels here")
    return request.param


def test_the_mean_is_the_same_with_and_without_kernels(arithmetic: str):
    for workers in (2, 3):
        gradients = [draw(1003, seed=rank) for rank in range(workers)]
        found = mean(gradients, [1.0] * workers, Scratch())
        assert bits(found.values) == bits(mean_of(gradients))
        assert found.finite is (True if arithmetic == "compiled" else None)


def test_what_kernels_cannot_take_is_torchs(arithmetic: str):
    """Other dtypes, gradients that weigh, memory with gaps."""
    both = [draw(64, seed=1), draw(64, seed=2)]
    assert mean([one.double() for one in both], [1.0, 1.0], Scratch()).finite is None
    assert mean([one.bfloat16() for one in both], [1.0, 1.0], Scratch()).finite is None
    assert mean(both, [1.0, 2.0], Scratch()).finite is None
    gaps = [one.reshape(32, 2)[:, 0] for one in both]
    assert bits(mean(gaps, [1.0, 1.0], Scratch()).values) == bits(mean_of(gaps))


def values_of(weights: torch.Tensor, group=GROUP) -> PartitionTensors:
    piece = Piece(parameter=0, offset=0, parameter_offset=0, numel=weights.numel())
    return PartitionTensors(weights, [piece], partial(PieceOptimizer, "SGD", group))


def doubled(weights: torch.Tensor) -> PartitionTensors:
    values = values_of(weights)
    values.double((torch.zeros_like(weights), torch.zeros_like(weights)), 0, loaded=True)
    return values


@compiled
def test_a_step_ahead_is_the_step_and_shows_only_with_apply(built: Kernels):
    """Workers read the weights of before until then."""
    start, gradients = draw(500, seed=5), [draw(500, seed=rank) for rank in range(3)]
    values, reference = doubled(start.clone()), values_of(start.clone())
    for _ in range(3):
        before = bits(values.now)
        assert values.step_ahead(gradients, GROUP)
        assert bits(values.now) == before
        values.apply(None, [True], GROUP)
        reference.apply(mean_of(gradients), [True], GROUP)
        assert bits(values.now) == bits(reference.now)


@compiled
def test_a_step_that_is_not_finite_is_not_ahead(built: Kernels):
    """What is left after it was withheld is applied in the ordinary way, from the same weights."""
    start, good, bad = draw(500, seed=5), draw(500, seed=1), draw(500, seed=2)
    bad[77] = float("nan")
    values = doubled(start.clone())
    assert not values.step_ahead([good, bad], GROUP)
    values.apply(good, [True], GROUP)
    assert bits(values.now) == bits(torch.add(start, good, alpha=-0.37))


@compiled
def test_a_step_along_is_the_step_and_its_copy_and_torch_goes_on_from_there(built: Kernels):
    """With momentum from the third step on, which torch takes in place."""
    momentum = tuple((key, 0.9 if key == "momentum" else value) for key, value in GROUP)
    start, gradients = draw(500, seed=5), [draw(500, seed=rank) for rank in range(4)]
    values, reference = values_of(start.clone(), momentum), values_of(start.clone(), momentum)
    for gradient in gradients[:2]:
        before, copy = bits(values.now), torch.empty(500)
        assert values.step_along(gradient, GROUP, copy)
        assert bits(values.now) == before
        values.apply(None, [True], GROUP)
        reference.apply(gradient, [True], GROUP)
        assert bits(values.now) == bits(copy) == bits(reference.now)
    for gradient in gradients[2:]:
        assert not values.step_along(gradient, momentum, torch.empty(500))
        values.apply(gradient, [True], momentum)
        reference.apply(gradient, [True], momentum)
        assert bits(values.now) == bits(reference.now)


@compiled
def test_a_step_along_that_is_not_finite_changes_nothing_and_its_copy_is_of_the_weights(built: Kernels):
    start, good, bad = draw(500, seed=5), draw(500, seed=1), draw(500, seed=2)
    bad[77] = float("nan")
    values, copy = values_of(start.clone()), torch.empty(500)
    assert not values.step_along(bad, GROUP, copy)
    assert not values.ahead
    assert bits(values.now) == bits(copy) == bits(start)
    values.apply(good, [True], GROUP)
    assert bits(values.now) == bits(torch.add(start, good, alpha=-0.37))


@compiled
def test_weights_that_nobody_maps_and_other_steps_are_not_ahead(built: Kernels):
    """Memory beside them for each version would be as much again, where partitions differ in size."""
    gradient = draw(64, seed=1)
    assert not values_of(draw(64, seed=5)).step_ahead([gradient], GROUP)
    assert not doubled(draw(64, seed=5)).step_ahead([gradient.double()], GROUP)
    momentum = tuple((key, 0.9 if key == "momentum" else value) for key, value in GROUP)
    assert not doubled(draw(64, seed=5)).step_ahead([gradient], momentum)


@compiled
def test_weights_that_are_carried_after_a_step_ahead_are_those_of_before(built: Kernels):
    values = doubled(draw(64, seed=5))
    before = bits(values.now)
    assert values.step_ahead([draw(64, seed=1)], GROUP)
    values.carry()
    assert bits(values.now) == before
    assert not values.ahead


class Wrong(Kernels):
    """Off in the last bit of one element."""

    def __init__(self, kernels: Kernels, place: int) -> None:
        self._right, self._place = kernels, place

    def mean(self, terms: kernels.Numbers, out: torch.Tensor, ranks: int = 1) -> bool:
        return self._right.mean(terms, out, ranks)

    def mean_step(
        self, terms: kernels.Numbers, weights: torch.Tensor, rate: float, out: torch.Tensor, ranks: int = 1
    ) -> bool:
        finite = self._right.mean_step(terms, weights, rate, out, ranks)
        out.view(torch.int32)[self._place] ^= 1
        return finite


@compiled
def test_kernels_that_differ_from_torch_in_one_bit_are_not_used(built: Kernels):
    assert same_as_torch(built)
    assert not same_as_torch(Wrong(built, 0))
    assert not same_as_torch(Wrong(built, -1))


def test_a_library_that_is_none_or_cannot_be_loaded_is_said(tmp_path, monkeypatch):
    """The server says which arithmetic it has, and starts."""
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    assert kernels.load() == (None, "torch's (no compiled kernels: install with a C compiler for them)")
    (tmp_path / f"_kernels{kernels.EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    found, said = kernels.load()
    assert found is None
    assert "cannot be loaded" in said
