"""The frames that a cell sends: acknowledgements, weights where they lie, refusals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ps_wire.errors import PsError
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.frames.messages import refused_to_proto
from ps_wire.frames.meta import clocks as clocks_of
from ps_wire.process import trace
from ps_wire.spec.codec import AS_THEY_ARE


@dataclass(frozen=True, slots=True)
class Replies:
    """About one partition of one table."""

    table: int
    partition: int

    def ack(self, worker: int, step: int, *, lent: bool) -> Message:
        """The push of this step is accounted for; if it is lent, its memory is still read until `free`."""
        return self._frame(wire.Kind.ACK, worker=worker, step=step, flags=wire.LENT if lent else 0)

    def free(self, worker: int, step: int) -> Message:
        """The memory of this step's push is the worker's again."""
        return self._frame(wire.Kind.FREE, worker=worker, step=step)

    @trace.traced("reply")
    def pulled(
        self,
        step: int,
        version: int,
        clocks: Iterable[tuple[int, int]],
        payload: memoryview,
        *,
        copied: bool = False,
        codec: int = AS_THEY_ARE,
    ) -> Message:
        """The weights in `payload`, of that codec, not copied; `clocks` are (worker, clock) of the members.

        With `copied` they are other memory than members map.
        """
        return self._frame(
            wire.Kind.PULLED,
            codec=codec,
            step=step,
            version=version,
            flags=wire.READ if copied else 0,
            meta=clocks_of(clocks),
            payload=payload,
        )

    def refusal(self, worker: int, step: int, error: PsError) -> Message:
        """Why what the worker did at this step is not taken."""
        meta = refused_to_proto(error).SerializeToString()
        return self._frame(wire.Kind.REFUSE, step=step, worker=worker, meta=meta)

    def _frame(self, kind: wire.Kind, **fields: int | bytes | memoryview) -> Message:
        return Message(wire.Frame(kind=kind, table=self.table, partition=self.partition, **fields))  # type: ignore[arg-type]
