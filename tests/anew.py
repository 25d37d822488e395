"""Python with torch anew, for a test that asks how a process begins or ends; others are forked (`spawn`).

To import torch, and to take it apart at the end, is up to 12 s of a core where memory is slow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.until import LIMIT_S

ANEW_LIMIT_S = 2 * LIMIT_S
STACKS_LIMIT_S = 30.0  # from SIGABRT until the process has ended


def run_anew(
    *words: str, folder: Path | None = None, limit_s: float = ANEW_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments to its end.

    Raises:
        AssertionError: it takes longer than `limit_s`; with what it said, and where its threads stand.
    """
    command = [sys.executable, *words]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            output, errors = process.communicate(timeout=STACKS_LIMIT_S)
            raise AssertionError(f"{command} did not end within {limit_s:g} s:\n{output}\n{errors}") from None
        finally:
            process.kill()  # one that has ended is sent nothing
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
