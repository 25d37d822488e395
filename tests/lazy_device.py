"""A device module for tests on the host: what a stream is given runs when somebody waits for it.

Its tensors lie on the host. Copies are caught inside `stream(...)`; `run` gives the current stream work. An
eager one does its own work at once, as the host does, while its side streams lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class LazyEvent:
    def __init__(self, stream: LazyStream, place: int) -> None:
        self._stream = stream
        self._place = place

    def query(self) -> bool:
        return self._stream.done >= self._place

    def synchronize(self) -> None:
        self._stream.run_to(self._place)


class LazyStream:
    def __init__(self, device: Any = None, *, eager: bool = False) -> None:
        self.done = 0
        self._eager = eager
        self._work: list[Callable[[], object]] = []

    def add(self, work: Callable[[], object]) -> None:
        self._work.append(work)
        if self._eager:
            self.run_to(len(self._work))

    def run_to(self, place: int) -> None:
        while self.done < place:
            self.done += 1
            self._work[self.done - 1]()

    def record_event(self) -> LazyEvent:
        return LazyEvent(self, len(self._work))

    def wait_event(self, event: LazyEvent) -> None:
        self.add(event.synchronize)

    def wait_stream(self, other: LazyStream) -> None:
        self.wait_event(other.record_event())


class _Catching(TorchFunctionMode):
    def __init__(self, stream: LazyStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch._foreach_copy_:
            return function(*args, **kwargs or {})
        self._stream.add(lambda: _copy(function, args, kwargs or {}))
        return None


def _copy(function: Any, args: Any, kwargs: Any) -> None:
    with torch.no_grad(), torch.inference_mode(False):
        function(*args, **kwargs)


class LazyDevice:
    """What `torch.get_device_module` would give; there is nothing to wait for all of it."""

    Stream = LazyStream

    def __init__(self, *, eager: bool = False) -> None:
        self.current = LazyStream(eager=eager)

    def current_stream(self, _device: Any) -> LazyStream:
        return self.current

    @contextmanager
    def stream(self, stream: LazyStream) -> Iterator[None]:
        with _Catching(stream):
            yield

    def run(self, work: Callable[[], object]) -> None:
        self.current.add(work)
