"""Certificates and tokens that change while a service runs and its workers train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_lab.cluster.certificate_authority import make_certificates
from ps_wire.access.access import Access, read
from ps_wire.errors import TokenRefused
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from tests.component.connections.guarded_calls import SERVICE, Calls
from tests.component.service import Cluster, LoopThread
from tests.until import LIMIT_S


def test_a_running_worker_connects_again_with_new_certificates(tmp_path: Path):
    """All of them were replaced, the CA's too, and its old ones would be refused: calls and data."""
    make_certificates(tmp_path)
    loop = LoopThread()
    access = read(token_file=None, tls_dir=tmp_path / "server", serves=True, complain=print)
    made = Cluster(loop, 1, access, tls_dir=tmp_path / "worker")
    try:
        with ps.connect(servers=made.servers, carrier="tcp", **made.settings) as worker:
            table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
            make_certificates(tmp_path, force=True)
            for connection in list(made.shards[0].sockets._connections):
                connection._peer.sever()
            table.push({"w": torch.full((3000,), -1.0)})
            assert float(table.pull().result(LIMIT_S).values["w"].sum()) == 3000.0
    finally:
        made.close()
        loop.close()


def test_a_token_is_changed_while_workers_train(tmp_path: Path):
    """Calls and connections that are made after it carry the new one; the old one opens nothing any more."""
    path, new = tmp_path / "token", "the-service-has-a-new-token"
    path.write_text(SERVICE)
    loop = LoopThread()
    access = read(token_file=path, tls_dir=None, serves=True, complain=print)
    made = Cluster(loop, 2, access, token_file=path)
    try:
        with ps.connect(servers=made.servers, carrier="tcp", **made.settings) as worker:
            table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
            path.write_text(new)
            for server in made.shards:
                for connection in list(server.sockets._connections):
                    connection._peer.sever()
            table.push({"w": torch.full((3000,), -1.0)})
            assert float(table.pull().result(LIMIT_S).values["w"].sum()) == 3000.0
            assert worker.stats().step == 1
            with pytest.raises(TokenRefused):
                Calls(made, Access(token=SERVICE))(CoordinatorStub, "Status", pb.StatusRequest())
    finally:
        made.close()
        loop.close()
