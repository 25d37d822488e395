"""The workers of one job on a cluster: who runs, who has ended, and who starts again, and when.

It decides nothing: whoever watches the cluster's events says who starts again. One thread uses it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_lab.cluster.child import Child
    from ps_lab.cluster.cluster import Cluster, Job


class OnFailure(StrEnum):
    """The fate of a run when one of its workers crashes."""

    STOP = "stop"
    CONTINUE = "continue"
    RESTART = "restart"


class Team:
    """The workers of one job.

    Attributes:
        running: processes, with the worker's number.
        ended: processes, in the order in which they did.
        starts_again: how often each worker did, or will.
    """

    def __init__(self, cluster: Cluster, job: Job, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts all workers of the job."""
        self._cluster = cluster
        self._job = job
        self._clock = clock
        self._due: list[tuple[float, int]] = []  # when, and the worker's number
        self.running: dict[Child, int] = {child: number for number, child in enumerate(cluster.start(job))}
        self.ended: list[Child] = []
        self.starts_again: Counter[int] = Counter()

    @property
    def over(self) -> bool:
        """Nobody runs, and nobody will."""
        return not self.running and not self._due

    def left(self, child: Child) -> int | None:
        """Takes out a process that has ended, and gives its worker's number; None: it is none of the team."""
        number = self.running.pop(child, None)
        if number is not None:
            self.ended.append(child)
        return number

    def again(self, number: int, after_s: float = 0.0) -> None:
        """The worker starts again when so much time has passed; `look` starts it."""
        self.starts_again[number] += 1
        self._due.append((self._clock() + after_s, number))

    def look(self) -> None:
        """Starts those whose time has come."""
        now_s = self._clock()
        for due in [due for due in self._due if due[0] <= now_s]:
            self._due.remove(due)
            self.running[self._cluster.start_again(self._job, due[1])] = due[1]

    def terminate(self) -> None:
        """Asks all to end; nobody starts again."""
        self._due.clear()
        for child in self.running:
            child.terminate()

    def kill(self) -> None:
        """Ends all at once."""
        for child in self.running:
            child.kill()
