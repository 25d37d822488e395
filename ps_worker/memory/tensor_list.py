"""Many tensors, looked at and set together: one call for all, where a loop in Python takes most of the time.

From Python a look at a tensor takes 50 to 90 ns and a new `data` 250 to 350, which for 20,000 parameters is
more than their bytes take to travel. The compiled part loops over torch's own functions instead. It is used
where this torch declares them as they are called here and they do what Python sees of them, which is tried
once; else, and for whatever they refuse, Python loops. It must not know parameters, steps or who writes when.

Legend: N = tensors of the list.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from operator import attrgetter, is_
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Numbers: TypeAlias = npt.NDArray[np.int64]

# The first and the last release whose headers declare these functions so. A name does not say what a function
# returns, so one that is declared otherwise could not be tried without harm.
READ = (2, 9), (2, 15)

# Functions of torch, by the names that a C++ compiler gives them.
VERSION = "_ZNK2at10TensorBase8_versionEv"  # int64_t at::TensorBase::_version() const
BUMP = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"  # void bump_version(const at::Tensor&)
GRADIENT = "_ZNK3c1010TensorImpl4gradEv"  # const at::Tensor& c10::TensorImpl::grad() const
SET_DATA = "_ZNK2at10TensorBase8set_dataERKS0_"  # void at::TensorBase::set_data(const TensorBase&) const
DATA_PTR = "aoti_torch_get_data_ptr"  # of torch's C interface, as the next one
NUMEL = "aoti_torch_get_numel"

_version_of = attrgetter("_version")
_gradient_of = attrgetter("grad")
_address_of = torch.Tensor.data_ptr
_numel_of = torch.Tensor.numel


class Look(NamedTuple):
    """N tensors at one moment, shape (N,) each.

    Attributes:
        versions: their version counters.
        addresses: of their first elements; 0 where there are none.
        numels: their numbers of elements.
    """

    versions: Numbers
    addresses: Numbers
    numels: Numbers


class TensorList:
    """N tensors, which it keeps.

    Attributes:
        tensors: all of them; not to be changed.
        objects: the addresses of their Python objects.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Takes them, in this order."""
        self.tensors = list(tensors)
        self.objects = (ctypes.c_void_p * len(self.tensors))(*map(id, self.tensors))

    def look(self) -> Look:
        """Versions, addresses and sizes of all of them now."""
        found = loops()
        made = None if found is None else found.look(self.objects)
        return self.looked() if made is None else made

    def looked(self) -> Look:
        """The same as Python sees it, one tensor after the other."""
        versions, addresses = self._numbers(_version_of), self._numbers(_address_of)
        return Look(versions=versions, addresses=addresses, numels=self._numbers(_numel_of))

    def _numbers(self, look: Callable[[torch.Tensor], int]) -> Numbers:
        return np.fromiter(map(look, self.tensors), dtype=np.int64, count=len(self.tensors))

    def increment_versions(self) -> Numbers:
        """As `torch.autograd.graph.increment_version`; returns the versions, shape (N,)."""
        found = loops()
        made = None if found is None else found.increment_versions(self.objects)
        if made is not None:
            return made
        torch.autograd.graph.increment_version(self.tensors)
        return self._numbers(_version_of)

    def have_gradients(self, others: TensorList) -> bool:
        """Whether the `grad` of each is the tensor at its place in the other list of N, the same object."""
        found = loops()
        if found is not None:
            return found.have_gradients(self.objects, others.objects)
        return all(map(is_, map(_gradient_of, self.tensors), others.tensors))

    def show(self, others: TensorList) -> None:
        """`tensor.data = other` for each of the N pairs.

        Raises:
            RuntimeError: as torch does, where one cannot show another device or layout.
        """
        found = loops()
        if found is None or not found.show(self.objects, others.objects):
            for tensor, other in zip(self.tensors, others.tensors, strict=True):
                tensor.data = other


Objects: TypeAlias = "ctypes.Array[ctypes.c_void_p]"


class TorchLoops:
    """The compiled loops, over this torch's functions. For a thread that holds the interpreter's lock."""

    def __init__(self, library: ctypes.PyDLL, torchs: ctypes.CDLL, offset: int) -> None:
        """Takes a library that has them.

        Args:
            library: the compiled part, loaded so that the interpreter's lock stays held.
            torchs: that has torch's functions.
            offset: of the at::Tensor in a tensor's Python object, in bytes.

        Raises:
            AttributeError: one of either is missing.
        """
        self._look: Callable[..., int] = library.ps_look
        self._increment: Callable[..., int] = library.ps_increment
        self._have_gradients: Callable[..., int] = library.ps_have_gradients
        self._show: Callable[..., int] = library.ps_show
        self._offset = offset
        self._version, self._bump = _address(torchs, VERSION), _address(torchs, BUMP)
        self._gradient, self._set_data = _address(torchs, GRADIENT), _address(torchs, SET_DATA)
        self._data_ptr, self._numel = _address(torchs, DATA_PTR), _address(torchs, NUMEL)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        library.ps_look.argtypes = [pointer, size, size, *[pointer] * 6]
        library.ps_increment.argtypes = [pointer, size, size, *[pointer] * 3]
        library.ps_have_gradients.argtypes = [pointer, pointer, size, size, pointer]
        library.ps_show.argtypes = [pointer, pointer, size, size, pointer]

    def look(self, objects: Objects) -> Look | None:
        """As `TensorList`; None: torch refuses one of them."""
        made = [np.empty(len(objects), dtype=np.int64) for _ in range(3)]
        functions = self._version, self._data_ptr, self._numel
        places = [it.ctypes.data for it in made]
        done = self._look(objects, len(objects), self._offset, *functions, *places)
        return Look(*made) if done else None

    def increment_versions(self, objects: Objects) -> Numbers | None:
        """As `TensorList`; None: torch refuses one of them, and those before it are counted."""
        made = np.empty(len(objects), dtype=np.int64)
        functions = self._bump, self._version
        done = self._increment(objects, len(objects), self._offset, *functions, made.ctypes.data)
        return made if done else None

    def have_gradients(self, objects: Objects, gradients: Objects) -> bool:
        """As `TensorList`."""
        assert len(objects) == len(gradients)
        return bool(self._have_gradients(objects, gradients, len(objects), self._offset, self._gradient))

    def show(self, objects: Objects, others: Objects) -> bool:
        """As `TensorList`; False: torch refuses one, and those before it are set."""
        assert len(objects) == len(others)
        return bool(self._show(objects, others, len(objects), self._offset, self._set_data))


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def loops() -> TorchLoops | None:
    """The compiled loops of this process, looked for once; None: Python loops."""
    return load()


def load() -> TorchLoops | None:
    """The compiled loops, if this installation has them and they do with this torch what Python does."""
    folder = Path(__file__).parent
    found = [path for suffix in EXTENSION_SUFFIXES if (path := folder / f"_tensor_list{suffix}").is_file()]
    offset = tensor_offset()
    if not found or offset is None or not declared(torch.__version__):
        return None
    try:
        torchs = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        made = TorchLoops(ctypes.PyDLL(str(found[0])), torchs, offset)
    except (OSError, AttributeError):
        return None
    return made if same_as_torch(made) else None


def declared(version: str) -> bool:
    """Whether this release of torch, such as "2.13.0+cpu", declares the functions as they are called here."""
    numbers = re.match(r"(\d+)\.(\d+)\.", version)
    return numbers is not None and READ[0] <= (int(numbers[1]), int(numbers[2])) <= READ[1]


def tensor_offset() -> int | None:
    """Where in a tensor's Python object its at::Tensor lies, which is a pointer; None: it is not known."""
    zeros = partial(torch.zeros, device="cpu")
    tensors = [zeros(2), torch.nn.Parameter(zeros(3)), zeros(2, 3)[1], zeros(0)]
    first, word = object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)
    places = [
        offset
        for offset in range(first, torch.Tensor.__basicsize__ - word + 1, word)
        if all(ctypes.c_void_p.from_address(id(it) + offset).value == it._cdata for it in tensors)
    ]
    return places[0] if len(places) == 1 else None


