"""The epochs of one loader as the coordinator deals them to this worker, and how far it has come in them.

The coordinator has to know which samples are used whenever the worker goes, also by a crash. So each step's
samples are foretold by the pace of the one before; where that is wrong, the worker says so before the step's
pushes leave. A loop that takes as many samples in each step says nothing. What has been handed out when a
piece ends, and is not in a step yet, is taken to be in the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ps_wire.errors import PsError
from ps_wire.frames.messages import mark_to_proto, piece_from_proto
from ps_wire.spec.epochs import EpochPiece, PieceMark
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.position import Position


class PieceSource(Protocol):
    """A source of pieces of an epoch."""

    @property
    def incarnation(self) -> int:
        """Of this worker."""

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        """Asks for a piece; whose it is, is filled in."""

    def use(self, request: pb.UseRequest) -> None:
        """Says how far this worker has come."""


class ScriptSteps(Protocol):
    """The worker's steps, as its data sees them."""

    @property
    def step(self) -> int:
        """Steps that the worker has taken."""

    def steps_behind(self) -> int:
        """Steps that the script takes again: batches are handed out that were used already."""

    def is_rewound(self) -> bool:
        """Whether the job went back, and the script has yet to go there: passes until then are void."""


class EpochDealer:
    """The epochs of one loader, as the coordinator deals them, and the steps that its batches go into.

    A `Dealer`.

    Attributes:
        trains: steps were made of its batches.
        begins: an iteration asks for its first piece.
        newest: see `Dealer`.
    """

    def __init__(
        self,
        loader: int,
        source: PieceSource,
        steps: ScriptSteps,
        *,
        samples: int,
        whole: EpochPiece,
        data: Mapping[str, str],
        sums: Sequence[float] = (),
    ) -> None:
        """Deals nothing yet.

        Args:
            loader: its number.
            source: where pieces come from.
            steps: of the worker.
            samples: of its epochs; 0: not known.
            whole: a share as this worker has it, of any epoch, to replay where none is known.
            data: what all workers have to say alike of it.
            sums: of a few rows of it, which are about the same on all workers.
        """
        self._taken: Position | None = None  # where this loader was, in a position that is taken up
        self.trains = self.begins = self.newest = False
        self._loader = loader
        self._source = source
        self._samples = samples
        self._replayed = whole
        self._data = dict(data)
        self._sums = sums
        self._steps = steps
        self._incarnation = 0  # that has the piece; 0: there is none
        self._requests = 0
        self._step = 0
        self._out = 0  # samples of the piece that were handed out
        self._told = PieceMark()  # what the coordinator foretells by
        self._used = PieceMark()  # with the last step

    @property
    def void(self) -> bool:
        """See `Dealer`."""
        return self._incarnation != self._source.incarnation

    @property
    def under_way(self) -> bool:
        """Whether the script is inside a piece."""
        return self._incarnation != 0

    @property
    def pending(self) -> bool:
        """Whether batches have been handed out that are in no step yet."""
        return not self.void and self._out > self._used.samples

    @property
    def behind(self) -> int:
        """See `Dealer`."""
        return self._steps.steps_behind()

    def take_up(self, position: Position) -> None:
        """The script goes on where another process was, and this loader there."""
        self._taken = position

    def replay(self, epoch: int) -> EpochPiece | None:
        """See `Dealer`."""
        taken, self._taken = self._taken, None
        if not self._steps.steps_behind():
            return None
        self._replayed = replace(self._replayed, epoch=epoch, first=0, own=False)
        if taken is None or taken.epoch != epoch:
            return self._replayed
        if taken.share is None:
            return replace(self._replayed, first=taken.offset)
        if taken.share.ranks == self._replayed.ranks:  # else its batches are not this worker's
            self._replayed = replace(taken.share, own=False)
            return replace(self._replayed, first=taken.offset)
        return self._replayed

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        """See `Dealer`."""
        kept = not self.void
        if not kept:  # it has come into the job, or into another history of it
            self._step = self._steps.step
        if self._steps.is_rewound():
            return self._deal_void(epoch, begins=begins)
        self._requests += 1
        mark = PieceMark(step=self._step, samples=kept * self._used.samples, pace=self._told.pace)
        rest = PieceMark(step=self._step + (self._out > self._used.samples), samples=kept * self._out)
        request = pb.ShareRequest(
            request=self._requests,
            loader=self._loader,
            epoch=epoch,
            begins=begins,
            samples=self._samples,
            data=self._data,
            sums=self._sums,
            mark=mark_to_proto(mark),
            rest=mark_to_proto(rest),
        )
        self.begins = begins
        try:
            reply = self._source.share(request)
        finally:
            self.begins = False
        self._out = 0
        self._incarnation = self._source.incarnation
        self._used = PieceMark(step=self._step)
        self._told = PieceMark(step=self._step, pace=request.mark.pace)  # 0 where it has joined again
        self.newest = reply.newest
        if not reply.HasField("piece"):
            self._incarnation = 0
            return None
        return piece_from_proto(reply.piece)

    def _deal_void(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        """A share of which the coordinator knows nothing: it would take this worker to be in that epoch."""
        self._out, self._used, self._told = 0, PieceMark(step=self._step), PieceMark(step=self._step)
        self._incarnation = self._source.incarnation if begins else 0
        return replace(self._replayed, epoch=epoch, first=0, own=False) if begins else None

    def skip(self, first: int) -> None:
        """See `Dealer`."""
        with suppress(PsError):  # then this worker is in the job no more, or another incarnation of it
            self._source.use(pb.UseRequest(loader=self._loader, skipped=first))

    def hand_out(self, samples: int) -> None:
        """The next batch goes to the script."""
        self._out += samples

    def take_step(self, step: int) -> None:
        """Counts what was handed out as of the first `step` steps; the last of them has not left yet."""
        self._step = step
        if self.void or (self._used.step >= step and self._used.samples == self._out):
            return
        self.trains = self.trains or self._out > self._used.samples
        now = PieceMark(step=step, samples=self._out, pace=self._out - self._used.samples)
        self._used = now
        if self._told.at(step) != now.samples:
            with suppress(PsError):  # then the push that follows says it
                self._source.use(pb.UseRequest(loader=self._loader, mark=mark_to_proto(now)))
            self._told = now
