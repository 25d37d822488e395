"""A join by hand, for what a worker would try again."""

from __future__ import annotations

import queue

import grpc

from ps_wire.access.channel import CLIENT
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from tests.component.service import Cluster
from tests.until import LIMIT_S


def joins(cluster: Cluster, job: str, worker: int) -> pb.MemberReply:
    """What a worker is told that asks once to be let in."""
    wanted = spec_pb2.Job(name=job, consistency="bsp", num_workers=2, min_workers=1, nonfinite="error")
    join = pb.Join(protocol=PROTOCOL, job=wanted, worker=worker, host="h", pid=1, lease_s=LIMIT_S)
    said: queue.SimpleQueue[pb.MemberRequest | None] = queue.SimpleQueue()
    said.put(pb.MemberRequest(join=join))
    with grpc.insecure_channel(cluster.servers.split(",")[0], options=CLIENT) as channel:
        replies = CoordinatorStub(channel).Member(iter(said.get, None), timeout=LIMIT_S)
        reply: pb.MemberReply = next(replies)
        said.put(None)
    return reply
