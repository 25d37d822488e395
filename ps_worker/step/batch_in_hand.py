"""The batch that a script computes on, as one of its optimizers or tables takes it: whether it counts."""

from __future__ import annotations

from collections.abc import Callable


class BatchInHand:
    """The batch that a script trains on: whether its step sends anything, and how many are taken again.

    Attributes:
        behind: steps that the script takes again, and that the job has: nothing of them leaves.
    """

    def __init__(self, is_rewound: Callable[[], bool] = lambda: False) -> None:
        """A batch that counts; `is_rewound`: no step does, whatever the batch."""
        self.behind = 0
        self._is_rewound = is_rewound
        self._void = False
        self._replays = False

    @property
    def void(self) -> bool:
        """Nothing of this batch leaves."""
        return self._void or self._is_rewound()

    def fall_behind(self, steps: int) -> None:
        """The script goes on so many steps before the job."""
        self.behind = steps

    def sit_out(self, *, again: bool) -> None:
        """A step was taken for the others; `again`: the script takes it again later."""
        self.behind += again

    def replay(self) -> None:
        """A batch has come that was used already: a step of it that is behind sends nothing."""
        self._void = self._replays = self.behind > 0

    def renew(self) -> None:
        """A batch has come that counts."""
        self._void = self._replays = False

    def end(self) -> None:
        """The script has stepped on this batch; what it has of undone steps is dropped with the next one."""
        self.behind -= self._replays
        self._void, self._replays = self._is_rewound(), False

    def reenter(self, *, void: bool) -> None:
        """The worker has joined again, at the job's step; `void`: the batch came before that."""
        self.behind, self._replays = 0, False
        self._void = void
