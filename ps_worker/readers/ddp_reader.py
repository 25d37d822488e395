"""A reader of the weights of a baseline: the face of a `Reader` where there are no servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

import torch

from ps_wire.errors import CutAborted, JobUnknown, TableMismatch, UsageError
from ps_worker.group.ddp.shown import Asking, WeightsThere
from ps_worker.readers.reader import READ_LIMIT_S, Cut
from ps_worker.settings import Settings

LOOK_EVERY_S = 0.002


class DdpReader:
    """Made by `connect(role="reader")` with `PS_DDP`; a context manager. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Waits until worker 0 shows weights.

        Raises:
            JobUnknown: it does not, within `settings.wait_s`.
        """
        assert settings.ddp is not None
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._asking = Asking(settings.ddp)
        until_s = clock() + settings.wait_s
        while not self._asking.there:
            if clock() >= until_s:
                raise JobUnknown(
                    f"no worker shows weights in {settings.ddp} (PS_DDP); waited for {settings.wait_s:g} s "
                    "(PS_WAIT)"
                )
            sleep(LOOK_EVERY_S)

    def read(self, model: torch.nn.Module, *, table: int = 0, limit_s: float = READ_LIMIT_S) -> Cut:
        """Loads weights and buffers of one version into the model; see `Reader.read`.

        Raises:
            TableMismatch: a parameter or buffer is missing or has another shape; nothing was loaded.
            CutAborted: worker 0 did not come to the end of a step within `limit_s`.
            UsageError: a number makes no sense.
        """
        if table or not limit_s > 0:
            raise UsageError(f"read of a baseline takes table 0 and a limit_s > 0, got {table} and {limit_s}")
        self._asking.ask()
        until_s = self._clock() + limit_s
        while (found := self._asking.answer()) is None:
            if self._clock() >= until_s:
                raise CutAborted(f"worker 0 came to the end of no step within {limit_s:g} s: read later")
            self._sleep(LOOK_EVERY_S)
        _load(found, model)
        return Cut(
            version=found.version,
            spread=0,
            clocks={},
            buffers="final" if found.ended else "live",
            buffers_step=0 if found.ended else found.version,
            ended=found.ended,
        )

    def leave(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def _load(found: WeightsThere, model: torch.nn.Module) -> None:
    mine = model.state_dict()
    for name, tensor in mine.items():
        if name not in found.tensors or found.tensors[name].shape != tensor.shape:
            there = tuple(found.tensors[name].shape) if name in found.tensors else "missing"
            raise TableMismatch(f"{name!r} has shape {tuple(tensor.shape)} here; in the job it is {there}")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(found.tensors[name])
