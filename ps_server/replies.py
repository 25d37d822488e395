"""The frames that a cell sends: acknowledgements, weights where they lie, refusals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ps_wire import frame as wire
from ps_wire.carrier import Message
from ps_wire.errors import PsError
from ps_wire.messages import refused_to_proto

_CLOCK_BYTES = 12  # per member, in the meta of PULLED: worker u32, clock u64


@dataclass(frozen=True, slots=True)
class Replies:
    """About one partition of one table."""

    table: int
    partition: int

    def ack(self, worker: int, step: int) -> Message:
        """The push of this step is accounted for."""
        return self._frame(wire.Kind.ACK, worker=worker, step=step)

    def pulled(
        self, step: int, version: int, clocks: Iterable[tuple[int, int]], weights: torch.Tensor
    ) -> Message:
        """The weights, not copied; `clocks` are (worker, clock) of the members by then."""
        meta = b"".join(
            worker.to_bytes(4, "little") + clock.to_bytes(_CLOCK_BYTES - 4, "little")
            for worker, clock in clocks
        )
        payload = weights.numpy().data.cast("B")
        return self._frame(wire.Kind.PULLED, step=step, version=version, meta=meta, payload=payload)

    def refusal(self, worker: int, step: int, error: PsError) -> Message:
        """Why what the worker did at this step is not taken."""
        meta = refused_to_proto(error).SerializeToString()
        return self._frame(wire.Kind.REFUSE, step=step, worker=worker, meta=meta)

    def _frame(self, kind: wire.Kind, **fields: int | bytes | memoryview) -> Message:
        return Message(wire.Frame(kind=kind, table=self.table, partition=self.partition, **fields))  # type: ignore[arg-type]
