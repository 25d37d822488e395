"""Which carrier a worker's data takes, what it says about it, and what it is told if there is none."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_lab.status.observer import ask
from ps_wire.errors import UsageError
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import VALID, Carrier, parse
from ps_wire.v1 import shard_pb2
from ps_worker.steps import Steps
from ps_worker.transport import carrier_choice, socket_stream
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S


@contextlib.contextmanager
def offers(cluster: Cluster, **addresses: str) -> Iterator[None]:
    """Other addresses of carriers; an empty one takes the offer away."""
    services = [server._service for server in cluster.shards]
    before = [service.carriers for service in services]
    for service in services:
        changed = [
            shard_pb2.Carrier(name=offer.name, address=addresses.get(offer.name, offer.address))
            for offer in service.carriers
            if addresses.get(offer.name) != ""
        ]
        service.carriers = tuple(changed)
    try:
        yield
    finally:
        for service, carriers in zip(services, before, strict=True):
            service.carriers = carriers


def trained(cluster: Cluster, monkeypatch: Any, **settings: Any) -> tuple[list[str], set[str]]:
    """What a worker said about its data, and the carriers that its sessions had."""
    said: list[str] = []
    monkeypatch.setattr(Steps, "say", lambda self, text: said.append(text))
    sessions: set[str] = set()

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.full((3000,), -1.0)})
        assert torch.equal(table.pull().result(LIMIT_S).values["w"], torch.ones(3000))
        for part in link_of(worker).figures():
            sessions.update(figures.carrier for figures in part.workers)

    run_workers(cluster, body, **settings)
    return [line for line in said if line.startswith("data")], sessions


@pytest.mark.parametrize(
    ("carrier", "taken"), [("auto", "shm"), ("shm", "shm"), ("uds", "uds"), ("tcp", "tcp"), ("grpc", "grpc")]
)
def test_the_best_offer_or_the_one_wanted_is_taken_and_said_once(
    cluster: Cluster, monkeypatch: Any, carrier: str, taken: str
):
    """Once for all shards; the servers know it, too."""
    said, sessions = trained(cluster, monkeypatch, carrier=carrier)
    assert said == [f"data goes over {taken}" + ("" if taken == "shm" else " (as PS_CARRIER says)")]
    assert sessions == {taken}


def test_numbers_that_travel_rounded_are_not_shared(cluster: Cluster, monkeypatch: Any):
    """The next carrier is taken, and why is said."""
    said, sessions = trained(cluster, monkeypatch, wire_dtype="bf16")
    assert said == [f"data goes over uds (shm: {carrier_choice.ROUNDED})"]
    assert sessions == {"uds"}


def test_an_offer_that_cannot_be_reached_is_passed_over_and_said(cluster: Cluster, monkeypatch: Any):
    with offers(cluster, shm="@nobody-is-there", uds="@nobody-is-there"):
        said, sessions = trained(cluster, monkeypatch)
    assert said == ["data goes over tcp (shm: Connection refused, uds: Connection refused)"]
    assert sessions == {"tcp"}


def test_without_sockets_there_is_grpc(cluster: Cluster, monkeypatch: Any):
    with offers(cluster, shm="", uds="", tcp=""):
        said, sessions = trained(cluster, monkeypatch)
    absent = ", ".join(f"{carrier}: the server does not offer it" for carrier in ("shm", "uds", "tcp"))
    assert (said, sessions) == ([f"data goes over grpc ({absent})"], {"grpc"})


def closes(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def garbage(listener: socket.socket) -> None:
    while True:
        try:
            peer = listener.accept()[0]
        except OSError:
            return
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
        peer.recv(4096)
        peer.close()


@pytest.mark.parametrize(("answer", "why"), [(closes, "closed before HELLO|reset"), (garbage, "not a frame")])
def test_a_port_that_is_somebody_elses_is_not_taken_for_the_shard(
    cluster: Cluster, monkeypatch: Any, answer: Any, why: str
):
    """A connection alone proves nothing: HELLO must come back. The next carrier gets a new token."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        with offers(cluster, shm="", uds="", tcp=str(listener.getsockname()[1])):
            said, sessions = trained(cluster, monkeypatch)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_S)
    assert sessions == {"grpc"}
    assert said[0].startswith("data goes over grpc (shm: the server does not offer it, ")
    assert any(part in said[0] for part in why.split("|"))


