"""A worker that is slow on purpose, as a straggler profile says, where it begins with a batch.

It sleeps, so that it takes no core from others. A factor is of its own compute, as it was measured in the
step before: the first step of a process is never slow by a factor. A pause is a SIGSTOP, a crash a SIGKILL;
one that came to a job under way has neither in the first step that it takes: it may have come back from it.
Slow links are not its affair, but the network's. The thread that trains uses it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from ps_wire.spec.stragglers import StragglerProfile

# Who is stopped cannot go on by itself. The child looks whether it is still its parent that it signals.
_STOPS = (
    "import os,signal,sys,time\n"
    "parent,seconds=int(sys.argv[1]),float(sys.argv[2])\n"
    "if os.getppid()==parent:\n"
    "    os.kill(parent,signal.SIGSTOP)\n"
    "    try:\n"
    "        time.sleep(seconds)\n"
    "    finally:\n"
    "        if os.getppid()==parent: os.kill(parent,signal.SIGCONT)\n"
)


def pause(seconds: float) -> None:
    """Stands still, with all threads, as by SIGSTOP; returns when SIGCONT has come."""
    command = [sys.executable, "-S", "-E", "-c", _STOPS, str(os.getpid()), str(seconds)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # noqa: S603 - of ours


def crash() -> None:
    """Ends this process as by SIGKILL: nothing is said to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)


class Straggling:
    """When this worker is slow, and how long."""

    def __init__(
        self,
        profile: StragglerProfile,
        *,
        flush: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        pause: Callable[[float], None] = pause,
        crash: Callable[[], None] = crash,
    ) -> None:
        """Was not slow yet.

        Args:
            profile: of the run.
            flush: called before a crash, which leaves no time for it.
            clock: seconds.
            sleep: for seconds.
            pause: stands still for seconds.
            crash: does not return.
        """
        self._profile = profile
        self._flush = flush
        self._clock = clock
        self._sleep = sleep
        self._pause = pause
        self._crash = crash
        self._step = -1  # the last one that it was looked at for
        self._computes = -1  # the one that the script computes for
        self._came_at = -1  # the step at which this process came to a job under way
        self._began_s: float | None = None
        self._waited_s = 0.0
        self._compute_s = 0.0

    def came(self, step: int) -> None:
        """This process has come to a job under way, whose step it takes next."""
        self._came_at = step

    def batch(self, worker: int, step: int, waited_s: float) -> None:
        """A batch of this step is about to be computed on; of one step the first counts.

        Args:
            worker: this one.
            step: its next one.
            waited_s: for weights, in all so far.
        """
        if step == self._step:
            return
        self._step = step
        slow = self._profile.at(worker, step)
        if step != self._came_at:
            if slow.restart_s is not None:
                self._flush()
                self._crash()
            if slow.pause_s:
                self._pause(slow.pause_s)
        if slow.factor > 1.0 and self._compute_s:
            self._sleep((slow.factor - 1.0) * self._compute_s)
        self.resumed(step, waited_s)

    def resumed(self, step: int, waited_s: float) -> None:
        """The script computes for this step from now on; no batch tells where it has tables alone."""
        self._computes = step
        self._began_s, self._waited_s = self._clock(), waited_s

    def called(self, step: int, waited_s: float) -> None:
        """The script has computed, and calls this step; the last call of a step counts."""
        if step == self._computes and self._began_s is not None:
            self._compute_s = max(self._clock() - self._began_s - (waited_s - self._waited_s), 0.0)
