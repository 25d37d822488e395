"""A forked child of a worker: it lets go of the worker's sockets to the servers, and must not end them.

A fork inherits every socket, and a connection lives while any process holds it: the children of a
DataLoader would keep a killed worker's connections open, and its servers would wait for it. gRPC itself
cannot be used in such a child, for its threads are not there.

Nor may the child's garbage collector free what was there at the fork: an object of gRPC's that is freed there
waits for locks of threads that the child does not have (seen: 3 of 60 children hung in `gc.collect()`).

The sockets are known by their peers: what the servers' addresses stand for. Their numbers stay taken in the
child, so that whatever still refers to one of them there closes nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import os
import socket
import stat
from typing import TypeAlias

from ps_wire.errors import UsageError

Peer: TypeAlias = tuple[str, int]  # host and port; of a Unix socket its address, and 0

_peers: set[Peer] = set()
_parents: list[int] = []  # ids of the processes that were workers and of which this one is a fork


def remember(address: str) -> None:
    """Notes a server, `HOST:PORT`, whose sockets children are not to keep; again when it may have moved."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):  # what has no address has no sockets
        for *_, resolved in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
            _peers.add(_normal(str(resolved[0]), int(resolved[1])))


def remember_unix(address: str) -> None:
    """Notes the address of a server's Unix socket, with a NUL first where it is a name of the kernel's."""
    _peers.add((address, 0))


def check_not_forked() -> None:
    """Refuses what needs gRPC in a process that was forked from a worker.

    Raises:
        UsageError: this is one.
    """
    if _parents:
        raise UsageError(
            f"this process was forked from process {_parents[-1]}, which has been a worker, and gRPC "
            'does not survive that: start it by multiprocessing.get_context("spawn")'
        )


def _normal(host: str, port: int) -> Peer:
    """The same pair for an IPv4 address and its form in IPv6."""
    host = host.partition("%")[0]
    mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    return str(mapped or host), port


def _let_go() -> None:
    """In the child, right after the fork."""
    if not _peers:
        return
    gc.freeze()
    _parents.append(os.getppid())
    with contextlib.suppress(OSError):  # no /dev/fd: nothing can be found
        null = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir("/dev/fd"):  # noqa: PTH208 - numbers, not paths
            if _is_ours(int(name)):
                os.dup2(null, int(name), inheritable=False)
        os.close(null)


def _is_ours(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        found = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        if found.family == getattr(socket, "AF_UNIX", None):
            return (os.fsdecode(found.getpeername()), 0) in _peers
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return _normal(*found.getpeername()[:2]) in _peers
    except OSError:  # not connected
        return False
    finally:
        found.detach()


os.register_at_fork(after_in_child=_let_go)
