"""The file of a hand-off: facts and tensors of all jobs, in any number and with names of any length.

A safetensors file has the names of all tensors, and texts, in a header whose size has a limit. All jobs of a
shard are in one file, and names and facts of one of them may be more than that, which must not cost the
others what they have. So two tensors of bytes are all that the header names:

    index   JSON: the facts; name -> dtype, shape and first byte of each tensor in `data`
    data    the bytes of all tensors, each from a multiple of `ALIGNMENT`

It must not know what the facts say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ps_wire.frames.buffer import bytes_of
from ps_wire.snapshot.tensors import ALIGNMENT, DTYPES, TensorFile, encode_header

INDEX, DATA = "index", "data"
BYTES = DTYPES[torch.uint8]
KINDS = {text: dtype for dtype, text in DTYPES.items()}


def encode(tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """The parts of a file, in order.

    Args:
        tensors: on the CPU, of the dtypes that tables and their pushes have.
        facts: that JSON has a form for.
    """
    places: dict[str, tuple[str, list[int], int]] = {}
    end = 0
    for name, tensor in tensors.items():
        begin = end + -end % ALIGNMENT
        places[name] = DTYPES[tensor.dtype], list(tensor.shape), begin
        end = begin + tensor.nbytes
    text = json.dumps({"facts": facts, "tensors": places}).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    yield encode_header({INDEX: (BYTES, [len(text)], len(text)), DATA: (BYTES, [end], end)}, {})
    yield text
    at = 0
    for name, tensor in tensors.items():
        begin = places[name][2]
        yield bytes(begin - at)
        yield bytes_of(tensor.contiguous().reshape(-1))
        at = begin + tensor.nbytes


class HandOffFile(Mapping[str, torch.Tensor]):
    """A file's tensors, each read when it is asked for; memory of the file's as long as the file is mapped.

    Attributes:
        facts: that lie beside them.
    """

    def __init__(self, path: Path) -> None:
        """Opens it.

        Raises:
            SnapshotCorrupt: it is no safetensors file.
            Exception: it is none of ours.
        """
        file = TensorFile(path, str(path))
        index = json.loads(bytes(bytes_of(file[INDEX])))
        self.facts: dict[str, Any] = index["facts"]
        self._tensors = _Packed(file[DATA], index["tensors"])

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _Packed(Mapping[str, torch.Tensor]):
    """Tensors in one of bytes, by their places."""

    def __init__(self, data: torch.Tensor, places: Mapping[str, tuple[str, list[int], int]]) -> None:
        self._data = data
        self._places = places

    def __getitem__(self, name: str) -> torch.Tensor:
        kind, shape, begin = self._places[name]
        dtype = KINDS[kind]
        end = begin + math.prod(shape) * dtype.itemsize
        return self._data[begin:end].view(dtype).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
