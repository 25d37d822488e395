"""A worker's stream to the coordinator is made again by the worker alone."""

from __future__ import annotations

import grpc
import pytest
import torch

import ps_worker as ps
from ps_wire.access.channel import CLIENT
from ps_wire.errors import StrangerRefused
from ps_wire.frames.messages import refused_from_proto
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S


@pytest.mark.parametrize("of", [lambda _: b"", lambda it: bytes(len(it)), lambda it: it[:-1]])
def test_who_does_not_know_the_session_takes_over_no_stream(one_shard: Cluster, of) -> None:
    """It was told to the worker when it joined, and to nobody else; the worker goes on."""
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        joined = link_of(worker).presence.joined
        resume = pb.Resume(job=job, worker=0, incarnation=joined.incarnation, session=of(joined.session))
        with grpc.insecure_channel(one_shard.servers, options=CLIENT) as channel:
            stream = CoordinatorStub(channel).Member(iter([pb.MemberRequest(resume=resume)]), timeout=LIMIT_S)
            reply = next(iter(stream))
            assert reply.WhichOneof("kind") == "refused"
            assert isinstance(refused_from_proto(reply.refused), StrangerRefused)
        table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.ones(3)}).result(LIMIT_S)
        worker.finish()

    run_workers(one_shard, body, job=job)
