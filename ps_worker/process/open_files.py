"""Files that a script has left open: what is buffered for them is written when the script ends.

Under `python` the interpreter does so when it takes the main module apart. The names of a script that is run
here are cyclic garbage instead, in which a file may be closed before what is buffered for it is written.
"""

from __future__ import annotations

import gc
import io
from contextlib import suppress


def write_out() -> None:
    """Writes what is buffered for all open files of this process; says nothing of those that refuse."""
    for it in gc.get_objects():
        if issubclass(type(it), io.IOBase):
            with suppress(OSError, ValueError):  # closed, or its disk is full
                it.flush()
