"""The process at the other end of a Unix socket, as the kernel names it."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # SO_PEERCRED: pid, uid, gid


def other_user(peer: socket.socket) -> int | None:
    """The user at the other end, if it is neither this process's nor root.

    On the connecting side that is who has begun to listen. Where the system does not say (macOS), None: there
    the socket lies in a folder that is its user's alone.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    _, user, _ = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return None if user in (0, os.geteuid()) else int(user)
