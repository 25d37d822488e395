"""Resumption of a script in a job that is under way: with the state of another process, or of a snapshot.

State that is taken up is set at once, and once more where the script stands where it was sent: what it did
meanwhile is undone. Used by the thread that trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from ps_worker.data.position import Positions
from ps_worker.job.group_capture import of_rank
from ps_worker.job.job_presence import JobPresence
from ps_worker.job.link_listener import LinkListener
from ps_worker.job.side_state import SideState, has_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The position of the job, for a worker that has joined again.

    Attributes:
        state: of another process; or of this worker, of a snapshot.
        clocks: see `CoordinatorCalls.position`.
        saved: it is of a snapshot.
    """

    state: Mapping[str, torch.Tensor]
    clocks: Mapping[int, int]
    saved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """State that is set once more when the script stands where it was: what it did meanwhile is undone.

    Attributes:
        state: tensors by name.
        own: this worker had it.
        epoch: of the script's loop that it is of; None: that which begins first.
        inside: it is of the beginning of a batch; else of that of an epoch, or of the end of a loop.
    """

    state: Mapping[str, torch.Tensor] = field(kw_only=False)
    own: bool
    epoch: int | None
    inside: bool


class Resumption:
    """State that a script goes on with, and whether it stands there yet.

    Attributes:
        state: of the process where it goes on; None: nobody was asked.
        whole: the same, with what it has of other ranks.
    """

    def __init__(
        self, presence: JobPresence, side: SideState, listener: LinkListener, *, rank: int = 0
    ) -> None:
        """Has asked nobody.

        Args:
            presence: whose live incarnation asks.
            side: what is set.
            listener: the worker.
            rank: of a group, whose part of a state this process goes on with.
        """
        self.whole: Mapping[str, torch.Tensor] = {}
        self._rank = rank
        self.state: Mapping[str, torch.Tensor] | None = None
        self._presence = presence
        self._side = side
        self._listener = listener
        self._again: _Again | None = None
        self._paused = False

    # -- where the job is ------------------------------------------------------------------------------

    def first(self, *, live: bool = False) -> Mapping[str, torch.Tensor]:
        """The state with which the script goes on in the job that it has come to; asked for once.

        Args:
            live: waits for a worker that trains to begin a step; one that has entered tables must not.
        """
        if self.state is None:
            if self._presence.joined.rolled_back and (saved := self._saved()):
                self.state = saved
                self.restore(saved)
            else:
                self.state, clocks = self._position(live=live)
                self._take_up(self.state, clocks)
        return self.state

    def _saved(self) -> Mapping[str, torch.Tensor]:
        self.whole = self._presence.calls.saved()
        return of_rank(self.whole, self._rank)

    def _position(self, *, live: bool) -> tuple[Mapping[str, torch.Tensor], Mapping[int, int]]:
        self.whole, clocks = self._presence.calls.position(live=live)
        return of_rank(self.whole, self._rank), clocks

    def find(self) -> Found:
        """Where the job is, for a worker that has joined again and has entered no table yet.

        One that joined after the snapshot asks, and one that has asked before: the job may have gone on.
        """
        joined = self._presence.joined
        found = Found(state={}, clocks={}, saved=False)
        if joined.rolled_back and (saved := self._saved()):
            found = Found(state=saved, clocks={}, saved=True)
        elif (self._side or self._listener.has_data() or self.state) and not joined.ended:
            state, clocks = self._position(live=not joined.rolled_back)
            found = Found(state=state, clocks=clocks, saved=False)
        self.state = found.state
        return found

    def go_on(self, found: Found) -> None:
        """The tables are entered: the script goes on there."""
        if found.saved:
            self._set(found.state, own=has_own(found.state))
            self._listener.restored(found.state)
        else:
            self._take_up(found.state, found.clocks)

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """The script goes on with what this worker had saved in a snapshot, once it is there."""
        own = has_own(saved)  # not where a group has more ranks than it had then
        self._set(saved, own=own)
        self._listener.restored(saved)
        at = Positions.unpack(saved)
        self._again = _Again(saved, own=own, epoch=None if at is None else at.epoch, inside=True)

    def _take_up(self, state: Mapping[str, torch.Tensor], clocks: Mapping[int, int]) -> None:
        """The script goes on where another process was; `clocks`: see `CoordinatorCalls.position`."""
        at = Positions.unpack(state)
        if at is not None and not self._listener.take_up(at, clocks):
            return
        own = at is not None and at.worker == self._presence.joined.worker and has_own(state)
        self._set(state, own=own)
        if state:
            epoch, inside = (None, True) if at is None else (at.epoch, at.inside)
            self._again = _Again(state, own=own, epoch=epoch, inside=inside)

    def _set(self, state: Mapping[str, torch.Tensor], *, own: bool) -> None:
        presence = self._presence
        self._side.load(state, own=own, kept=presence.calls.kept if presence.joined.ended else None)

    # -- once more, where the script stands -------------------------------------------------------------

    def begin_step(self) -> None:
        """The script begins a step: it may have gone on to the end of one that is undone, or is another's."""
        if self._paused:
            return
        if self._again is not None and self._listener.arrived():
            self._set(self._again.state, own=self._again.own)
            self._again = self._again if self._listener.dropping() else None
        self._side.random.apply()

    def stand_between(self) -> None:
        """The script is where it was sent, between batches: before those of an epoch, or behind a loop.

        State of the beginning of an epoch is of before torch's iterator over its batches draws from a
        generator, and state of a batch of behind that.
        """
        again = self._again
        if again is not None and not again.inside and self._listener.arrived():
            self._set(again.state, own=again.own)
            self._again = None
            self._side.random.apply()

    def end_iterator(self) -> None:
        """The script has no batch more in this epoch, and perhaps had none since it went on there.

        It goes on behind the last batch with what was there, and takes no step back in the next epoch.
        """
        self.begin_step()

    def begin_epoch(self, epoch: int) -> bool:
        """The script's loop is about to begin this epoch: where it was sent, it takes what was there.

        Returns:
            Whether it goes on inside that epoch.
        """
        again = self._again
        if again is None or not self._listener.arrived():
            return False
        if again.epoch is not None and again.epoch < epoch:  # no batch has come in that one
            self._again = None
            return False
        self._set(again.state, own=again.own)
        if again.inside:
            self._again = replace(again, epoch=epoch)
        else:
            self._again = None
            self._side.random.apply()
        return again.inside

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The script begins none of the steps that are taken meanwhile."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
