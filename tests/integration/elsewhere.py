"""One of the project's commands as on a system that is not Linux: what is Linux's alone is not there.

Run as a script with the command's name and its arguments. Libraries are imported before, as they choose their
files by the system, and the project after.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import sys
import sysconfig

import grpc.aio  # noqa: F401
import torch._dynamo  # noqa: F401 - optimizers import it

MISSING = {
    os: ("memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "sched_getaffinity"),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL", "F_SEAL_WRITE"),
    mmap: ("MADV_DONTFORK",),
    socket: ("SO_PEERCRED",),
}


def main() -> None:
    """Becomes the command."""
    sysconfig.get_config_vars()
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "darwin"
    sys.argv = sys.argv[1:]
    from ps_server.cli import main as ps_server  # noqa: PLC0415
    from ps_worker.cli import main as ps_worker  # noqa: PLC0415

    {"ps-server": ps_server, "ps-worker": ps_worker}[sys.argv[0]]()


if __name__ == "__main__":
    main()
