"""Tensors that are looked at together: what Python sees of each, in one call, compiled or not."""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest
import torch

from ps_worker.memory import tensor_list
from ps_worker.memory.tensor_list import TensorList, TorchLoops, declared, load, same_as_torch, tensor_offset

BUILT = any(Path(tensor_list.__file__).with_name(f"_tensor_list{it}").is_file() for it in EXTENSION_SUFFIXES)
compiled = pytest.mark.skipif(
    not BUILT or not declared(torch.__version__),
    reason="the loops are not built here, for want of a C++ compiler, or not made for this torch",
)


@pytest.fixture(params=[pytest.param("compiled", marks=compiled), "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The loops that are in use: the compiled ones, which this torch must have, or Python's."""
    loops = load() if request.param == "compiled" else None
    assert (loops is not None) == (request.param == "compiled")
    monkeypatch.setattr(tensor_list, "loops", lambda: loops)
    return request.param


def kinds() -> list[torch.Tensor]:
    """One of each kind that a model has, and some that it should not."""
    base = torch.arange(20.0).reshape(4, 5)
    made = [
        torch.nn.Parameter(torch.ones(3)),
        torch.nn.Parameter(torch.ones(2, 2), requires_grad=False),
        base[1],
        base.t(),
        base[:, 2],
        torch.empty(0, 3),
        torch.tensor(1.5, dtype=torch.float64),
        torch.ones(4, dtype=torch.bfloat16),
        torch.ones(3, device="meta"),
        torch.nn.Parameter(torch.ones(6)).detach(),
    ]
    with torch.no_grad():
        for count, tensor in enumerate(made):
            for _ in range(count):
                tensor.zero_()
    return made


@pytest.mark.parametrize(
    ("version", "whether"),
    [
        ("2.13.0+cpu", True),
        ("2.9.1", True),
        ("2.15.0", True),
        ("2.8.0", False),
        ("2.16.0a0", False),
        ("3.0.0", False),
    ],
)
def test_releases_whose_headers_nobody_has_read_are_looped_over_in_python(
    version: str, whether: bool, monkeypatch: pytest.MonkeyPatch
):
    """A function that returns something else under its old name would end the process, not the trial."""
    assert declared(version) is whether
    monkeypatch.setattr(torch, "__version__", version)
    assert (load() is not None) == (whether and BUILT)


def test_versions_addresses_and_sizes_are_those_that_python_sees():
    tensors = kinds()
    looked = TensorList(tensors).look()
    assert looked.versions.tolist() == [it._version for it in tensors]
    assert looked.addresses.tolist() == [it.data_ptr() for it in tensors]
    assert looked.numels.tolist() == [it.numel() for it in tensors]
    assert {array.dtype for array in looked} == {np.dtype(np.int64)}


def test_each_look_is_of_now():
    """What moves a tensor, writes it or makes it smaller is seen at the next look."""
    tensors = [torch.nn.Parameter(torch.ones(size)) for size in (3, 4, 5)]
    looked = TensorList(tensors)
    before = looked.look()
    with torch.no_grad():
        tensors[0].add_(1)
    tensors[1].data = torch.ones(2)
    torch.utils.swap_tensors(tensors[2], torch.nn.Parameter(torch.ones(7)))
    now = looked.look()
    assert (now.versions - before.versions).tolist() == [1, 0, 0]
    assert (now.addresses != before.addresses).tolist() == [False, True, True]
    assert now.numels.tolist() == [3, 2, 7]
    assert now.addresses.tolist() == [it.data_ptr() for it in tensors]


def test_autograd_sees_that_each_is_written():
    """A graph that has saved one of them is told."""
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (1, 2)]
    saved = (parameters[1] * parameters[1]).sum()
    looked = TensorList(parameters)
    before = looked.look().versions
    versions = looked.increment_versions()
    assert (versions - before).tolist() == [1, 1]
    assert versions.tolist() == [it._version for it in parameters]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_an_empty_list_has_nothing_to_look_at():
    looked = TensorList([])
    assert [array.tolist() for array in looked.look()] == [[], [], []]
    assert looked.increment_versions().tolist() == []
    assert looked.have_gradients(looked)
    looked.show(looked)


def test_gradients_are_compared_as_objects():
    """One of the same values, in the same memory, or none, is another one."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    gradients = [torch.ones(3) for _ in parameters]
    looked, expected = TensorList(parameters), TensorList(gradients)
    assert not looked.have_gradients(expected)  # there is none
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    assert looked.have_gradients(expected)
    for other in (gradients[2].clone(), gradients[2].view(3), None):
        parameters[2].grad = other
        assert not looked.have_gradients(expected)
    parameters[2].grad = gradients[2]
    assert looked.have_gradients(expected)


def test_tensors_show_the_others_and_keep_counters_gradients_and_strides():
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(4))]
    parameters[1].grad = torch.ones(4)
    others = [torch.arange(6.0).reshape(3, 2).t(), torch.arange(4.0)]
    looked, before = TensorList(parameters), TensorList(parameters).look().versions.tolist()
    looked.show(TensorList(others))
    for parameter, other in zip(parameters, others, strict=True):
        assert parameter.data_ptr() == other.data_ptr()
        assert parameter.stride() == other.stride()
        assert torch.equal(parameter, other)
        assert parameter.requires_grad
        assert parameter.is_leaf
    assert looked.look().versions.tolist() == before
    assert parameters[1].grad is not None


def test_what_torch_refuses_to_show_it_refuses_here():
    """The ones before it are set, as in a loop."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    others = [torch.ones(2), torch.ones(2, device="meta")]
    with pytest.raises(RuntimeError):
        TensorList(parameters).show(TensorList(others))
    assert torch.equal(parameters[0], others[0])


def test_tensors_without_a_counter_are_an_error_and_no_end_of_the_process():
    with torch.inference_mode():
        made = torch.ones(2)
    with pytest.raises(RuntimeError, match="Inference tensors"):
        TensorList([torch.ones(1), made]).look()


def test_a_tensor_without_memory_of_its_own_is_an_error():
    with pytest.raises(RuntimeError, match="storage"):
        TensorList([torch.ones(1), torch.ones(2).to_sparse()]).look()


def test_a_list_keeps_its_tensors():
    looked = TensorList([torch.ones(2) for _ in range(100)])
    assert looked.look().numels.sum() == 200


# -- loops that do something else ----------------------------------------------------------------------


class Wrong(TorchLoops):
    def __init__(self, built: TorchLoops) -> None:
        self.__dict__.update(built.__dict__)


class SeesNothing(Wrong):
    def look(self, objects):
        return None


class WrongVersions(Wrong):
    def look(self, objects):
        seen = super().look(objects)
        return seen._replace(versions=seen.versions + 1)


class WrongAddresses(Wrong):
    def look(self, objects):
        seen = super().look(objects)
        return seen._replace(addresses=seen.numels)


class WrongNumels(Wrong):
    def look(self, objects):
        seen = super().look(objects)
        return seen._replace(numels=seen.versions)


class CountsNothing(Wrong):
    def increment_versions(self, objects):
        return super().look(objects).versions


class CountsTwice(Wrong):
    def increment_versions(self, objects):
        super().increment_versions(objects)
        return super().increment_versions(objects)


class NoGradients(Wrong):
    def have_gradients(self, objects, gradients):
        return False


class AnyGradients(Wrong):
    def have_gradients(self, objects, gradients):
        return True


class ShowsNothing(Wrong):
    def show(self, objects, others):
        return True


WRONG = (
    SeesNothing,
    WrongVersions,
    WrongAddresses,
    WrongNumels,
    CountsNothing,
    CountsTwice,
    NoGradients,
    AnyGradients,
    ShowsNothing,
)


@compiled
@pytest.mark.parametrize("way", ["compiled"], indirect=True)
@pytest.mark.parametrize("wrong", WRONG)
def test_loops_that_see_or_do_something_else_are_not_used(wrong: type[Wrong]):
    """Whatever of torch's functions is another one: the processes would train with something else."""
    built = load()
    assert built is not None
    assert same_as_torch(built)
    assert not same_as_torch(wrong(built))


@compiled
def test_nothing_is_compiled_where_a_part_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A library, one of torch's functions, or the place of a tensor in its object."""
    monkeypatch.setattr(tensor_list, "__file__", str(tmp_path / "tensor_list.py"))
    assert load() is None
    (tmp_path / f"_tensor_list{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    assert load() is None
    monkeypatch.undo()
    monkeypatch.setattr(tensor_list, "tensor_offset", lambda: None)
    assert load() is None
    monkeypatch.undo()
    monkeypatch.setattr(tensor_list, "VERSION", "_no_such_function")
    assert load() is None
    monkeypatch.undo()
    monkeypatch.setattr(tensor_list, "same_as_torch", lambda _: False)
    assert load() is None


def test_the_place_of_a_tensor_in_its_object_is_found():
    offset = tensor_offset()
    assert offset is not None
    tensor = torch.ones(5)
    assert ctypes.c_void_p.from_address(id(tensor) + offset).value == tensor._cdata
