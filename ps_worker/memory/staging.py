"""Copies between a device's parameters and the flat memory on the host: all that depends on the device.

On the host a copy is done when the call returns. On an accelerator copies run on side streams beside the
computation: gradients out as each bucket is complete, weights in module by module; the forward waits for
events on its stream, the host for those of one copy, nobody for the whole device.

    out     begins when what was queued on the current stream is done, which has made the gradients; whoever
            sends them waits for the ticket
    into    begins when the reads before `reads_end` are done; what the current stream computes from then on
            sees the new weights; before the host memory is written again, `wait_into`

It must not know tables, steps or frames.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeAlias

import torch

from ps_wire.process import kernels

Tensors: TypeAlias = list[torch.Tensor]

FEW = 32  # tensors of a bucket; where there are more, looking at each takes as long as it saves


class Ticket(Protocol):
    """Of a copy under way; a `torch.Event` is one."""

    def query(self) -> bool:
        """Whether it is done."""
        ...

    def synchronize(self) -> None:
        """Waits until it is."""
        ...


class Staging(Protocol):
    """The copies to and from one device. Used by one thread at a time."""

    def out(self, views: Tensors, gradients: Tensors) -> Ticket:
        """Begins to copy gradients into flat memory; neither may be written until the ticket is done."""
        ...

    def into(self, targets: Tensors, views: Tensors) -> None:
        """Begins to copy flat weights into parameters."""
        ...

    def reads_end(self) -> None:
        """Marks the end of reads of the version before: nothing that is queued later reads it."""
        ...

    def wait_into(self) -> None:
        """Waits until no copy reads flat weights any more."""
        ...


class Done:
    """The ticket of a copy that is done."""

    def query(self) -> bool:
        """See `Ticket`."""
        return True

    def synchronize(self) -> None:
        """See `Ticket`."""


DONE = Done()


def _streamed(view: torch.Tensor, gradient: torch.Tensor) -> bool:
    """Copies a large gradient that lies as its view does; False: nothing was done."""
    assert kernels.KERNELS is not None
    size = view.nbytes
    if size < kernels.STREAMED_BYTES or gradient.dtype is not view.dtype or not gradient.is_cpu:
        return False
    if not (view.is_contiguous() and gradient.is_contiguous()) or gradient.is_neg() or gradient.is_conj():
        return False
    kernels.KERNELS.copy(gradient.data_ptr(), view.data_ptr(), size)
    return True


class HostStaging:
    """A `Staging` on the host."""

    def out(self, views: Tensors, gradients: Tensors) -> Ticket:
        """See `Staging`. Large gradients go past the caches: a server reads them, on another core."""
        if len(views) <= FEW and kernels.KERNELS is not None:
            left = [pair for pair in zip(views, gradients, strict=True) if not _streamed(*pair)]
            views, gradients = [view for view, _ in left], [gradient for _, gradient in left]
        if views:
            torch._foreach_copy_(views, gradients)
        return DONE

    def into(self, targets: Tensors, views: Tensors) -> None:
        """See `Staging`."""
        torch._foreach_copy_(targets, views)

    def reads_end(self) -> None:
        """See `Staging`."""

    def wait_into(self) -> None:
        """See `Staging`."""


class StreamStaging:
    """A `Staging` of an accelerator."""

    def __init__(self, module: Any, device: torch.device) -> None:
        """Makes two streams.

        Args:
            module: of the kind of device, as `torch.get_device_module` gives it.
            device: that parameters are on.
        """
        self._module = module
        self._device = device
        self._leaving = module.Stream(device=device)
        self._arriving = module.Stream(device=device)
        self._read: Any = None  # event: the weights of the version before are not read any more
        self._copied: Any = None  # event: the newest copy of weights

    def out(self, views: Tensors, gradients: Tensors) -> Ticket:
        """See `Staging`."""
        self._leaving.wait_stream(self._current)
        with self._module.stream(self._leaving):
            torch._foreach_copy_(views, gradients, non_blocking=True)
        return _Kept(self._leaving.record_event(), gradients)

    def into(self, targets: Tensors, views: Tensors) -> None:
        """See `Staging`."""
        if self._read is None:
            self.reads_end()
        self._arriving.wait_event(self._read)
        with self._module.stream(self._arriving):
            torch._foreach_copy_(targets, views, non_blocking=True)
        self._copied = self._arriving.record_event()
        self._current.wait_event(self._copied)

    def reads_end(self) -> None:
        """See `Staging`."""
        self._read = self._current.record_event()

    def wait_into(self) -> None:
        """See `Staging`."""
        if self._copied is not None:
            self._copied.synchronize()

    @property
    def _current(self) -> Any:
        return self._module.current_stream(self._device)


class _Kept:
    """The ticket of an event, which keeps what is copied: nobody else may get its memory meanwhile."""

    def __init__(self, event: Any, kept: Tensors) -> None:
        self._event = event
        self._kept = kept

    def query(self) -> bool:
        """See `Ticket`."""
        return bool(self._event.query())

    def synchronize(self) -> None:
        """See `Ticket`."""
        self._event.synchronize()
        self._kept = []


class Lane(Protocol):
    """A lane for work on memory of one device, beside the computation there; `after` is for one thread."""

    def mark(self) -> Ticket:
        """The end of what was queued on the current stream until now; used by the thread that computes."""
        ...

    def after(self, mark: Ticket) -> AbstractContextManager[object]:
        """A block: it begins what is queued there after the mark, and ends when that is done."""
        ...


class HostLane:
    """A `Lane` on the host."""

    def mark(self) -> Ticket:
        """See `Lane`."""
        return DONE

    def after(self, mark: Ticket) -> AbstractContextManager[object]:  # noqa: ARG002 - it is over
        """See `Lane`."""
        return nullcontext()


class StreamLane:
    """A `Lane` of an accelerator: a stream."""

    def __init__(self, module: Any, device: torch.device) -> None:
        """See `StreamStaging`."""
        self._module = module
        self._device = device
        self._stream = module.Stream(device=device)

    def mark(self) -> Ticket:
        """See `Lane`."""
        event: Ticket = self._module.current_stream(self._device).record_event()
        return event

    @contextmanager
    def after(self, mark: Ticket) -> Iterator[None]:
        """See `Lane`."""
        self._stream.wait_event(mark)
        with self._module.stream(self._stream):
            yield
        self._stream.record_event().synchronize()


class Stagings:
    """Of the devices that a table's parameters are on, made when they are first asked for."""

    def __init__(self, memory: Sequence[torch.Tensor]) -> None:
        """`memory`: flat, on the host; it is pinned for an accelerator, whose copies else stop the host."""
        self._memory = memory
        self._host = HostStaging()
        self._of: dict[torch.device, Staging] = {}

    def of(self, device: torch.device) -> Staging:
        """Of a device."""
        if device.type == "cpu":
            return self._host
        if device not in self._of:
            module = torch.get_device_module(device)
            if not self._of:
                for tensor in self._memory:
                    _pin(module, tensor)
            self._of[device] = StreamStaging(module, device)
        return self._of[device]

    def lane(self, device: torch.device) -> Lane:
        """A new lane of a device, whose copies to and from the host's memory do not stop the host."""
        if device.type == "cpu":
            return HostLane()
        self.of(device)
        return StreamLane(torch.get_device_module(device), device)

    def reads_end(self) -> None:
        """See `Staging`."""
        for staging in self._of.values():
            staging.reads_end()

    def wait_into(self) -> None:
        """See `Staging`."""
        for staging in self._of.values():
            staging.wait_into()


def _pin(module: Any, tensor: torch.Tensor) -> None:
    """Locks memory that is there already, for as long as the tensor lives; only CUDA and ROCm can."""
    cudart = getattr(module, "cudart", None)
    if cudart is None or not tensor.numel():
        return
    address = tensor.data_ptr()
    if int(cudart().cudaHostRegister(address, tensor.numel() * tensor.element_size(), 0)) == 0:
        weakref.finalize(tensor, cudart().cudaHostUnregister, address)
