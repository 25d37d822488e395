"""Calls to a service that wants a token."""

from __future__ import annotations

from typing import Any

from ps_wire.access.access import Access
from ps_wire.access.channel import dial
from ps_wire.access.status import error_of
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from tests.component.service import Cluster
from tests.until import LIMIT_S

SERVICE = "the-token-of-the-service"


class Calls:
    """Calls to shard 0 with a token, one by one."""

    def __init__(self, cluster: Cluster, access: Access) -> None:
        self._address = cluster.servers.split(",")[0]
        self._access = access

    def __call__(self, service: Any, name: str, request: Any) -> Any:
        """The answer, or the first of several."""
        with dial(self._address, self._access) as channel:
            method = getattr(service(channel), name)
            try:
                answer = method(request, timeout=LIMIT_S, metadata=self._access.metadata)
                return next(answer) if hasattr(answer, "__next__") else answer
            except Exception as error:  # noqa: BLE001 - grpc's own has no useful base for a type
                raise error_of(error, self._address) from None

    def member(self, job: str) -> pb.MemberReply:
        join = pb.Join(protocol=PROTOCOL, job=spec_pb2.Job(name=job, consistency="bsp", num_workers=1))
        return self(CoordinatorStub, "Member", iter([pb.MemberRequest(join=join)]))

    def read(self, job: str) -> pb.ReadReply:
        join = pb.ReadJoin(protocol=PROTOCOL, job=job)
        return self(CoordinatorStub, "Read", iter([pb.ReadRequest(number=1, join=join)]))
