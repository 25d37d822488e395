"""What a script writes into parameters that weights are copied to, as `WrittenCopies` finds it."""

from __future__ import annotations

import pytest
import torch

from ps_worker.memory.staging import Stagings
from ps_worker.optimizer.written_copies import PART_ELEMENTS, WrittenCopies


def looking(*parameters: torch.Tensor) -> WrittenCopies:
    return WrittenCopies(parameters, Stagings([]))


def step(copies: WrittenCopies, copied: set[int], write: torch.Tensor | None = None) -> int | None:
    """New weights, then whatever writes there; what the next step would find."""
    copies.forget(copied)
    copies.keep(copied, copied)
    if write is not None:
        write.data.add_(1.0)
    copies.look()
    return copies.found()


@pytest.mark.parametrize(
    "shape",
    [(), (3,), (7, PART_ELEMENTS), (1, 5 * PART_ELEMENTS + 3), (2, PART_ELEMENTS // 3, 2, 2)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_element_comes_round(shape: tuple[int, ...], dtype: torch.dtype):
    """The last is the worst: where the longest dimension is cut, a part has at least an index of it."""
    parameter = torch.zeros(shape, dtype=dtype)
    rounds = max(shape, default=1)
    for element in (0, parameter.numel() // 2, parameter.numel() - 1):
        copies = looking(parameter)
        written = parameter.view(-1)[element]
        found = (step(copies, {0}, written) for _ in range(min(rounds, 8)))
        assert 0 in found, element


def test_what_nobody_writes_is_not_found():
    odd = torch.tensor([float("nan"), -0.0, float("inf")])
    copies = looking(torch.ones(3), odd)
    assert [step(copies, {1}) for _ in range(3)] == [None] * 3


def test_parameters_take_turns():
    parameters = [torch.zeros(3) for _ in range(4)]
    copies = looking(*parameters)
    copied = {0, 2, 3}
    found = [step(copies, copied, parameters[index]) for index in (0, 2, 3, 0)]
    assert found == [0, 2, 3, 0]
    assert step(looking(*parameters), copied, parameters[1]) is None


def test_an_answer_is_given_once():
    parameter = torch.zeros(3)
    copies = looking(parameter)
    assert step(copies, {0}, parameter) == 0
    assert copies.found() is None


def test_weights_of_other_parameters_do_not_end_a_look():
    parameters = [torch.zeros(3), torch.zeros(3)]
    copies = looking(*parameters)
    copies.keep({0, 1}, {0})
    copies.forget({1})
    copies.keep({0, 1}, {1})
    parameters[0].data.add_(1.0)
    copies.look()
    assert copies.found() == 0


def test_new_weights_are_nothing_that_was_written():
    """Also where Ctrl-C came before they were kept: nothing is compared then."""
    parameter = torch.zeros(3)
    copies = looking(parameter)
    copies.keep({0}, {0})
    copies.forget({0})
    parameter.data.add_(1.0)
    copies.look()
    assert copies.found() is None


def test_a_parameter_that_has_moved_is_not_compared():
    parameter = torch.zeros(3)
    copies = looking(parameter)
    copies.keep({0}, {0})
    parameter.data = torch.ones(3)
    copies.look()
    assert copies.found() is None


def test_a_parameter_on_another_device_is_not_compared():
    parameter = torch.nn.Parameter(torch.zeros(3))
    copies = looking(parameter)
    copies.keep({0}, {0})
    torch.utils.swap_tensors(parameter, torch.nn.Parameter(torch.zeros(3, device="meta")))
    copies.look()
    assert copies.found() is None
