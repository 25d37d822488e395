"""A stage as torch's schedule calls it, and the shapes of what goes from stage to stage.

It must not know ranks or sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ps_wire.errors import PipelineError

CHECKPOINTS = ("never", "always", "except_last")
_aten = torch.ops.aten
MIXED = {torch.float16, torch.bfloat16, torch.float32}  # autocast may bring them together
PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution}


class StageModule(nn.Module):
    """One stage, whose activations are kept for backward, or computed again in it."""

    def __init__(self, inner: nn.Module, *, mode: str, microbatches: int) -> None:
        """Takes the stage; `mode` is one of `CHECKPOINTS`."""
        super().__init__()
        self.inner = inner
        self._mode = mode
        self._microbatches = microbatches
        self._number = 0  # of the micro-batch that comes next

    def begin(self) -> None:
        """A step begins."""
        self._number = 0

    def forward(self, *args: Any) -> Any:
        """One micro-batch."""
        self._number += 1
        last = self._number == self._microbatches
        again = self._mode == "always" or (self._mode == "except_last" and not last)
        if again and torch.is_grad_enabled():
            return checkpoint(self.inner, *args, use_reentrant=False)
        return self.inner(*args)


def shapes_of(stages: Sequence[nn.Module], example: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """The inputs of each stage and the outputs of the last, without values: on the meta device.

    Args:
        stages: of the model, in order.
        example: the inputs of one micro-batch.

    Raises:
        PipelineError: a stage does not run with what it gets, or gives what is no tensor.
    """
    args = tuple(torch.empty_like(it, device="meta") for it in example)
    shapes = [args]
    for number, stage in enumerate(stages):
        named = [*stage.named_parameters(), *stage.named_buffers()]
        values = {name: _on_meta(tensor) for name, tensor in named}
        try:
            with torch.enable_grad(), _OneDtype():  # type: ignore[no-untyped-call]
                out = functional_call(stage, values, args)
        except Exception as error:
            raise PipelineError(
                f"stage {number} does not run with the example "
                f"({', '.join(_described(it) for it in args)} come to it): {type(error).__name__}: {error}",
                stage=number,
            ) from error
        outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if number < len(stages) - 1 and not all(isinstance(it, torch.Tensor) for it in outs):
            kinds = ", ".join(type(it).__name__ for it in outs)
            raise PipelineError(f"stage {number} gives {kinds}, and only tensors go on", stage=number)
        args = tuple(
            it.detach().requires_grad_(it.requires_grad) for it in outs if isinstance(it, torch.Tensor)
        )
        shapes.append(args)
    return shapes


class _OneDtype(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses products of two dtypes, as whatever computes them does; meta kernels do not look."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch."""
        dtypes = {it.dtype for it in args if isinstance(it, torch.Tensor)}
        if len(dtypes) > 1 and not dtypes <= MIXED and func.overloadpacket in PRODUCTS:
            raise TypeError(f"{func.overloadpacket} of {' and '.join(sorted(map(str, dtypes)))}")
        return func(*args, **(kwargs or {}))


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
