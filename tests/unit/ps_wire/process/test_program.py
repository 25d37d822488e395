"""Ctrl-C in the first moments of a command, while it is imported."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

LIMIT_S = 100.0
COMMANDS = ("ps-server", "ps-worker", "ps-lab")

# A command whose import waits for a line; its main function says so, once what was imported is frozen.
SLOW = """
import gc
import sys
from ps_wire.process import program

class Entry:
    def load(self):
        print("importing", flush=True)
        sys.stdin.readline()
        return main

def main():
    assert gc.get_freeze_count() > 0
    print("runs", flush=True)
    if sys.stdin.readline() == "interrupted\\n":
        raise KeyboardInterrupt

program.entry_points = lambda group, name: (Entry(),)
program.run("ps-worker")
"""


def begun(*, ignores: bool = False) -> subprocess.Popen[str]:
    """The command, while it is imported."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        restore_signals=not ignores,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignores else None,  # noqa: PLW1509
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    return process


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word():
    process = begun()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_S)[0] == ""
    assert process.returncode == -signal.SIGINT


def test_ctrl_c_in_a_command_is_its_own_matter_and_else_ends_it_with_130():
    process = begun()
    assert process.communicate("\ninterrupted\n", timeout=LIMIT_S)[0] == "runs\n"
    assert process.returncode == 130


def test_one_in_the_background_that_ignores_ctrl_c_goes_on_ignoring_it():
    process = begun(ignores=True)
    process.send_signal(signal.SIGINT)
    assert process.communicate("\n\n", timeout=LIMIT_S)[0] == "runs\n"
    assert process.returncode == 0


def test_a_command_heeds_ctrl_c_again_once_it_runs():
    process = begun()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_S)[0] == ""
    assert process.returncode == 130


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_begins_there(name):
    (script,) = entry_points(group="console_scripts", name=name)
    assert script.value == f"ps_wire.process.program:{name.replace('-', '_')}"
    (main,) = entry_points(group="ps.programs", name=name)
    assert main.value == f"{name.replace('-', '_')}.cli:main"


@pytest.mark.parametrize("module", ["ps_wire.process.program", "ps_server.cli", "ps_lab.cli"])
def test_what_is_imported_before_that_or_for_help_takes_no_time(module):
    code = f"import sys, {module}; print({{'torch', 'numpy', 'grpc'}} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"