def test_one_that_never_answers_is_given_up_in_time(cluster: Cluster, monkeypatch: Any):
    monkeypatch.setattr(carrier_choice, "GREET_LIMIT_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        offers(cluster, shm="", uds="", tcp=str(listener.getsockname()[1])),
    ):
        said, _ = trained(cluster, monkeypatch)
    assert said[0].endswith(", tcp: connected, and no HELLO came back)")


def test_a_carrier_that_is_wanted_and_not_offered_is_a_named_error(cluster: Cluster):
    with (
        offers(cluster, shm="", uds=""),
        pytest.raises(ps.ConfigurationRefused, match=r"carrier uds .* not offered: the server has tcp, grpc"),
    ):
        run_workers(
            cluster,
            lambda worker: worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0)),
            carrier="uds",
        )


def test_a_carrier_that_is_wanted_and_not_reached_is_a_named_error(cluster: Cluster):
    with (
        offers(cluster, uds="@nobody-is-there"),
        pytest.raises(
            ps.ConfigurationRefused, match=r"carrier uds .* does not reach shard \d: uds: Connection ref"
        ),
    ):
        run_workers(
            cluster,
            lambda worker: worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0)),
            carrier="uds",
        )


def test_a_shard_that_breaks_off_as_it_is_reached_over_the_wanted_carrier_is_reached_later(cluster: Cluster):
    """As one that is being started again: a worker that was told to take `uds` does not end for that."""
    broken: list[int] = []
    reach = carrier_choice.CarrierChoice._reach

    def breaks_off(self: Any, shard: int, *given: Any) -> Any:
        if broken.count(shard) < carrier_choice.TRIES - 1:
            broken.append(shard)
            raise ps.ConnectionLost("Connection reset by peer")
        return reach(self, shard, *given)

    def body(worker: ps.Worker) -> None:
        worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier_choice.CarrierChoice, "_reach", breaks_off)
        run_workers(cluster, body, carrier="uds")
    assert broken


def test_a_shard_that_differs_is_said_by_itself(cluster: Cluster, monkeypatch: Any):
    with offers(cluster, shm="", uds="@nobody-is-there"):
        cluster.shards[0]._service.carriers = (shard_pb2.Carrier(name="grpc"),)
        said, sessions = trained(cluster, monkeypatch)
    assert sessions == {"tcp", "grpc"}
    assert len(said) == 2
    assert said[0].startswith("data goes over ")
    assert said[1].startswith("data of shard ")


def told(cluster: Cluster, **settings: Any) -> str:
    """What `ps-lab status` learns of the only worker."""

    def body(worker: ps.Worker) -> str:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
        table.pull().result(LIMIT_S)
        worker.finish()
        (known,) = ask(tuple(cluster.servers.split(","))).job(name).workers
        return known.passed_over

    name = fresh_name()
    return run_workers(cluster, body, job=name, **settings)[0]


def test_who_looks_at_the_job_learns_why_no_better_carrier_was_taken(cluster: Cluster):
    refused = "shm: Connection refused, uds: Connection refused"
    assert told(cluster) == ""
    assert told(cluster, carrier="tcp") == "as PS_CARRIER says"
    with offers(cluster, shm="@nobody-is-there", uds="@nobody-is-there"):
        assert told(cluster) == refused
        service = cluster.shards[0]._service
        service.carriers = (*service.carriers[:2], shard_pb2.Carrier(name="grpc"))
        differs = f"shard 0: {refused}, tcp: the server does not offer it; shard 1: {refused}"
        assert told(cluster) == differs


