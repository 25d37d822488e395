"""What a script writes into parameters that weights are copied to, as `WrittenCopies` finds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ps_worker.memory.staging import Stagings
from ps_worker.optimizer.written_copies import PART_ELEMENTS, WrittenCopies


def looking(*parameters: torch.Tensor) -> WrittenCopies:
    return WrittenCopies(parameters, Stagings([]))


def steps(copies: WrittenCopies, copied: set[int], *writes: torch.Tensor | None) -> list[int | None]:
    """Weights come; the script writes, or not; the step ends: what was found when the next one has ended."""
    found = []
    for write in (*writes, None):
        copies.forget(copied)
        copies.keep(copied, copied)
        if write is not None:
            write.data.add_(1.0)
        found.append(copies.found())
        copies.look()
    return found[1:]


@pytest.mark.parametrize(
    "shape",
    [(), (3,), (7, PART_ELEMENTS), (1, 5 * PART_ELEMENTS + 3), (2, PART_ELEMENTS // 3, 2, 2)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_element_comes_round(shape: tuple[int, ...], dtype: torch.dtype):
    """The last is the worst: where the longest dimension is cut, a part has at least an index of it."""
    parameters = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
    for parameter in parameters:
        for element in (0, parameter.numel() // 2, parameter.numel() - 1):
            written = parameter.view(-1)[element]
            found = steps(looking(*parameters), {0, 1}, *[written] * 16)
            assert any(it is not None and parameters[it] is parameter for it in found), element


def test_what_nobody_writes_is_not_found():
    odd = torch.tensor([float("nan"), -0.0, float("inf")])
    assert steps(looking(torch.ones(3), odd), {1}, None, None, None) == [None] * 3


def test_parameters_take_turns():
    """Those to which weights are copied, which become more where a model moves."""
    parameters = [torch.zeros(3) for _ in range(4)]
    copies = looking(*parameters)
    assert steps(copies, {0, 2}, *(parameters[index] for index in (0, 2, 0))) == [0, 2, 0]
    assert 3 in steps(copies, {0, 2, 3}, *[parameters[3]] * 4)
    copies = looking(*parameters)
    assert steps(copies, {0, 2, 3}, *(parameters[index] for index in (0, 2, 3, 0))) == [0, 2, 3, 0]
    assert steps(looking(*parameters), {0, 2, 3}, *[parameters[1]] * 4) == [None] * 4


def test_an_answer_is_given_once():
    parameter = torch.zeros(3)
    copies = looking(parameter)
    assert steps(copies, {0}, parameter) == [0]
    assert copies.found() is None


@pytest.mark.parametrize("fills", [{0}, {1}], ids=["of it", "of another"])
def test_what_is_written_between_steps_is_found_before_weights_come_to_it(fills: set[int]):
    parameters = [torch.zeros(3), torch.zeros(3)]
    copies = looking(*parameters)
    copies.keep({0, 1}, {0, 1})
    copies.look()
    parameters[0].data.add_(1.0)
    assert copies.forget(fills) == (fills == {0})
    assert copies.found() == (0 if fills == {0} else None)


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


@pytest.mark.parametrize(
    "move", [lambda it: torch.ones(2, 3), lambda it: it.data.t()], ids=["elsewhere", "into another shape"]
)
def test_a_parameter_that_has_moved_is_not_compared(move: Callable[[torch.Tensor], torch.Tensor]):
    parameter = torch.zeros(2, 3)
    copies = looking(parameter)
    copies.keep({0}, {0})
    parameter.data = move(parameter)
    copies.look()
    assert not copies.forget({0})
    assert copies.found() is None


def test_a_parameter_on_another_device_is_not_compared():
    parameter = torch.nn.Parameter(torch.zeros(3))
    copies = looking(parameter)
    copies.keep({0}, {0})
    torch.utils.swap_tensors(parameter, torch.nn.Parameter(torch.zeros(3, device="meta")))
    copies.look()
    assert copies.found() is None
