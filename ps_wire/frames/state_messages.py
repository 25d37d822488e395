"""Optimizer state of one partition between tensors and messages, the same at both ends.

A piece's tensor is 1-D; a scalar, one number for the whole piece, has no dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ps_wire.errors import PayloadMismatch
from ps_wire.frames.buffer import as_tensor
from ps_wire.spec.dtypes import ITEM_BYTES
from ps_wire.v1 import shard_pb2 as pb

MESSAGE_BYTES = 4 << 20  # of data, in one message
ENTRY_BYTES = 64  # that a tensor takes in a message beside its data, about


def pack(partition: int, entries: Iterable[tuple[int, str, torch.Tensor]]) -> Iterator[pb.PartitionState]:
    """A partition's state in one or more messages; the last one is marked.

    Args:
        partition: its number.
        entries: index of the piece in the partition, name, tensor on the CPU. They are copied.
    """
    message, used = pb.PartitionState(partition=partition), 0
    for piece, name, value in entries:
        size = value.nbytes + ENTRY_BYTES
        if used and used + size > MESSAGE_BYTES:
            yield message
            message, used = pb.PartitionState(partition=partition), 0
        used += size
        message.tensors.append(
            pb.StateTensor(
                piece=piece,
                name=name,
                dtype=str(value.dtype).removeprefix("torch."),
                scalar=value.dim() == 0,
                data=value.reshape(-1).numpy().tobytes(),
            )
        )
    message.last = True
    yield message


def unpack(tensor: pb.StateTensor, numel: int) -> torch.Tensor:
    """The tensor in an entry, to be read only: shape (numel,), or () for a scalar.

    Raises:
        PayloadMismatch: its bytes are not that many elements.
    """
    data, size = tensor.data, ITEM_BYTES.get(tensor.dtype)
    expected = 1 if tensor.scalar else numel
    if size is None or len(data) != expected * size:
        raise PayloadMismatch(
            f"{tensor.name[:64]!r} is {len(data)} bytes of {tensor.dtype[:64]!r}; "
            f"{expected} elements are here, of {', '.join(ITEM_BYTES)}"
        )
    value = as_tensor(data, getattr(torch, tensor.dtype))
    return value.reshape(()) if tensor.scalar else value
