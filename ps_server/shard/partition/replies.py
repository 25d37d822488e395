"""The frames that a cell sends: acknowledgements, weights where they lie, refusals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ps_server.shard.partition.inputs import Ack
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

    def ack(self, ack: Ack, *, lent: bool) -> Message:
        """The push of this step is accounted for; if it is lent, its memory is still read until `free`."""
        flags, found = wire.LENT if lent else 0, ack.outcome
        if found is None:
            return self._frame(wire.Kind.ACK, worker=ack.worker, step=ack.step, flags=flags)
        flags |= wire.TOLD | wire.DROPPED * found.dropped | wire.ABSTAINED * found.abstained
        return self._frame(
            wire.Kind.ACK,
            worker=ack.worker,
            step=ack.step,
            flags=flags if found.version is None else flags | wire.APPLIED,
            version=found.version or 0,
            hyper=min(found.gap, wire.MAX_HYPER),
        )

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
        waited_s: float | None = None,
    ) -> Message:
        """The weights in `payload`, of that codec, not copied; `clocks` are (worker, clock) of the members.

        With `copied` they are other memory than members map. `waited_s` at the gate is said to who asked it.
        """
        return self._frame(
            wire.Kind.PULLED,
            codec=codec,
            step=step,
            version=version,
            flags=wire.READ * copied | wire.TIMED * (waited_s is not None),
            hyper=min(round((waited_s or 0.0) * 1e6), wire.MAX_HYPER),
            meta=clocks_of(clocks),
            payload=payload,
        )

    def refusal(self, worker: int, step: int, error: PsError) -> Message:
        """Why what the worker did at this step is not taken."""
        meta = refused_to_proto(error).SerializeToString()
        return self._frame(wire.Kind.REFUSE, step=step, worker=worker, meta=meta)

    def _frame(self, kind: wire.Kind, **fields: int | bytes | memoryview) -> Message:
        return Message(wire.Frame(kind=kind, table=self.table, partition=self.partition, **fields))  # type: ignore[arg-type]
