"""The flat gradients of the ranks of one group, which each rank of the same host reads where they lie.

A rank says where its memory is: its process, its descriptor, its kernel and the memory's own number, by which
the others find out that what they have opened is what was meant. Ranks that cannot open each other's
descriptors, for they are in containers of their own or on several hosts, reduce in another way. It must not
know what the memory holds.

Who reads: an owner, of a bucket that all ranks have said to be there, or the shard to which the owner pushes
it. Nobody writes to it before the weights of that step are on all ranks.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ps_wire.errors import FrameRefused
from ps_wire.frames.buffer import as_tensor
from ps_wire.sockets import shared_memory
from ps_wire.sockets.frame_socket import close_all
from ps_worker.group.channel import Channel
from ps_worker.group.rendezvous import kernel
from ps_worker.memory.device_memory import DeviceMemory


class Lent:
    """The flat gradients of other ranks, where they lie.

    Attributes:
        tensors: by rank and bucket; nothing of this rank, nor of ranks that are not near.
        descriptors: by rank, of the memory, this rank's own among them, for who maps it on; closed with this.
            Empty where not all ranks are near.
    """

    def __init__(
        self, tensors: Sequence[Sequence[torch.Tensor]], descriptors: Sequence[int | None] = ()
    ) -> None:
        """Takes the descriptors over, but for None."""
        self.tensors = tensors
        there = [it for it in descriptors if it is not None]
        self.descriptors = tuple(there) if len(there) == len(descriptors) else ()
        weakref.finalize(self, close_all, there)


@dataclass(frozen=True, slots=True)
class _Mapped:
    tensors: Sequence[torch.Tensor] = ()
    descriptor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGradients:
    """The flat gradients of one table on one rank.

    Attributes:
        tensors: by bucket.
        starts: by bucket, its first byte in the memory.
        nbytes: of the memory.
        descriptor: of the memory, where other processes may map it.
        on_device: memory of the table on a device, where ranks reduce there; None: they do so here.
    """

    tensors: Sequence[torch.Tensor]
    starts: Sequence[int] = ()
    nbytes: int = 0
    descriptor: int | None = None
    on_device: DeviceMemory | None = None


def borrow(
    channel: Channel, what: str, own: FlatGradients, near: Collection[int] | None = None
) -> Lent | None:
    """The memory of other ranks; None, on all ranks, where one cannot map that of another.

    Args:
        channel: to the other ranks, which call it, too.
        what: the memory is, for people.
        own: of this rank; the others have memory of the same layout.
        near: ranks whose memory this one maps; None: all.
    """
    me, near = channel.ranks.rank, range(channel.ranks.size) if near is None else near
    said = channel.share(f"memory for {what}", _offer(own))
    found = [
        _Mapped() if rank not in near else _own(own) if rank == me else _map(one.fields, own)
        for rank, one in enumerate(said)
    ]
    there = [it or _Mapped() for it in found]
    lent = Lent([it.tensors for it in there], [it.descriptor for it in there])
    agreed = channel.share(f"memory for {what}, which is mapped", {"mapped": all(found)})
    return lent if all(one.fields.get("mapped") is True for one in agreed) else None


def can_lend(channel: Channel, near: Collection[int] | None = None) -> bool:
    """Whether each rank can map the memory of all others, or of those that are near; the same on all."""
    descriptor: int | None = None
    try:
        if shared_memory.AVAILABLE:
            descriptor = shared_memory.create(1)
    except OSError:
        descriptor = None
    try:
        own = FlatGradients(tensors=(), nbytes=1, descriptor=descriptor)
        return borrow(channel, "trial", own, near) is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _offer(own: FlatGradients) -> dict[str, Any]:
    if own.descriptor is None:
        return {}
    found = os.fstat(own.descriptor)
    memory = [kernel(), found.st_dev, found.st_ino]  # on another host they may have the same numbers
    return {"process": os.getpid(), "descriptor": own.descriptor, "memory": memory}


def _own(own: FlatGradients) -> _Mapped:
    return _Mapped(descriptor=None if own.descriptor is None else os.dup(own.descriptor))


def _map(offer: dict[str, Any], own: FlatGradients) -> _Mapped | None:
    process, descriptor = offer.get("process"), offer.get("descriptor")
    if not isinstance(process, int) or not isinstance(descriptor, int):
        return None
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    kept = False
    try:
        found = os.fstat(opened)
        if [kernel(), found.st_dev, found.st_ino] != offer.get("memory"):
            return None  # of another process with that number, or of another host
        memory = shared_memory.attach(opened, own.nbytes, writable=False)
        kept = True
    except (OSError, FrameRefused):
        return None
    finally:
        if not kept:
            os.close(opened)
    tensors = [
        as_tensor(memory[start : start + like.nbytes], like.dtype)
        for start, like in zip(own.starts, own.tensors, strict=True)
    ]
    return _Mapped(tensors, opened)
