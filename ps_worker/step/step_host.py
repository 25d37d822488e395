"""The worker and what takes steps (a wrapped optimizer, a table without autograd), as each sees the other.

`Steps` is the worker's side; tests have a fake. Neither knows more of the other than stands here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ps_worker.process.one_thread import OneThread


class StepHost(Protocol):
    """The worker, asked before a step and told of it. Called by the thread that is inside its calls."""

    @property
    def inside(self) -> OneThread:
        """The guard that a call holds, and every `step()`, `push()` and `pull()` with it."""

    def closed(self) -> str | None:
        """Called first in a step: why no step can be taken any more, or None."""

    def announce(self) -> bool:
        """Called where a step begins, and after `rejoin`: says, once, that steps of the script are undone.

        Returns:
            Whether it said so: then the batch in hand is no part of a step.

        Raises:
            RolledBack: the script cannot go back by itself.
        """

    def is_rewound(self) -> bool:
        """Whether the job went back, and the script has yet to go there: no step of it counts until then."""

    def drop_step(self) -> None:
        """Called with a step that does not count. Raises RolledBack where such steps would not end."""

    def before_step(self, step: int) -> None:
        """Called before the first push of a step leaves, also from a hook: this will be the `step`-th."""

    def begin_push(self, table: int) -> None:
        """Called before the first push of a step on this table leaves: the script stands in that step."""

    def after_step(self, step: int) -> None:
        """Called when a step is over for the script, of which `step` are taken now."""

    def rejoin(self) -> None:
        """Called by who got `Evicted`: joins again, and calls `reenter` of all that takes steps."""

    def say(self, text: str) -> None:
        """Called to tell the person at the terminal something."""

    def say_wait(self, text: str, workers: str = "") -> None:
        """Called when a wait for weights is long, now and then: adds for whom, and says it."""


class TakesSteps(Protocol):
    """An object that takes steps, as the worker sees it.

    Called by the thread that is inside the worker's calls.

    The clocks are read by heartbeats, too.
    """

    @property
    def behind(self) -> int:
        """Steps that the script takes again, and that the job has: nothing of them leaves."""

    @property
    def clocks(self) -> dict[int, int]:
        """Table -> the step that is under way or comes next."""

    @property
    def taken(self) -> dict[int, int]:
        """Table -> steps whose pushes have left."""

    def fall_behind(self, steps: int) -> None:
        """Called when the script goes on so many steps before the job: it takes them again."""

    def is_between_steps(self) -> bool:
        """Called before `sit_out`: waits for weights; False where a part of a step has left."""

    def sit_out(self, *, again: bool) -> None:
        """Called to take a step with nothing to push, for the others; `again`: the script takes it later."""

    def reenter(self, steps: Mapping[int, int], *, stepped: Collection[int] = ()) -> None:
        """Called when the worker has joined again, and has the weights of its first step there.

        Args:
            steps: that step, by table.
            stepped: tables that the script has stepped on the batch that it has.
        """

    def renew(self) -> None:
        """Called when a batch comes that counts."""

    def replay(self) -> None:
        """Called when a batch comes that was used already."""
