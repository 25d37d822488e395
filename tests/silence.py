"""A TCP connection whose packets vanish, without a network of its own: the kernel drops what comes.

A filter of the socket takes nothing in, so neither data nor confirmations come, and nobody is told. TCP
gives the peer up after `GONE_S`, and says ETIMEDOUT. It is there on Linux, for every user.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

import pytest

SO_ATTACH_FILTER = 26  # of <asm-generic/socket.h>; Python does not name it
GONE_S = 1

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux filters what a socket takes in"
)


def fall_silent(connected: socket.socket) -> None:
    """Nothing comes to this socket any more; after `GONE_S`, idle or not, the system gives its peer up."""
    nothing = ctypes.create_string_buffer(
        struct.pack("HBBI", 6, 0, 0, 0)
    )  # the one instruction: take 0 bytes
    program = struct.pack("@HP", 1, ctypes.addressof(nothing))
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_S),
        (socket.SOL_SOCKET, SO_ATTACH_FILTER, program),
    ):
        connected.setsockopt(level, option, value)