def test_shards_for_which_it_is_the_same_are_counted_not_listed():
    """What a heartbeat carries does not grow with them."""
    unused: Any = None
    choice = carrier_choice.CarrierChoice(unused, None, lambda _: None)
    for shard in range(4096):
        choice._chosen(shard, Carrier.SHM if shard == 7 else Carrier.UDS, [])
    assert choice.passed_over() == "shard 0 and 4094 more: shm: the server does not offer it"


def test_alone_there_is_nothing_to_choose(monkeypatch: Any):
    said: list[str] = []
    monkeypatch.setattr(Steps, "say", lambda self, text: said.append(text))
    with ps.connect(servers="none", carrier="uds") as worker:
        worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0)).pull().result(LIMIT_S)
    assert not [line for line in said if line.startswith("data")]


@pytest.mark.parametrize("text", ["rdma", "", "UDS", "memory"])
def test_a_carrier_that_does_not_exist_is_refused_by_name(text: str):
    with pytest.raises(UsageError, match=f"valid are: {VALID}"):
        parse(text)


def test_every_carrier_has_a_name_and_sockets_a_door():
    assert [parse(name) for name in VALID.split(", ")] == [None, *Carrier]
    assert set(socket_stream.DOORS) == set(Carrier) - {Carrier.GRPC}


def test_weights_arrive_in_the_parameters_memory_without_a_copy(cluster: Cluster):
    """What `take` gets is the flat weights themselves; an answer that nobody waits for lands elsewhere."""
    taken: list[bool] = []

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
        exchange = table._exchange
        take = exchange.receive

        def looks(frame: wire.Frame) -> None:
            if frame.kind is wire.Kind.PULLED:
                own = exchange.weights.bytes_of(exchange.partitions[frame.partition])
                taken.append(
                    torch.frombuffer(frame.payload, dtype=torch.uint8).data_ptr()
                    == torch.frombuffer(own, dtype=torch.uint8).data_ptr()
                )
            take(frame)

        exchange.receive = looks
        table.push({"w": torch.full((3000,), -1.0)})
        assert torch.equal(table.pull().result(LIMIT_S).values["w"], torch.ones(3000))
        stale = wire.Frame(kind=wire.Kind.PULLED, step=1)
        assert exchange.landing(stale, 12_000) is None

    run_workers(cluster, body, carrier="uds")
    assert taken
    assert all(taken)


def test_that_weights_are_copied_since_a_shard_was_slow_is_said(monkeypatch: Any):
    """The others were there in time."""
    monkeypatch.setattr(carrier_choice, "GREET_LIMIT_S", 0.01)
    said: list[str] = []
    choice = carrier_choice.CarrierChoice(None, None, said.append)
    choice._chosen(0, Carrier.SHM, [])
    assert not choice.all_take(Carrier.SHM, 2)
    assert said[-1] == (
        "weights are copied, not mapped: 1 of 2 shards were not reached over shm within 0.01 s"
    )
    choice._chosen(1, Carrier.SHM, [])
    assert choice.all_take(Carrier.SHM, 2)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs to become another user")
def test_a_socket_of_another_user_gets_neither_a_token_nor_memory(cluster: Cluster, monkeypatch: Any):
    """Whoever listens under the name of a server that is gone; the next carrier is taken."""
    name = f"ps-test-{secrets.token_hex(8)}"
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]); s.listen();"
        "print('listens', flush=True);"
        "[sys.stdout.buffer.write(it) for it in iter(lambda: s.accept()[0].recv(65536), b'over')]"
    )
    with subprocess.Popen(
        ["/usr/bin/env", "python3", "-c", code, name], user=65534, stdout=subprocess.PIPE, cwd="/"
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with offers(cluster, shm=f"@{name}", uds=f"@{name}"):
            said, sessions = trained(cluster, monkeypatch)
        with socket.socket(socket.AF_UNIX) as last:  # each shard's connections came before
            last.connect(f"\0{name}")
            last.sendall(b"over")
        other.wait(LIMIT_S)
        assert other.stdout.read() == b""
    assert sessions == {"tcp"}
    assert "what listens there is a process of user 65534" in said[0]
