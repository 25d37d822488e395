"""A process with namespaces of its own, begun by forking: as `links.UNSHARE` makes them, without its imports.

`start` begins a module of the tests there. It is root in them, and has a zygote forked from that of the
tests, which is what `Zygote()` gives it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from ps_wire.process import die_with_parent

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
INSTALL = "TESTS_INSTALL"


def command(module: str, *words: str) -> tuple[str, ...]:
    """Of a module that the zygote is to begin, with `ENVIRONMENT`."""
    return (sys.executable, "-m", module, *words)


ENVIRONMENT = {INSTALL: __name__}


def install() -> None:
    """Leaves the namespaces that this process was forked in; it has one thread."""
    os.environ.pop(INSTALL)  # what it starts stays where it is
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):  # else others see what is mounted here
        raise OSError(ctypes.get_errno(), "mount")
    die_with_parent.die_with(os.getppid())  # again: other rights may have ended it
