"""A worker that is slow on purpose: how long it sleeps, by a clock of the test; a pause of a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ps_wire.spec import stragglers
from ps_worker.process.straggling import Straggling
from tests.anew import run_anew
from tests.until import LIMIT_S


class World:
    """A clock that only moves where something takes time, and what was done."""

    def __init__(self, text: str) -> None:
        self.now_s = 0.0
        self.done: list[tuple[str, float]] = []
        self.waited_s = 0.0
        self.straggling = Straggling(
            stragglers.parse(text),
            flush=lambda: self.done.append(("flush", 0.0)),
            clock=lambda: self.now_s,
            sleep=lambda seconds: self.take("sleep", seconds),
            pause=lambda seconds: self.take("pause", seconds),
            crash=lambda: self.done.append(("crash", 0.0)),
        )

    def take(self, what: str, seconds: float) -> None:
        self.now_s += seconds
        self.done.append((what, seconds))

    def step(self, number: int, compute_s: float, wait_s: float = 0.0, worker: int = 0) -> None:
        self.straggling.batch(worker, number, self.waited_s)
        self.straggling.batch(worker, number, self.waited_s)
        self.now_s += compute_s + wait_s
        self.waited_s += wait_s
        self.straggling.called(number, self.waited_s)
        self.now_s += 100.0  # in step(), and behind it
        self.straggling.called(number + 1, self.waited_s)


def test_a_factor_is_of_the_compute_of_the_step_before_without_its_waits_and_its_sleep():
    world = World("constant:f=4")
    world.step(0, 0.5)
    world.step(1, 0.25, wait_s=3.0)
    world.step(2, 0.5)
    world.step(3, 0.5)
    assert world.done == [("sleep", 1.5), ("sleep", 0.75), ("sleep", 1.5)]


def test_a_step_without_a_batch_is_slow_by_what_was_computed_for_it():
    """As with tables: nothing tells of a batch before the step is called."""
    world = World("constant:f=4")
    for step, compute_s in enumerate((9.0, 0.5, 0.25)):
        world.now_s += compute_s
        world.straggling.called(step, world.waited_s)
        world.straggling.batch(0, step, world.waited_s)
        world.now_s += 100.0  # in the push
        world.straggling.resumed(step + 1, world.waited_s)
        world.now_s, world.waited_s = world.now_s + 7.0, world.waited_s + 7.0  # for weights
    assert world.done == [("sleep", 1.5), ("sleep", 0.75)]


def test_who_is_not_named_is_as_ever_and_a_transient_straggler_is_slow_where_the_profile_says():
    world = World("constant:f=4,worker=3")
    world.step(0, 1.0)
    world.step(1, 1.0)
    assert world.done == []
    profile = stragglers.parse("transient:p=0.5,f=3;seed=4")
    world = World("transient:p=0.5,f=3;seed=4")
    for step in range(20):
        world.step(step, 1.0, worker=1)
    slow = [step for step in range(1, 20) if profile.at(1, step).factor > 1]
    assert world.done == [("sleep", 2.0)] * len(slow)
    assert 3 < len(slow) < 17


def test_a_pause_and_a_crash_come_once_before_their_step():
    world = World("pause:step=1,s=2.5;crash:step=3")
    for step in range(3):
        world.step(step, 1.0)
    assert world.done == [("pause", 2.5)]
    world.step(3, 1.0)
    assert world.done[1:] == [("flush", 0.0), ("crash", 0.0)]


def test_who_came_back_from_a_crash_does_not_crash_again_where_it_goes_on():
    world = World("crash:step=3,restart=1")
    world.straggling.came(3)
    world.step(3, 1.0)
    assert world.done == []


SCRIPT = """
import os, sys, time
from ps_worker.process.straggling import Straggling
from ps_wire.spec import stragglers
slow = Straggling(stragglers.parse(sys.argv[1]), flush=lambda: print("flushed", flush=True))
slow.batch(0, 1, 0.0)
print("went on", flush=True)
"""


def run(text: str) -> subprocess.CompletedProcess[str]:
    return run_anew("-c", SCRIPT, text)


def test_a_process_that_is_paused_stands_still_and_goes_on():
    """Its parent sees it stop, or continue where it looks late, and it ends as it would have."""
    code = SCRIPT + "sys.stdin.readline()\n"  # of a process that has ended nothing else is told
    command = [sys.executable, "-c", code, "pause:step=1,s=1"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _, status = os.waitpid(child.pid, os.WUNTRACED | os.WCONTINUED)
    stopped = os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP
    assert stopped or os.WIFCONTINUED(status)
    out, _ = child.communicate(b"\n", timeout=LIMIT_S)
    assert (out, child.returncode) == (b"went on\n", 0)


def test_a_process_that_crashes_is_killed_and_what_it_had_recorded_is_there():
    done = run("crash:step=1")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "flushed\n")


@pytest.mark.parametrize("text", ["pause:step=2,s=1", "crash:step=0", "slow_link:f=3"])
def test_another_step_and_a_slow_link_are_not_its_affair(text):
    world = World(text)
    world.straggling.batch(0, 1, 0.0)
    assert world.done == []
