"""Calls of a worker while the service in its process ends: each has an answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ps_server.process.in_process import LocalService
from ps_wire.errors import ServerUnreachable
from ps_wire.v1 import coordinator_pb2 as pb
from tests.until import LIMIT_S


def test_a_call_that_is_on_its_way_when_the_service_ends_is_answered() -> None:
    """Else it would come to a loop that has ended: nobody would answer, or it would be a bug."""
    service = LocalService()
    calls: Any = service.coordinator
    servicer, closed = calls._servicer, threading.Event()

    def close() -> None:
        service.close()
        closed.set()

    closing = threading.Thread(target=close, daemon=True)

    class Slow:
        def Status(self, *given: Any) -> Any:  # noqa: N802 - as the protocol names it
            closing.start()
            assert not closed.wait(0.2), "it waits for this call"
            return servicer.Status(*given)

    calls._servicer = Slow()
    assert calls.Status(pb.StatusRequest()).num_shards == 1
    closing.join(LIMIT_S)
    assert closed.is_set()
    with pytest.raises(ServerUnreachable, match="has stopped"):
        calls.Status(pb.StatusRequest())
