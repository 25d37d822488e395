"""Calls that all workers of a job make together: what a script gives and gets, and which one is its next.

The coordinator matches calls by their number and computes what all get. A script that is sent to where the
job is, or back, takes the number from there once it begins a batch, an epoch or a step; until then it counts
on, and gets what the others got. It must not know streams, nor how a worker joins again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, SupportsFloat, TypeAlias

import torch

from ps_wire.errors import FrameMalformed, PsError, UsageError
from ps_wire.text import parse_json
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.recording.metric import number_of

Value: TypeAlias = SupportsFloat | torch.Tensor
Op: TypeAlias = Literal["mean", "sum", "min", "max"]

OPS = ("mean", "sum", "min", "max")
MAX_VALUES = 4096  # of a call; the coordinator takes no more
MAX_BLOB_BYTES = 32 << 10
MAX_FORM = 4096  # characters: names and shapes
LIMIT_S = 1800.0  # as of process groups in torch.distributed


class Together:
    """The calls of one script. Used by the thread that calls the worker; heartbeats read `reported`."""

    def __init__(
        self,
        collect: Callable[[pb.CollectRequest, float], pb.CollectReply | None],
        *,
        alone: Callable[[], bool],
        step: Callable[[], int],
        incarnation: Callable[[], int],
        returns: Callable[[], bool],
    ) -> None:
        """Has made no call.

        Args:
            collect: asks the coordinator, within a limit in seconds; None: the script's own value stands.
            alone: whether there is nobody to ask.
            step: how many steps the worker has taken.
            incarnation: of the worker, now.
            returns: whether its loop has yet to go where it was sent: what comes until then is void.
        """
        self._collect = collect
        self._alone = alone
        self._step = step
        self._incarnation = incarnation
        self._returns = returns
        self._next = 0
        self._sent_to: int | None = None
        self._known = False  # that its calls are numbered as those of the others
        self._arrived = False
        self._place = 0, 0  # an incarnation that knows its next call, and that; one value, for heartbeats

    @property
    def number(self) -> int:
        """Of the next call, where the script is sent or stands."""
        return self._next if self._sent_to is None else self._sent_to

    @property
    def reported(self) -> int | None:
        """The same, where this incarnation knows it."""
        of, number = self._place
        return number if of and of == self._incarnation() else None

    def begin(self) -> None:
        """The job begins with this worker."""
        self._known = True
        self._report()

    def go_on_at(self, number: int) -> None:
        """The script is sent to where this is the next call."""
        self._sent_to, self._known = number, True
        self._report()

    def arrive(self) -> None:
        """The script begins a batch, an epoch or a step."""
        self._arrived = True
        if self._sent_to is not None:
            self._next, self._sent_to = self._sent_to, None

    def pass_over(self, number: int) -> None:
        """The script leaves out what the job has behind it, up to where this is the next call."""
        self._next = max(self._next, number)

    def _report(self) -> None:
        self._place = self._incarnation(), self.number

    def reduce(self, values: Mapping[str, Value] | Value, op: str, limit_s: float) -> Any:
        """See `Worker.all_reduce`."""
        if op not in OPS:
            raise UsageError(f"all_reduce: op must be one of {', '.join(OPS)}, got {op!r}")
        given: Mapping[str, Value] = values if isinstance(values, Mapping) else {"": values}
        for name in given:
            if not isinstance(name, str):
                raise UsageError(f"all_reduce: names are texts, got {name!r}")
        names = sorted(given)  # the order of a mapping may differ between workers
        flat = [number for name in names for number in _numbers(name, given[name])]
        if len(flat) > MAX_VALUES:
            raise UsageError(
                f"all_reduce takes {MAX_VALUES} numbers at most, got {len(flat)}: it is for metrics and "
                "decisions; what is larger belongs into worker.table()"
            )
        form = f"all_reduce(op={op!r}) of " + ", ".join(_form(name, given[name]) for name in names)
        reply = self._make(form, limit_s, op=op, values=flat)
        numbers = iter(flat if reply is None else reply.values)
        made = {name: _like(given[name], numbers) for name in names}
        return {name: made[name] for name in given} if isinstance(values, Mapping) else made[""]

    def broadcast(self, value: object, *, source: int, own: bool, limit_s: float) -> Any:
        """See `Worker.broadcast`; `own`: this worker is the source."""
        blob = b""
        if own or self._alone():
            try:
                blob = json.dumps(value).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(
                    f"broadcast takes what JSON has (numbers, texts, lists, mappings, None): {error}"
                ) from None
            if len(blob) > MAX_BLOB_BYTES:
                raise UsageError(f"broadcast takes {MAX_BLOB_BYTES} bytes of JSON at most, got {len(blob)}")
        reply = self._make(f"broadcast(src={source})", limit_s, op="broadcast", source=source, blob=blob)
        if reply is None and not blob:
            return value
        try:
            return parse_json(blob if reply is None else reply.blob)
        except ValueError as error:
            raise FrameMalformed(f"worker {source} has broadcast no JSON: {error}") from None

    def barrier(self, limit_s: float) -> None:
        """See `Worker.barrier`."""
        self._make("barrier()", limit_s, op="barrier")

    def _make(self, form: str, limit_s: float, **given: Any) -> pb.CollectReply | None:
        """Makes a call; None: the own value stands."""
        if not limit_s > 0 or math.isinf(limit_s):
            raise UsageError(f"limit_s must be a number > 0, got {limit_s!r}")
        if len(form) > MAX_FORM:
            raise UsageError(f"all_reduce: names and shapes have {MAX_FORM} characters at most, in all")
        there = self._sent_to is not None and self._next >= self._sent_to
        if self._alone() or (there and self._returns()):
            return None
        if there:  # in this epoch there is no batch for it any more
            self.arrive()
        if not self._known and self._arrived:
            reply = self._collect(pb.CollectRequest(), limit_s)
            if reply is None:
                return None
            self._next, self._known = reply.number, True
        number = self._next
        request = pb.CollectRequest(number=number, form=form, begun=self._step() > 0, **given)
        try:
            reply = self._collect(request, limit_s)
        except PsError:
            self._go_on(number)
            raise
        if reply is not None:
            self._go_on(number)
        return reply

    def _go_on(self, number: int) -> None:
        """A call has come to its end."""
        self._next = number + 1
        if self._sent_to == number:  # while it waited: it was in that call already
            self._sent_to = None
        if self._known:
            self._report()


def _numbers(name: str, value: Value) -> list[float]:
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            raise UsageError(f"all_reduce({name!r}): complex numbers have no order; take real and imaginary")
        if value.numel() > MAX_VALUES:
            return [0.0] * value.numel()  # is refused, with all of them counted
        numbers: list[float] = value.detach().to("cpu", torch.float64).flatten().tolist()
        return numbers
    return [number_of(name, value, "all_reduce")]


def _form(name: str, value: Value) -> str:
    shape = f"{list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"{name!r}{shape}" if name else f"a value{shape}"


def _like(value: Value, numbers: Any) -> Any:
    """The next numbers, as what was given is; of tensors that are no floating-point ones, as float64."""
    if not isinstance(value, torch.Tensor):
        return next(numbers)
    flat = [next(numbers) for _ in range(value.numel())]
    dtype = value.dtype if value.is_floating_point() else torch.float64
    return torch.tensor(flat, dtype=torch.float64).reshape(value.shape).to(value.device, dtype)
