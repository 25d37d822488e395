"""Uploads of a worker's side state: to readers, to whoever joins, and notes for when it is gone.

Somebody's wish comes with heartbeats, and is met where a step begins or ends, by the thread that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import torch

from ps_wire.errors import PsError
from ps_worker.data.position import Positions
from ps_worker.job.group_capture import NOTE, GroupCapture
from ps_worker.job.job_presence import JobPresence
from ps_worker.job.link_listener import LinkListener
from ps_worker.job.side_state import SideState
from ps_worker.membership.noting import Noting
from ps_worker.model import model_table


class SideUploads:
    """The uploads of a worker's side state for others, at the steps at which they ask for it.

    Attributes:
        noting: when a note is due.
    """

    def __init__(
        self,
        presence: JobPresence,
        side: SideState,
        listener: LinkListener,
        capture: GroupCapture | None = None,
    ) -> None:
        """Has uploaded nothing.

        Args:
            presence: whose live incarnation uploads.
            side: what is uploaded.
            listener: the worker.
            capture: of a group, of which a note has what all ranks have; None: notes are this process's.
        """
        self._capture = capture
        self._presence = presence
        self._side = side
        self._listener = listener
        self._overdue = False  # a position, by one step
        self.noting = Noting(
            lambda: side.pack_note(listener.positions()),
            lambda: presence.membership.put_note,
            listener.say,
            want=None if capture is None else partial(capture.want, NOTE),
        )

    def at_step_begin(self, step: int) -> None:
        """To be called where a step begins: gives its position to one who joins, and notes it, where due."""
        if self._presence.membership.position_wanted:
            self._put_position(step)
        if (self._side or self._listener.has_data()) and self._notes:
            self.noting.at_step()

    def at_epoch(self) -> None:
        """To be called where the script's loop is about to begin an epoch, or has ended: notes it."""
        if self._capture is None:
            self.noting.at_epoch()
            return
        mine = self._side.pack_note(self._listener.positions())
        note = self._capture.gather("the note of an epoch", mine)
        if note is not None:
            self.noting.at_epoch(note)

    @property
    def _notes(self) -> bool:
        """Whether this process puts notes: of a group the leader does, of what all ranks have."""
        return self._capture is None or self._capture.leads

    def at_step_boundary(self, step: int) -> None:
        """To be called between steps: uploads what a reader has asked for.

        Args:
            step: that this worker has taken.
        """
        membership = self._presence.membership
        if membership.live_wanted:
            try:
                membership.put_live(self._side.pack_live(), step)
            except PsError as error:  # a reader's trouble: this worker trains on
                self._listener.say(f"a reader does not get this worker's buffers: {error}")
        if membership.position_wanted:
            if self._overdue:  # no step of this script begins where that is seen
                self._put_position(step)
            else:
                self._overdue = True

    def _put_position(self, step: int) -> None:
        self._overdue = False
        position = self._side.pack_position(self._listener.positions())
        try:
            self._presence.membership.put_position(position, step)
        except PsError as error:  # another's trouble: this worker trains on
            self._listener.say(f"one who joins does not get this worker's position: {error}")

    def note_taken(self, state: Mapping[str, torch.Tensor], at: Positions) -> None:
        """This worker stands where another process was: if it goes at once, that is what is taken up.

        Args:
            state: of that process.
            at: where it was, with this worker's steps.
        """
        with suppress(PsError):  # its own first note follows
            self._presence.membership.put_note(model_table.pack({**state, **at.pack()}))
