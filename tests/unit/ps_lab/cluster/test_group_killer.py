"""The process that ends what a command leaves behind: which groups it kills when its pipe closes."""

from __future__ import annotations

import subprocess
import sys

from ps_lab.cluster import group_killer
from tests.until import LIMIT_S


def sleeper() -> subprocess.Popen[bytes]:
    """A process in a group of its own, which says that it is there and ends with its stdin."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_groups_that_are_left_are_killed_and_others_are_not():
    """One that was released has ended: its number may be anybody's by now."""
    left, released = sleeper(), sleeper()
    try:
        text = f"+{left.pid}\n+{released.pid}\n-{released.pid}\n"
        command = [sys.executable, "-I", "-S", "-c", group_killer.RUN]
        subprocess.run(command, input=text.encode(), timeout=LIMIT_S, check=True)
        assert left.wait(LIMIT_S) == -9
        assert released.poll() is None
    finally:
        for process in (left, released):
            process.communicate()
    assert released.returncode == 0


def test_a_group_that_has_gone_keeps_none_from_being_killed():
    """Its number leads nowhere; the next one is still ended."""
    gone, left = sleeper(), sleeper()
    gone.communicate()
    try:
        text = f"+{gone.pid}\n+{left.pid}\n"
        command = [sys.executable, "-I", "-S", "-c", group_killer.RUN]
        subprocess.run(command, input=text.encode(), timeout=LIMIT_S, check=True)
        assert left.wait(LIMIT_S) == -9
    finally:
        left.communicate()
