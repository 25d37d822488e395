"""A process group of torch's for calls from point to point, whose waits end with the group of ranks.

torch's pipeline schedules begin their sends and receives on a process group, and wait for each on the
script's thread; a call of gloo's that waits for a dead peer is ended by nothing. Here each wait is one of the
channel's, which `Abort` ends. Tensors of an accelerator go through memory of the host. It must not know
schedules.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ps_worker.group.channel import Channel, Wires

BACKEND = "ps_stages"  # the name under which torch makes it


class BoundedGroup(dist.ProcessGroup):
    """The group as one rank has it. Does nothing before `attach`."""

    def __init__(self, rank: int, size: int) -> None:
        """Is one of so many ranks."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._to: tuple[Wires, Channel] | None = None

    def attach(self, wires: Wires, channel: Channel) -> None:
        """It sends over these wires, and waits as this channel does."""
        self._to = wires, channel

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """As torch shows it."""
        return BACKEND

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        """Begins to send; see torch.

        Raises:
            GroupBroken: the rank has gone.
        """
        wires, channel = self._attached
        host = [tensor.detach().cpu().contiguous() for tensor in tensors]
        return _Transfer(channel, dst, channel.begin(wires.send, host, dst, tag), host)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        """Begins to receive, in place; see torch.

        Raises:
            GroupBroken: the rank has gone.
        """
        wires, channel = self._attached
        host = [
            tensor
            if tensor.is_cpu and tensor.is_contiguous()
            else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")  # as its sender lets it travel
            for tensor in tensors
        ]
        work = channel.begin(wires.recv, host, src, tag)
        return _Transfer(channel, src, work, host, tensors)

    @property
    def _attached(self) -> tuple[Wires, Channel]:
        assert self._to is not None, "no wires are attached"
        return self._to


class _Transfer(dist.Work):
    """One send or receive under way. It keeps the memory until it is over."""

    def __init__(
        self,
        channel: Channel,
        rank: int,
        work: Any,
        host: list[torch.Tensor],
        into: list[torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._channel = channel
        self._rank = rank
        self._work = work
        self._host = host
        self._into = into or host

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - of torch's face
        """Waits until it is over, or the group is.

        Raises:
            GroupBroken: the rank has gone, or the group has ended.
        """
        if self._work is not None:
            self._channel.end(self._rank, self._work)
            self._work = None
            with torch.no_grad():
                for host, tensor in zip(self._host, self._into, strict=True):
                    if host is not tensor:
                        tensor.copy_(host)
        return True


def make(_store: object, rank: int, size: int, _timeout: timedelta) -> BoundedGroup:
    """As torch calls who makes a process group of this backend."""
    return BoundedGroup(rank, size)


def register() -> None:
    """Tells torch of the backend; again it does nothing."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, make, devices=["cpu", "cuda"])
