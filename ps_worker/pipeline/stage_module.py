"""A stage as torch's schedule calls it, its autocast, and the shapes of what goes from stage to stage.

It must not know ranks or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ps_wire.errors import PipelineError

Seen = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]
CHECKPOINTS = ("never", "always", "except_last")
_aten = torch.ops.aten
MIXED = {torch.float16, torch.bfloat16, torch.float32}  # autocast may bring them together
PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution}


@dataclass(frozen=True, slots=True)
class Autocast:
    """Autocast as a script has it around its calls.

    Attributes:
        device: the type of device.
        dtype: that products are computed in; None: there is none.
    """

    device: str
    dtype: torch.dtype | None = None

    @classmethod
    def of_script(cls, device: str) -> Autocast:
        """As it is in force on this thread now."""
        return cls(device, torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)

    def forward(self, *, cached: bool = True) -> AbstractContextManager[object]:
        """In it a forward runs; `cached`: casts of weights are kept until the script's own autocast ends."""
        if self.dtype is None:
            return self.backward()
        return torch.autocast(self.device, self.dtype, cache_enabled=None if cached else False)

    def backward(self) -> AbstractContextManager[object]:
        """In it a backward runs, as behind a script's autocast."""
        return torch.autocast(self.device, enabled=False)

    def check(self, now: Autocast) -> None:
        """Refuses another than that of `worker.pipeline()`, whose shapes are those of what stages send.

        Raises:
            PipelineError: saying both.
        """
        if now != self:
            raise PipelineError(
                f"worker.pipeline() was called under {self}, and pipe.step() or pipe.evaluate() under {now}: "
                "call all of them under the same"
            )

    def __str__(self) -> str:
        if self.dtype is None:
            return "no autocast"
        return f"autocast of {self.device} to {str(self.dtype).removeprefix('torch.')}"


class StageModule(nn.Module):
    """One stage, whose activations are kept for backward, or computed again in it."""

    def __init__(
        self,
        inner: nn.Module,
        *,
        mode: str,
        microbatches: int,
        autocast: Autocast,
        gives: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Takes the stage.

        Args:
            inner: its modules.
            mode: one of `CHECKPOINTS`.
            microbatches: of a step.
            autocast: in which its forward runs.
            gives: what goes on from it, without values; None: nothing, it is the last.
        """
        super().__init__()
        self.inner = inner
        self._mode = mode
        self._microbatches = microbatches
        self._autocast = autocast
        self._gives = None if gives is None else [_described(it) for it in gives]
        self._number = 0  # of the micro-batch that comes next

    def begin(self) -> None:
        """A step begins."""
        self._number = 0

    def forward(self, *args: Any) -> Any:
        """One micro-batch.

        Raises:
            PipelineError: it gives other dtypes or shapes than the next stage waits for.
        """
        self._number += 1
        last = self._number == self._microbatches
        again = self._mode == "always" or (self._mode == "except_last" and not last)
        with self._autocast.forward():
            if again and torch.is_grad_enabled():
                made = checkpoint(self.inner, *args, use_reentrant=False)
            else:
                made = self.inner(*args)
        if self._gives is not None:
            self._check(made if isinstance(made, (tuple, list)) else (made,))
        return made

    def _check(self, made: Sequence[Any]) -> None:
        """Whoever receives has memory for what the example has said."""
        gives = [_described(it) for it in made]
        if gives != self._gives:
            raise PipelineError(
                f"this stage gives {', '.join(gives)}, and with the example it would give "
                f"{', '.join(self._gives or ())}: a model that uses autocast has it around worker.pipeline() "
                "and pipe.step(), not inside"
            )


def shapes_of(
    stages: Sequence[nn.Module],
    example: Sequence[torch.Tensor],
    autocast: Autocast,
    seen: Seen = lambda _inputs, _outputs: None,
) -> list[tuple[torch.Tensor, ...]]:
    """The inputs of each stage and the outputs of the last, without values: on the meta device.

    Args:
        stages: of the model, in order.
        example: the inputs of one micro-batch.
        autocast: in which stages run. Under it tensors are torch's fake ones: it passes those on the meta
            device by.
        seen: told of the inputs and outputs of each stage in turn, with their graph.

    Raises:
        PipelineError: a stage does not run with what it gets, or gives what is no tensor.
    """
    with ExitStack() as inside:
        device = "meta"
        if autocast.dtype is not None:
            from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 - imports the compiler

            inside.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            inside.enter_context(autocast.forward(cached=False))
            device = autocast.device
        found = _pass_through(stages, example, device, seen)
    return [tuple(_without_values(it, "meta") for it in of) for of in found]


def _pass_through(
    stages: Sequence[nn.Module], example: Sequence[torch.Tensor], device: str, seen: Seen
) -> list[tuple[torch.Tensor, ...]]:
    """The inputs of each stage, and the outputs of the last, on that device."""
    args = tuple(_without_values(it, device) for it in example)
    shapes = [args]
    for number, stage in enumerate(stages):
        named = [*stage.named_parameters(), *stage.named_buffers()]
        values = {name: _without_values(tensor, device) for name, tensor in named}
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
        if not all(isinstance(it, torch.Tensor) for it in outs):
            kinds = ", ".join(type(it).__name__ for it in outs)
            raise PipelineError(
                f"stage {number} gives {kinds}, and stages give tensors: a model gives one, or several in "
                "a tuple",
                stage=number,
            )
        seen(args, outs)
        args = tuple(it.detach().requires_grad_(it.requires_grad) for it in outs)
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


def _without_values(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Laid out alike, unless elements share a place, as `expand` has them: nothing is received there."""
    if 0 in tensor.stride():
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def _described(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
