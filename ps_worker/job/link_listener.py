"""The worker as its link to the job sees it: what the link asks of it, and what it tells it.

`Steps` is one; tests have a fake. Neither knows more of the other than stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from ps_wire.errors import RolledBack
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.position import Positions


class LinkListener(Protocol):
    """The worker. Called by the thread that is inside its calls, where nothing else is said."""

    def say(self, text: str) -> None:
        """Called on any thread to tell the person at the terminal something."""

    def progress(self) -> pb.Progress:
        """Called by heartbeats, and where the worker leaves or finishes: its figures so far."""

    def clocks(self) -> Mapping[int, int]:
        """Called on any thread: table -> the step that is under way or comes next."""

    def taken(self) -> Mapping[int, int]:
        """Called where the worker leaves: table -> steps whose pushes have left."""

    def has_data(self) -> bool:
        """Whether the script has a loader, or a loop over epochs."""

    def arrived(self) -> bool:
        """Whether the script is where it was sent."""

    def is_undone(self) -> bool:
        """Whether the script does what is undone: it was sent elsewhere, and has not gone there yet."""

    def went_back(self) -> bool:
        """Whether the job went back, and the script, which has not been told, has yet to go there."""

    def sent_back(self, why: str) -> RolledBack:
        """Tells the script that it does not go back by itself, and why; makes the error."""

    def dropping(self) -> bool:
        """Whether the script is still busy with a batch that it had before it was sent elsewhere."""

    def positions(self) -> Positions:
        """Called where a step begins: where the script is in its data, and in its steps."""

    def take_up(self, at: Positions, clocks: Mapping[int, int]) -> bool:
        """Called where the script is to go on where another process was; returns whether it does.

        Args:
            at: the position of that process.
            clocks: table -> steps of it that count, where it is gone.
        """

    def restored(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Called where the worker goes on from a snapshot, in which it had saved this."""

    def reentered(self, steps: Mapping[int, int]) -> None:
        """Called when the worker has joined again, with its first step by table."""

    def announce(self) -> bool:
        """Called to tell the script that steps of it are undone, if they are; returns whether it did.

        Raises:
            RolledBack: the script cannot go back by itself.
        """

    def sit_out(self, steps: Mapping[int, int]) -> bool:
        """Called to take steps with nothing to push, up to these by table; returns whether it could."""
