"""A network namespace of Linux, held by a process of its own. It must not know links or hosts."""

from __future__ import annotations

import shutil
import subprocess
from typing import Self


class Namespace:
    """A network namespace without a link; a context manager.

    Whoever makes it is root, if only of a user namespace.

    Attributes:
        pid: of the process that holds it: `ip link` takes that for the namespace.
        path: of its file, for `setns`.
        enter: words before a command that is to run inside.
    """

    def __init__(self) -> None:
        """Makes it.

        Raises:
            OSError: there is no `unshare`, or it is not permitted; that has said why on stderr.
        """
        self._holder = subprocess.Popen(
            [shutil.which("unshare") or "unshare", "--net", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            self.close()
            raise OSError("unshare --net has made no network namespace")
        self.pid = self._holder.pid
        self.path = f"/proc/{self.pid}/ns/net"
        self.enter = (shutil.which("nsenter") or "nsenter", f"--net={self.path}")

    def close(self) -> None:
        """Lets it go: it is over when nobody else is inside."""
        with self._holder:  # closes both pipes, at whose end the process ends, and waits for it
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
