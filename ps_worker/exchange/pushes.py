"""Pushes of one table that are not over: sent and not acknowledged, or acknowledged and still read.

At most one of each kind per partition. Frames stay as they were sent, so that a new connection can send them
again. Not thread-safe: `InFlight` guards it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from ps_wire.frames import frame as wire
from ps_wire.frames.lists import partitions


class Pushes:
    """Frames of pushes that are not over, by partition.

    Attributes:
        unacked: by partition, what the shard has not acknowledged.
        lent: by partition, what it has acknowledged and still reads where it lies.
        steps: by partition, the step of the last push or abstention, or -1.
    """

    def __init__(self) -> None:
        self.unacked: dict[int, wire.Frame] = {}
        self.lent: dict[int, wire.Frame] = {}
        self.steps: dict[int, int] = {}

    def note(self, frame: wire.Frame) -> None:
        """This one is about to be sent."""
        assert frame.partition not in self.unacked, f"partition {frame.partition} is under way"
        index, step = frame.partition, -1 if frame.kind is wire.Kind.LOAD else frame.step
        self.unacked[index], self.steps[index] = frame, step  # together: no Ctrl-C comes between

    def answered(self, answer: wire.Frame) -> bool:
        """An ACK or FREE has come; False: it answers none of these."""
        found = [self._answered(answer, partition) for partition in partitions(answer)]
        return True in found

    def _answered(self, answer: wire.Frame, partition: int) -> bool:
        kinds = (self.unacked, self.lent) if answer.kind is wire.Kind.ACK else (self.lent,)
        for kept in kinds:  # a lent one may have been sent again
            sent = kept.get(partition)
            if sent is not None and _is_of(answer, sent):
                del kept[partition]
                if answer.flags & wire.LENT:
                    self.lent[partition] = sent
                return True
        return False

    def closed(self, partition: int) -> None:
        """Weights have come that hold this worker's push: no ACK or FREE of it has to be waited for."""
        self.unacked.pop(partition, None)
        self.lent.pop(partition, None)

    def acked(self, wanted: AbstractSet[int] | None = None) -> bool:
        """Whether all of these partitions, None: all, are acknowledged."""
        return not _among(self.unacked, wanted)

    def free(self, wanted: AbstractSet[int] | None = None) -> bool:
        """Whether the gradient memory of all of these partitions, None: all, may be written."""
        return not (_among(self.unacked, wanted) or _among(self.lent, wanted))

    def again(self) -> Iterator[wire.Frame]:
        """The frames that a new connection sends again."""
        yield from self.unacked.values()
        yield from self.lent.values()


def _is_of(answer: wire.Frame, sent: wire.Frame) -> bool:
    """A LOAD that a break had sent twice is acknowledged twice, and the first push has its step."""
    return sent.step == answer.step and (sent.kind is wire.Kind.LOAD or not answer.flags & wire.LOADED)


def _among(kept: Mapping[int, object], wanted: AbstractSet[int] | None) -> bool:
    return bool(kept) if wanted is None else not wanted.isdisjoint(kept)
