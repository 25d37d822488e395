"""Calls over gRPC: what becomes of those that come too late."""

from __future__ import annotations

import pytest

from ps_wire.errors import ConnectionLost
from ps_wire.v1 import coordinator_pb2
from ps_worker.transport.grpc_service import GrpcService


def test_a_call_after_the_service_was_closed_is_a_named_error():
    """As by a thread that still says something while its worker leaves; grpc would end the process."""
    service = GrpcService(["127.0.0.1:1"])
    service.close()
    with pytest.raises(ConnectionLost, match=r"this process has closed its calls to 127\.0\.0\.1:1"):
        service.coordinator.Status(coordinator_pb2.StatusRequest(), timeout=1.0)
