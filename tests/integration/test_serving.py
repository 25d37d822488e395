"""What a server says of itself on the standard services, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ps_lab.cluster.ports import free_ports
from ps_wire.access.channel import CLIENT
from ps_wire.errors import ServerNotReady
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2, shard_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub
from tests.faults import start_points

from .processes import LIMIT_S, Start, ended
from .raw import RawWorker, Stream
from .servers import NOT_SERVING, SERVING, Servers, fresh_job, health, wait_health
from .team import join

pytestmark = pytest.mark.integration


def test_a_shard_without_its_coordinator_is_not_ready_until_it_has_registered(spawn: Start) -> None:
    """Alive from the start, ready once registered, not ready again when the coordinator has gone."""
    ports = free_ports(2)
    first, second = (f"127.0.0.1:{port}" for port in ports)
    follower = spawn("ps-server", "--shard", "1/2", "--port", str(ports[1]), "--coordinator", first)
    wait_health(second, SERVING, "liveness")
    assert [health(second, name) for name in ("", "readiness")] == [NOT_SERVING, NOT_SERVING]
    with grpc.insecure_channel(second) as channel:
        assert not ShardStub(channel).Describe(shard_pb2.DescribeRequest(), timeout=LIMIT_S).ready

    coordinator = spawn("ps-server", "--shard", "0/2", "--port", str(ports[0]))
    for address in (first, second):
        for name in ("", "readiness", "liveness"):
            wait_health(address, SERVING, name)
    with join(f"{first},{second}", fresh_job()) as worker:
        assert worker.rank == 0

    coordinator.signal(signal.SIGINT)
    assert coordinator.wait_end() == 130
    wait_health(second, NOT_SERVING, "readiness")
    assert health(second) == NOT_SERVING
    assert health(second, "liveness") == SERVING
    follower.signal(signal.SIGTERM)
    assert follower.wait_end() == 0
    for server in (coordinator, follower):
        assert "stopped" in server.lines[-1]
        assert "Traceback" not in server.text


def test_a_worker_waits_for_shards_within_its_connect_limit(spawn: Start) -> None:
    """While a shard is missing, joining ends with 69 and says which."""
    *ports, nobody = free_ports(3)
    spawn("ps-server", "--shard", "0/2", "--port", str(ports[0]))
    elsewhere = ("--coordinator", f"127.0.0.1:{nobody}")
    spawn("ps-server", "--shard", "1/2", "--port", str(ports[1]), *elsewhere)
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    for port in ports:
        wait_health(f"127.0.0.1:{port}", SERVING, "liveness")
    with pytest.raises(ServerNotReady, match="not registered with the coordinator yet: 1") as refused:
        join(servers, fresh_job(), connect_limit=20.0)
    assert refused.value.exit_code == 69


def test_a_shard_of_another_service_ends_with_78(cluster: Servers, spawn: Start) -> None:
    """It registers as K/M with the coordinator of N shards, and would wait for ever; the others serve on."""
    (port,) = free_ports(1)
    stranger = spawn(
        *("ps-server", "--shard", "1/3", "--port", str(port), "--coordinator", cluster.addresses[0])
    )
    code, line = ended(stranger)
    assert code == 78
    assert line.startswith("ps-server: ShardMismatch: a server registers as shard 1/3; the coordinator is ")
    assert "(--shard K/N, PS_SHARD)" in line
    assert [health(address) for address in cluster.addresses] == [SERVING, SERVING]


def test_a_shard_with_no_place_hands_on_what_it_holds(spawn: Start, tmp_path: Path) -> None:
    """It is the coordinator whose count may be wrong: when that is repaired, nothing is lost."""
    ports = free_ports(2)
    first = f"127.0.0.1:{ports[0]}"
    own = ("--shard", "1/2", "--port", str(ports[1]), "--state-dir", str(tmp_path), "--coordinator", first)
    follower = spawn("ps-server", *own)
    coordinator = spawn("ps-server", "--shard", "0/2", "--port", str(ports[0]))
    for port in ports:
        wait_health(f"127.0.0.1:{port}", SERVING)
    coordinator.kill()
    spawn("ps-server", "--shard", "0/3", "--port", str(ports[0]))
    code, line = ended(follower)
    assert code == 78
    assert "ShardMismatch" in line
    assert (tmp_path / "hand-off-1.safetensors").is_file()


def test_while_a_hand_off_is_read_probes_hear_that_the_server_lives_and_is_not_ready(
    spawn: Start, tmp_path: Path
) -> None:
    """Large states take minutes: whoever gets no answer until then would end the process again and again."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    port, health_port = free_ports(2)
    probed = f"127.0.0.1:{health_port}"
    server = spawn(
        *("ps-server", "--port", str(port), "--health-port", str(health_port)),
        *("--state-dir", str(tmp_path)),
        PS_STOPPED_CODE="75",
        **start_points.environment(start_points.FOUND, fifo),
    )
    server.wait_line("stands")
    assert health(probed, "liveness") == SERVING
    assert [health(probed, name) for name in ("", "readiness")] == [NOT_SERVING, NOT_SERVING]
    fifo.write_bytes(b"")
    wait_health(probed, SERVING, "readiness")
    server.signal(signal.SIGTERM)
    assert server.wait_end() == 75, "as the pod of a Job, which has a successor that way"
    assert (tmp_path / "hand-off-0.safetensors").is_file()


def test_the_standard_health_service_can_be_watched(cluster: Servers) -> None:
    """Watch sends the present state at once, also of a name that nobody knows."""
    with grpc.insecure_channel(cluster.addresses[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name, status in (
            ("", SERVING),
            ("readiness", SERVING),
            ("liveness", SERVING),
            ("no-such-name", health_pb2.HealthCheckResponse.SERVICE_UNKNOWN),
        ):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT_S)
            assert next(watch).status == status
            watch.cancel()
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="no-such-name"), timeout=LIMIT_S)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services(cluster: Servers) -> None:
    """The coordinator's service on shard 0 only; health and reflection themselves on all."""
    everywhere = {
        "ps_wire.v1.Shard",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for address, expected in zip(
        cluster.addresses, (everywhere | {"ps_wire.v1.Coordinator"}, everywhere), strict=True
    ):
        with grpc.insecure_channel(address) as channel:
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            (reply,) = stub.ServerReflectionInfo(iter([request]), timeout=LIMIT_S)
        assert {service.name for service in reply.list_services_response.service} == expected


def test_a_server_ends_beside_readers_that_wait_for_a_worker(spawn: Start) -> None:
    """Two of one job ask for what only its worker has, which takes no step: SIGTERM ends the server."""
    servers = Servers(spawn, 1)
    worker = RawWorker(servers)
    (address,), (server,) = servers.addresses, servers.processes
    with grpc.insecure_channel(address, options=CLIENT) as channel:
        readers = [Stream(CoordinatorStub(channel).Read) for _ in range(2)]
        for number, reader in enumerate(readers):
            join = coordinator_pb2.ReadJoin(protocol=PROTOCOL, job=worker.job, host="here", pid=number)
            reader.send(coordinator_pb2.ReadRequest(number=1, join=join))
            assert next(reader.call).WhichOneof("kind") == "joined"
        for reader in readers:
            reader.send(coordinator_pb2.ReadRequest(number=2, state=0))
        worker.hears("upload_live")  # they wait for it, each for up to 10 s
        behind = shard_pb2.DescribeRequest()  # on the same connection
        ShardStub(channel).Describe(behind, timeout=LIMIT_S)
        server.signal(signal.SIGTERM)
        assert server.wait_end() == 0
    assert "Traceback" not in server.text, server.text
