"""A port at which connections are taken and nothing is said."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.until import LIMIT_S


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Its address; at the end nobody waits there any more, and what torch says of that is the test's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())
    for thread in threading.enumerate():
        if thread.name == "ps-store":
            thread.join(LIMIT_S)
