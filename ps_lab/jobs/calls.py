"""Asks servers to drop a job, or to stop one."""

from __future__ import annotations

from ps_lab.snapshots.calls import calling
from ps_wire.access.access import Access
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub

LIMIT_S = 120.0  # a shard that is away is waited for; after that the servers go on by themselves


def drop(coordinator: str, job: str, access: Access, *, force: bool) -> pb.DropReply:
    """Has a job dropped.

    Raises:
        JobUnknown: there is none of that name.
        JobInUse: it has live workers, and `force` was not said.
        PsError: it was not dropped; the message says why.
    """
    with calling(coordinator, access) as channel:
        reply: pb.DropReply = CoordinatorStub(channel).Drop(
            pb.DropRequest(job=job, force=force), timeout=LIMIT_S, metadata=access.metadata
        )
    return reply


def stop(coordinator: str, job: str, access: Access, *, reason: str) -> pb.EpochReply:
    """Has the workers of a job end after the same epoch.

    Raises:
        JobUnknown: there is none of that name.
        ConfigurationRefused: it has ended already.
        PsError: the server does not answer, or refuses.
    """
    with calling(coordinator, access) as channel:
        reply: pb.EpochReply = CoordinatorStub(channel).StopJob(
            pb.StopRequest(job=job, reason=reason), timeout=LIMIT_S, metadata=access.metadata
        )
    return reply
