"""The mean in rank order, against numpy's arithmetic: every product, sum and quotient rounded once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from ps_server.shard.optimizer import mean as average
from ps_server.shard.optimizer.mean import Scratch
from tests.unit.ps_server.local import mean_in_rank_order

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def draw(count, dtype, *, numel=1003, seed=0):
    """Arrays whose sum depends on the order, since their sizes differ by far."""
    numbers = np.random.default_rng(seed)
    return [(numbers.standard_normal(numel) * 10.0 ** (3 * place)).astype(dtype) for place in range(count)]


def tensors(arrays):
    return [torch.from_numpy(array) for array in arrays]


def mean(*arguments):
    return average.mean(*arguments).values


def float32(weights):
    """As they travel."""
    return [float(np.float32(weight)) for weight in weights]


@DTYPES
@pytest.mark.parametrize(
    "weights",
    [(1, 1), (1, 1, 1), (1,) * 7, (3, 1), (1, 3), (0.1, 0.2, 0.7), (5,), (1e-3, 1, 64, 33)],
    ids=str,
)
def test_the_mean_is_that_of_numpy_in_rank_order_to_the_bit(dtype, weights):
    """`((w0*g0) + (w1*g1) + ...) / (w0 + w1 + ...)`; with weights 1, the sum over their number."""
    arrays = draw(len(weights), dtype)
    weights = float32(weights)
    got = mean(tensors(arrays), weights, Scratch())
    assert got.numpy().dtype == dtype
    assert got.numpy().tobytes() == mean_in_rank_order(list(zip(weights, arrays, strict=True))).tobytes()


def test_the_order_is_seen_in_the_bits():
    """Else the law above would say nothing about order."""
    arrays = draw(4, np.float32)
    one, other = (mean(tensors(some), [1.0] * 4, Scratch()) for some in (arrays, arrays[::-1]))
    assert not torch.equal(one, other)


def test_one_gradient_of_weight_one_is_itself():
    """Nothing is copied or computed."""
    (gradient,) = tensors(draw(1, np.float32))
    assert mean([gradient], [1.0], Scratch()) is gradient


@DTYPES
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (2.0, 1.0, 0.5), (2.0,)], ids=str)
def test_gradients_are_only_read(dtype, weights):
    """They are memory of received messages."""
    arrays = draw(len(weights), dtype)
    before = [array.tobytes() for array in arrays]
    mean(tensors(arrays), weights, Scratch())
    assert [array.tobytes() for array in arrays] == before


def test_the_scratch_is_taken_again():
    """A second mean, of the same size or a smaller one, allocates nothing; a larger one grows it."""
    scratch = Scratch()
    first = mean(tensors(draw(2, np.float32, numel=64)), [1.0, 2.0], scratch)
    for numel in (64, 48):
        arrays = draw(2, np.float32, numel=numel, seed=numel)
        again = mean(tensors(arrays), [1.0, 2.0], scratch)
        assert again.data_ptr() == first.data_ptr()
        assert again.shape == (numel,)
        assert again.numpy().tobytes() == mean_in_rank_order([(1.0, arrays[0]), (2.0, arrays[1])]).tobytes()
    assert mean(tensors(draw(2, np.float32, numel=99)), [1.0, 1.0], scratch).shape == (99,)


def test_dtypes_and_threads_have_scratch_of_their_own():
    """Two cells are averaged at once."""
    scratch = Scratch()
    taken = [
        scratch.take(torch.float32, 8),
        scratch.take(torch.float64, 8),
        scratch.take(torch.float32, 8, 1),
    ]
    thread = threading.Thread(target=lambda: taken.append(scratch.take(torch.float32, 8)))
    thread.start()
    thread.join()
    assert len({tensor.data_ptr() for tensor in taken}) == 4
    assert scratch.take(torch.float32, 8).data_ptr() == taken[0].data_ptr()


@pytest.mark.parametrize("weights", [[1.0], [3.0], [1.0, 1.0, 1.0], [8.0, 3.0, 0.1]])
@pytest.mark.parametrize("dtypes", [[torch.bfloat16] * 3, [torch.float32, torch.float16, torch.bfloat16]])
def test_gradients_of_16_bits_are_widened_first(dtypes: list[torch.dtype], weights: list[float]):
    """To the bit; the gradients stay as they are."""
    generator = torch.Generator().manual_seed(0)
    sent = [torch.randn(1000, generator=generator).to(dtype) for dtype in dtypes][-len(weights) :]
    before = [gradient.clone() for gradient in sent]
    expected = mean([gradient.float() for gradient in sent], weights, Scratch()).clone()
    assert torch.equal(mean(sent, weights, Scratch()), expected)
    assert all(map(torch.equal, sent, before))
