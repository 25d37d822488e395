"""A port at which connections are taken and nothing is said."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import TCPStore

from ps_worker.job import own_servers
from tests.until import LIMIT_S


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Its address; at the end there is a store after all, so that nobody waits there any more."""
    listening, address = own_servers.listen()
    try:
        yield address
    finally:
        kept = own_servers.keep_store(listening)
        for thread in threading.enumerate():
            if thread.name == "ps-store":
                thread.join(LIMIT_S)
                assert not thread.is_alive()
        del kept


def patient(*given: object, timeout: timedelta, **options: object) -> TCPStore:
    """A store of a tenth of a second, that may take its time: torch has missed that on a busy host."""
    assert timeout == timedelta(seconds=0.1)
    return TCPStore(*given, timeout=timedelta(seconds=LIMIT_S), **options)
