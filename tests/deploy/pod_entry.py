"""The beginning of a process that is a pod: it enters its node's network, and sees the pod's files.

Imported in the process by `TESTS_INSTALL`. The environment names the node's network (`tests.faults.links`),
and as JSON which folder or file is to be seen where.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

from tests.faults import links

FILES = "DEPLOY_FILES"
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18


def install() -> None:
    """In a process of one thread, which may mount."""
    links.install()
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(code: int, what: str) -> None:
        if code:
            raise OSError(ctypes.get_errno(), what)

    def mount(source: str, target: str, kind: str | None, flags: int) -> None:
        words = (source.encode(), target.encode(), kind and kind.encode(), flags, None)
        checked(libc.mount(*words), f"mount {source} at {target}")

    checked(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    covered: set[Path] = set()
    for target, source in json.loads(os.environ.pop(FILES)).items():
        path = Path(target)
        if not path.exists():
            above = next(it for it in path.parents if it.exists())
            assert above != Path("/"), f"{path}: nothing can be mounted over /"
            if not covered & {above, *above.parents}:
                mount("none", str(above), "tmpfs", 0)
                covered.add(above)
            path.mkdir(parents=True)
        mount(source, target, None, MS_BIND | MS_REC)
