"""Asks servers to take a snapshot, or to go back to one, and says how it gets on."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ps_wire.access import Access
from ps_wire.channel import dial
from ps_wire.errors import ServerUnreachable
from ps_wire.status import error_of
from ps_wire.tls_diagnosis import diagnose
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub

TAKE_LIMIT_S = 3600.0


def take(coordinator: str, job: str, access: Access) -> Iterator[pb.SnapshotProgress]:
    """Has a snapshot taken of a job that runs; the last word says where it is.

    Raises:
        PsError: it was not taken; the message says why.
    """
    with dial(coordinator, access) as channel:
        try:
            yield from CoordinatorStub(channel).Snapshot(
                pb.SnapshotRequest(job=job), timeout=TAKE_LIMIT_S, metadata=access.metadata
            )
        except grpc.RpcError as error:
            named = error_of(error, coordinator)
            if isinstance(named, ServerUnreachable):
                raise diagnose(coordinator, access.tls) or named from None
            raise named from None
