"""The protocol between a bench and its processes: JSON lines over stdin and stdout.

The bench writes one line of configuration, and a line per turn; the process answers each with one marked
line, so that warnings of libraries between them do no harm. Clocks are the machine's monotonic one, which all
processes share. Only the standard library is used here, since peers run in environments of their own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "#ps-bench "
TURN = "turn"
FINISH = "finish"


def parse_answer(line: str) -> dict[str, Any] | None:
    """The answer in a line of output; None if there is none."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def read_configuration() -> dict[str, Any]:
    """In a process of a bench: what it was told at its start."""
    configuration: dict[str, Any] = json.loads(sys.stdin.readline())
    return configuration


def answer(**facts: object) -> None:
    """In a process of a bench: answers what it was told last."""
    sys.stdout.write(MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


def take_turns(
    do: Callable[[], object], finish: Callable[[], object] = lambda: None, **facts: object
) -> None:
    """In a process of a bench: says that it is ready, then calls `do` at each turn, until stdin ends.

    Args:
        do: this process's part of a round.
        finish: ends its job, at the turn that says so.
        facts: that go along with the first answer.
    """
    answer(ready=True, **facts)
    for line in sys.stdin:
        begin_s = time.monotonic()
        (finish if line.strip() == FINISH else do)()
        answer(begin_s=begin_s, end_s=time.monotonic())