@torch.inference_mode(False)
def same_as_torch(made: TorchLoops) -> bool:
    """Whether the loops see and do what Python does, on tensors of several kinds."""
    return _same_looks(made) and _same_gradients(made) and _same_data(made)


def _same_looks(made: TorchLoops) -> bool:
    base = torch.zeros(4, 5, device="cpu")
    kinds = [torch.nn.Parameter(base[0].clone()), base[:0].clone(), base[1], base.t(), base.double()]
    with torch.no_grad():
        for count, tensor in enumerate(kinds):
            for _ in range(count):
                tensor.zero_()
    seen = made.look(TensorList(kinds).objects)
    if seen is None or not all(map(np.array_equal, seen, TensorList(kinds).looked())):
        return False
    counted = [kinds[0], kinds[4]]
    before = list(map(_version_of, counted))
    versions = made.increment_versions(TensorList(counted).objects)
    now = list(map(_version_of, counted))
    return versions is not None and versions.tolist() == now == [it + 1 for it in before]


def _same_gradients(made: TorchLoops) -> bool:
    """One is there, one is another, one is none."""
    parameters = [torch.nn.Parameter(torch.zeros(2, device="cpu")) for _ in range(3)]
    gradients = [torch.zeros(2, device="cpu") for _ in parameters]
    parameters[0].grad, parameters[1].grad = gradients[0], gradients[1].clone()
    pairs = zip(parameters, gradients, strict=True)
    found = [
        made.have_gradients(TensorList([one]).objects, TensorList([other]).objects) for one, other in pairs
    ]
    return found == [True, False, False]


def _same_data(made: TorchLoops) -> bool:
    tensors = [torch.nn.Parameter(torch.zeros(size, device="cpu")) for size in (1, 2)]
    others = [torch.ones(size, device="cpu") for size in (3, 4)]
    before = list(map(_version_of, tensors))
    return (
        made.show(TensorList(tensors).objects, TensorList(others).objects)
        and list(map(_address_of, tensors)) == list(map(_address_of, others))
        and list(map(_numel_of, tensors)) == [3, 4]
        and list(map(_version_of, tensors)) == before
    )
