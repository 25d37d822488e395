"""Optimizers on an accelerator, with their state there; weights stay on the host, where they are sent from.

A step takes the weights and the mean of the gradients to the device and brings the weights back, so nobody
else has to know that there is one. It waits for its own copies, never for the whole device. They go from and
to memory that is not registered with the device, which takes longer than the steps (docs/gpus.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer, State, known
from ps_wire.spec.table import Group

HOST = torch.device("cpu")


def optimizer_on(device: torch.device) -> Callable[..., PieceOptimizer]:
    """Gives what makes an optimizer whose steps run on a device."""
    return PieceOptimizer if device.type == "cpu" else partial(DeviceOptimizer, device=device)


class DeviceOptimizer(PieceOptimizer):
    """An optimizer whose P pieces are copies on a device of those that it is given, on the host."""

    on_weights = False

    def __init__(
        self, name: str, group: Group, pieces: Sequence[torch.Tensor], *, device: torch.device
    ) -> None:
        """As `PieceOptimizer`; `device` is where the state is."""
        self._device = device
        self._hosts = list(pieces)
        super().__init__(name, group, [piece.to(device, copy=True) for piece in pieces])

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor | None], group: Group) -> None:
        """See `PieceOptimizer.step`; gradients are on the host."""
        there = [index for index, gradient in enumerate(gradients) if gradient is not None]
        hosts, pieces = [self._hosts[index] for index in there], [self.pieces[index] for index in there]
        torch._foreach_copy_(pieces, hosts)
        taken = [None if gradient is None else gradient.to(self._device) for gradient in gradients]
        super().step(taken, group)
        torch._foreach_copy_(hosts, pieces)

    def rebind(self, pieces: Sequence[torch.Tensor]) -> None:
        """See `PieceOptimizer.rebind`."""
        self._hosts = list(pieces)

    def export_state(self) -> list[State]:
        """See `PieceOptimizer.export_state`; on the host."""
        return [{key: value.cpu() for key, value in state.items()} for state in super().export_state()]

    def _own(self, key: str, value: torch.Tensor) -> torch.Tensor:
        own = super()._own(key, value)
        entry = known(self.name)
        return own.to(self._device) if entry.fused or key not in entry.scalars else own
