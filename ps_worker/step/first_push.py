"""The first push of a step, of an optimizer over its tables or of one table: who hears of it before.

In this order: who steps has the weights of this step (`settle`), the worker hears of its step (`weigh`), and,
table by table, of one that begins there (`begin`). Each is told once a step. It must not know gradients or
frames. The thread that is inside the worker's calls uses it.
"""

from __future__ import annotations

from collections.abc import Callable

from ps_worker.step.step_host import StepHost


def _one() -> float:
    return 1.0


def _nothing() -> None:
    """No weights are under way: there is nothing to wait for."""


class FirstPush:
    """The first push of a step, as who steps tells of it.

    Attributes:
        settle: waits until the weights of this step are here; called before gradients of it are copied.
    """

    def __init__(
        self,
        host: StepHost,
        *,
        step: Callable[[], int],
        weight: Callable[[], float] = _one,
        settle: Callable[[], None] = _nothing,
    ) -> None:
        """No step has begun.

        Args:
            host: the worker.
            step: that is under way or comes next.
            weight: of a step's pushes in a BSP mean; called once a step.
            settle: see above.
        """
        self.settle = settle
        self._host = host
        self._step = step
        self._weight = weight
        self._step_weight: float | None = None
        self._begun: dict[int, int] = {}  # by table, the step that began last

    def weigh(self) -> float:
        """Gives the weight of this step's pushes; the first time the worker hears that the step leaves."""
        if self._step_weight is None:
            self._host.before_step(self._step() + 1)
            self._step_weight = self._weight()
        return self._step_weight

    def begin(self, table: int, step: int) -> None:
        """A push or an abstention of a table is about to leave; the first time the worker hears of it."""
        if self._begun.get(table) != step:
            self._begun[table] = step
            self._host.begin_push(table)

    def end(self) -> None:
        """The next push is of another step."""
        self._step_weight = None

    def reenter(self) -> None:
        """The worker has joined again: the step that it comes back to begins once more."""
        self._begun.clear()
