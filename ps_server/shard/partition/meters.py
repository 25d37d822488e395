"""The meters of one partition: what its cell counts and times beside the state machine, for people.

Each costs the same at every step, however many workers there are. They are under the cell's lock, begin at
zero in each process, and are no part of a snapshot. They must not know tensors.
"""

from __future__ import annotations

from ps_wire.metrics.histogram import SECONDS, STEPS, Histogram


class Meters:
    """Counts and histograms of one cell.

    Attributes:
        bytes_in: of gradients and weights that came.
        bytes_out: of weights that were sent, to each who got them.
        pulls: that were answered with weights.
        gaps: clock gap that each push made, in steps.
        gate_waits: seconds that each pull waited at the gate.
        applies: seconds that each optimizer step took.
    """

    __slots__ = ("applies", "bytes_in", "bytes_out", "gaps", "gate_waits", "pulls")

    def __init__(self) -> None:
        """All zero."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.pulls = 0
        self.gaps = Histogram(STEPS)
        self.gate_waits = Histogram(SECONDS)
        self.applies = Histogram(SECONDS)

    def received(self, nbytes: int) -> None:
        """Gradients or weights of so many bytes have come."""
        self.bytes_in += nbytes

    def sent(self, nbytes: int) -> None:
        """Weights of so many bytes leave for who does not push."""
        self.bytes_out += nbytes

    def answered(self, nbytes: int, waited_s: float) -> None:
        """A pull got weights of so many bytes."""
        self.pulls += 1
        self.bytes_out += nbytes
        self.gate_waits.count(waited_s)

    def add(self, other: Meters) -> None:
        """Counts in what those of another cell say."""
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.pulls += other.pulls
        self.gaps.add(other.gaps)
        self.gate_waits.add(other.gate_waits)
        self.applies.add(other.applies)
