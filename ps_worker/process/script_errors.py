"""Errors that have ended a script, as they are shown: the script's own frames, and none of what started it.

It must not know what errors mean.
"""

from __future__ import annotations

import linecache
import runpy
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from ps_wire.text import one_line

INSTALLED = {"site-packages", "dist-packages"}  # wherever these are: PYTHONPATH and .pth files name others
PACKAGES = ("ps_worker", "ps_wire", "ps_server")


def line_through(error: BaseException, launcher: str) -> str:
    """The line of the script that an error of the project came through, as `FILE:LINE: source`.

    That is the innermost frame that is neither the project's nor an installed library's.

    Args:
        error: with its traceback.
        launcher: file of the code that runs scripts.
    """
    frames = traceback.extract_tb(_without_launcher(error.__traceback__, launcher))
    of_script = [frame for frame in frames if not _is_library(frame.filename)] or frames[:1]
    if not of_script:
        return ""
    last = of_script[-1]
    source = linecache.getline(last.filename, last.lineno or 0)
    return one_line(f"{last.filename}:{last.lineno}: {source.strip()}")


def show(error: Exception, launcher: str) -> None:
    """As `python` would have shown it that had run the script itself, with the script's own `excepthook`."""
    shown = error.with_traceback(_without_launcher(error.__traceback__, launcher))
    sys.last_type, sys.last_value, sys.last_traceback = type(shown), shown, shown.__traceback__
    sys.excepthook(type(shown), shown, shown.__traceback__)


def _without_launcher(trace: TracebackType | None, launcher: str) -> TracebackType | None:
    ours = {launcher, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _is_library(filename: str) -> bool:
    folder = Path(__file__).resolve().parents[2]
    places = [folder / name for name in PACKAGES]
    places += [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    path = Path(filename)
    installed = filename.startswith("<") or INSTALLED & set(path.parts)
    return bool(installed) or any(path.is_relative_to(place) for place in places)
