"""KeyboardInterrupt at a chosen line of the library, as Ctrl-C may land on any."""

from __future__ import annotations

import copy
import linecache
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

VISITS = 2  # of a line that count: whoever is there for the third time is where it was the second time


def interrupted_at(number: int, body: Callable[[], object], *, inside: str = "") -> bool:
    """Runs `body`; whether it was interrupted.

    Args:
        number: of the line of `ps_worker` that this thread comes to, from 0; it is not run any more. Of a
            line in a loop the first `VISITS` count; of a `weakref.finalize` none do: Python drops what it
            raises, and garbage is collected at any time.
        body: what is interrupted there.
        inside: counts only the lines of functions of this name.
    """
    left, before = number, sys.gettrace()
    visits: Counter[tuple[CodeType, int]] = Counter()

    def line(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if event == "line" and not _takes_no_signal(frame):
            place = frame.f_code, frame.f_lineno
            visits[place] += 1
            left -= visits[place] <= VISITS
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return line if left >= 0 else None

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        counts = "/ps_worker/" in code.co_filename and inside in ("", code.co_name)
        return line if counts and not _is_finalizer(frame) else None

    sys.settrace(lambda frame, *rest: None if "/tests/" in frame.f_code.co_filename else call(frame, *rest))
    try:
        body()
    except KeyboardInterrupt:
        assert left < 0
        return True
    finally:
        sys.settrace(before)
    return False


def _takes_no_signal(frame: FrameType) -> bool:
    """Whether Python takes no signal as it comes to this line.

    To `with` it comes again to release a lock. `try` is an instruction that does nothing, and in Python 3.11
    that of one inside a `with` is outside of what releases the lock: what is raised there leaves it held.
    """
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
    return text.startswith(("with ", "try:"))


def _is_finalizer(frame: FrameType) -> bool:
    """Whether what runs in this frame was called by one.

    Where garbage is collected just as Python 3.11 makes the frame of a function that is traced, it goes on to
    call the trace function from before: if that is gone by then, it calls what has taken its memory.
    """
    at: FrameType | None = frame
    while at is not None and at.f_code is not _FINALIZE:
        at = at.f_back
    return at is not None


_FINALIZE = weakref.finalize.__call__.__code__
LR = 0.1


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, fused=True)


def settled(optimizer: Any, model: torch.nn.Module, before: torch.nn.Module) -> None:
    """Each weight is the one before the step or the one after it; `before` becomes what they are."""
    after = copy.deepcopy(before)
    for new, old in zip(after.parameters(), before.parameters(), strict=True):
        new.grad = old.grad
    sgd(after).step()
    for mine, old, new in zip(model.parameters(), before.parameters(), after.parameters(), strict=True):
        assert ((mine == old) | (mine == new)).all()
    with torch.no_grad():
        for mine, old in zip(model.parameters(), before.parameters(), strict=True):
            old.copy_(mine)
