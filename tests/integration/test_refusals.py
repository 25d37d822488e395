"""What a worker is refused with, and what its command ends with: message and exit code."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ps_lab.cluster.ports import free_ports
from ps_wire import errors
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import shard_pb2, shard_pb2_grpc

from .processes import LIMIT_S, Start, ended, start
from .servers import Servers, fresh_job, serving
from .team import join

pytestmark = pytest.mark.integration

# -- servers -------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_ends_the_worker_with_69(spawn: Start, script: str) -> None:
    """Within the connect limit, naming the address."""
    (port,) = free_ports(1)
    worker = spawn("ps-worker", "--servers", f"127.0.0.1:{port}", script, PS_CONNECT_LIMIT="1")
    code, line = ended(worker)
    assert code == 69
    assert line.startswith(f"ps-worker: ServerUnreachable: server 127.0.0.1:{port} cannot be reached")
    assert "within 1 s, PS_CONNECT_LIMIT" in line


def test_one_server_of_two_that_is_not_there_is_named(cluster: Servers) -> None:
    """The address of the one that does not answer is in the message, and a fact of the error."""
    (port,) = free_ports(1)
    with pytest.raises(errors.ServerUnreachable, match=f"server 127.0.0.1:{port}") as refused:
        join(f"{cluster.addresses[0]},127.0.0.1:{port}", fresh_job(), connect_limit=20.0)
    assert refused.value.facts["address"] == f"127.0.0.1:{port}"
    assert refused.value.exit_code == 69


def test_an_address_that_accepts_and_says_nothing_counts_as_unreachable() -> None:
    """A port behind which nobody speaks HTTP/2 does not hold the worker beyond the connect limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(errors.ServerUnreachable, match=address):
            join(address, fresh_job(), connect_limit=0.5)
        assert time.monotonic() - began_s < 25  # the default is 30 s


def test_servers_in_another_order_end_the_worker_with_78(cluster: Servers, spawn: Start, script: str) -> None:
    """The address in the wrong place is named."""
    swapped = ",".join(reversed(cluster.addresses))
    code, line = ended(spawn("ps-worker", "--servers", swapped, script))
    assert code == 78
    assert line == (
        f"ps-worker: ShardMismatch: --servers lists {cluster.addresses[1]} in place 0; it is shard 1: "
        "list the servers in shard order"
    )


def test_another_number_of_servers_is_refused(cluster: Servers, single: Servers) -> None:
    """Too few and too many: what the server says and what was listed."""
    with pytest.raises(errors.ShardMismatch, match=r"lists 1 address; .* is one of 2 shards") as refused:
        join(cluster.addresses[0], fresh_job())
    assert refused.value.exit_code == 78
    with pytest.raises(errors.ShardMismatch, match=r"lists 2 addresses; .* is one of 1 shards"):
        join(f"{single.option},{cluster.addresses[1]}", fresh_job())
    with pytest.raises(errors.AddressInvalid, match="is listed twice") as twice:
        join(f"{single.option},{single.option}", fresh_job())
    assert twice.value.exit_code == 64


