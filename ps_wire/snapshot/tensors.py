"""Named tensors in a safetensors file: written as a stream, read lazily by the library.

The library writes a file from bytes that are all in memory a second time. A snapshot of gigabytes has no room
for that, and its checksum is taken as it is written. Reading is the library's: it maps the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch

from ps_wire.errors import SnapshotCorrupt, SnapshotFailed
from ps_wire.frames.buffer import bytes_of

DTYPES = {
    torch.uint8: "U8",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
ALIGNMENT = 8  # of the first tensor, as the format recommends
MAX_HEADER_BYTES = (
    64 << 20
)  # names, shapes and facts, in JSON, which takes up to 20 times its size while it is read


def encode(tensors: Mapping[str, torch.Tensor], facts: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The parts of a file, in order.

    Args:
        tensors: on the CPU, of the dtypes that tables and their pushes have.
        facts: texts that lie beside them.

    Raises:
        SnapshotFailed: names and facts are more than a reader takes.
    """
    sizes = {name: (DTYPES[it.dtype], it.shape, it.nbytes) for name, it in tensors.items()}
    yield encode_header(sizes, facts)
    for tensor in tensors.values():
        yield bytes_of(tensor.contiguous().reshape(-1))


def encode_header(sizes: Mapping[str, tuple[str, Sequence[int], int]], facts: Mapping[str, str]) -> bytes:
    """The beginning of a file; its tensors follow, one behind the other.

    Args:
        sizes: of each tensor, by name: its dtype as `DTYPES` has it, its shape, its bytes.
        facts: as in `encode`; it raises what that raises.
    """
    header: dict[str, object] = {"__metadata__": dict(facts)}
    offset = 0
    for name, (dtype, shape, nbytes) in sizes.items():
        end = offset + nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise SnapshotFailed(
            f"names and facts of {len(sizes)} tensors take {len(text)} bytes, over {MAX_HEADER_BYTES}: use "
            "more servers, larger buckets and partitions (BucketOptions) or fewer workers"
        )
    return struct.pack("<Q", len(text)) + text


class TensorFile(Mapping[str, torch.Tensor]):
    """A file's tensors, each read when it is asked for; memory of the file's as long as the file is mapped.

    Attributes:
        facts: texts that lie beside them.
    """

    def __init__(self, path: Path, where: str) -> None:
        """Opens it; `where` is how people call it.

        Raises:
            SnapshotCorrupt: it is no such file.
        """
        try:
            with path.open("rb") as raw:
                header_bytes = int.from_bytes(raw.read(8), "little")
            if header_bytes > MAX_HEADER_BYTES:
                raise SnapshotCorrupt(
                    f"{where} is no safetensors file of ours: its header has {header_bytes} bytes, at most "
                    f"{MAX_HEADER_BYTES} are taken",
                    file=path.name,
                )
            opened: Any = safetensors.safe_open(path, framework="pt")
        except (safetensors.SafetensorError, OSError) as error:
            raise SnapshotCorrupt(f"{where} is no safetensors file: {error}", file=path.name) from None
        self._file = opened
        self.facts: dict[str, str] = dict(opened.metadata() or {})
        self._names = frozenset(opened.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