@contextmanager
def server_of_protocol(protocol: int) -> Iterator[str]:
    """The address of something that describes itself as a server of that version."""

    class Other(shard_pb2_grpc.ShardServicer):
        def Describe(self, request: object, context: object) -> shard_pb2.DescribeReply:  # noqa: N802
            return shard_pb2.DescribeReply(protocol=protocol, shard=0, num_shards=1, ready=True)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    shard_pb2_grpc.add_ShardServicer_to_server(Other(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(LIMIT_S)


def test_a_server_of_another_protocol_is_refused_with_both_versions() -> None:
    """The worker says which version the server speaks, and which one it speaks itself."""
    with (
        server_of_protocol(1) as address,
        pytest.raises(errors.ProtocolMismatch, match=f"speaks protocol 1, this one {PROTOCOL}") as refused,
    ):
        join(address, fresh_job())
    assert refused.value.exit_code == 78


def test_a_port_in_use_ends_the_server_with_69(cluster: Servers, spawn: Start) -> None:
    """The address is named; the one who has it serves on."""
    code, line = ended(spawn("ps-server", "--port", cluster.addresses[0].rpartition(":")[2]))
    assert code == 69
    assert line == f"ps-server: Unavailable: cannot listen on {cluster.addresses[0]}: Address already in use"
    assert cluster.figures(0).shard == 0


# -- usage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--consistency", "bps"), "unknown consistency 'bps'; valid are: bsp, bsp:backup=B"),
        (("--consistency", "ssp:-1"), "ssp: staleness must be >= 0, got -1"),
        (("--consistency", "ssp:x"), "ssp: the bound must be a whole number, got 'x'"),
        (("--consistency", "ssp"), "unknown consistency 'ssp'; valid are"),
        (("--num-workers", "0"), "--num-workers"),
        (("--num-workers", "many"), "--num-workers"),
        (("--job", "a b"), "job name 'a b'"),
        (("--servers", "localhost"), "'localhost' is not HOST:PORT"),
        (("--no-such-option",), "--no-such-option"),
    ],
)
def test_what_makes_no_sense_ends_the_worker_with_64(
    spawn: Start, script: str, options: tuple[str, ...], text: str
) -> None:
    """Before anything is joined; the message says what is wrong and what is valid."""
    code, line = ended(spawn("ps-worker", *options, script))
    assert code == 64
    assert text in line


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--shard", "2/2"), "K in 0..N-1"),
        (("--shard", "1/2"), "needs --coordinator"),
        (("--port", "70000"), "--port"),
        (("--memory-limit", "lots"), "--memory-limit 'lots'"),
        (("--coordinator", "nowhere", "--shard", "1/2"), "'nowhere' is not HOST:PORT"),
    ],
)
def test_what_makes_no_sense_ends_the_server_with_64(
    spawn: Start, options: tuple[str, ...], text: str
) -> None:
    """Before anything listens."""
    code, line = ended(spawn("ps-server", *options))
    assert code == 64
    assert text in line


def test_the_installed_command_ends_with_the_same_code(script: str) -> None:
    """The console script is what the other tests here fork."""
    assert ended(start("ps-worker", "--consistency", "bps", script))[0] == 64


def test_a_second_shard_0_on_a_state_directory_that_is_held_ends_with_78(
    spawn: Start, tmp_path: Path
) -> None:
    """Whatever its port is; when the first one was killed, the next one has the directory."""
    options = ("--state-dir", str(tmp_path / "state"))
    with serving(spawn, 1, *options) as servers:
        (first,) = servers.processes
        code, line = ended(spawn("ps-server", "--shard", "0/1", "--port", "0", *options))
        assert code == 78
        assert f"held by a shard 0 that is alive (host {socket.gethostname()}, pid {first.pid})" in line
        first.kill()
        (port,) = (address.rpartition(":")[2] for address in servers.addresses)
        servers.processes[0] = spawn("ps-server", "--shard", "0/1", "--port", port, *options)
        servers.processes[0].wait_line("serving on")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nproc", "3", "--pipeline-stages", "2"), "--nproc 3 is no multiple of --pipeline-stages 2"),
        (("--nproc", "3", "--group-size", "2"), "--nproc 3 is no multiple of --group-size 2"),
        (
            ("--servers", "none", "--nproc", "4", "--pipeline-stages", "2"),
            "processes are one worker; leave --pipeline-stages out",
        ),
        (
            ("--pipeline-stages", "2", "--nproc", "2", "--stage", "1"),
            "--stage 1 says which of --pipeline-stages this one process is: with --nproc 2, which starts",
        ),
    ],
)
def test_numbers_of_processes_that_do_not_fit_are_refused_by_the_option_that_was_typed(
    cluster: Servers, spawn: Start, script: str, words: tuple[str, ...], said: str
) -> None:
    code, line = ended(spawn(*cluster.worker(), *words, script))
    assert code == 64
    assert line.startswith("ps-worker: UsageError: ")
    assert said in line
