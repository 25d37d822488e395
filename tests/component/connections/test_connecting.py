"""Whom a connection is made to: the live process of a shard, and no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.shard.connection_tokens import TOKEN_BYTES
from ps_wire.errors import ConnectionLost, JobUnknown, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import MEMORY
from ps_wire.v1 import shard_pb2
from ps_worker.transport.connection import Connection
from tests.component.service import Cluster, run_workers
from tests.until import LIMIT_S


class Service:
    """A shard of some generation, which answers each frame with its HELLO.

    Attributes:
        unknown: so many times it does not know the job.
    """

    def __init__(self, generation: int, *, unknown: int = 0) -> None:
        self.addresses = ["a:1"]
        self.carriers = (MEMORY,)  # nobody looks whether it hangs
        self.generation, self.unknown = generation, unknown
        self.ready = threading.Event()

    def shard(self, _shard: int) -> Any:
        return SimpleNamespace(Open=self._open)

    def _open(self, *_: object, **__: object) -> shard_pb2.OpenReply:
        assert self.ready.wait(LIMIT_S)
        if self.unknown:
            self.unknown -= 1
            raise JobUnknown("shard 0 does not know job 'j'")
        return shard_pb2.OpenReply(token=b"t", generation=self.generation)

    def stream(self, _shard: int, *, introduce: Callable[[], Any], landing: object) -> Any:
        """As `CarrierChoice.stream`."""
        introduce()
        return Hello()


class Hello:
    """A stream that brings the shard's HELLO and then ends when it is told to."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def __iter__(self) -> Any:
        yield wire.Frame(kind=wire.Kind.HELLO)
        self._over.wait(LIMIT_S)

    def cancel(self) -> None:
        self._over.set()

    close = cancel


class Peer:
    """What the connection tells of itself."""

    def __init__(self) -> None:
        self.frames: list[wire.Kind] = []
        self.error: PsError | None = None
        self.said: list[str] = []
        self.heard = threading.Event()

    def receive(self, frame: wire.Frame) -> None:
        self.frames.append(frame.kind)
        self.heard.set()

    def landing(self, frame: wire.Frame, payload_bytes: int) -> None:
        return None

    def replay(self, shard: int) -> list[wire.Frame]:
        return []

    def fail(self, error: PsError) -> None:
        self.error = error
        self.heard.set()


def connected(
    known: int, met: int, *, unknown: int = 0, retry_limit_s: float = 0.05, leaves: bool = False
) -> Peer:
    """A worker that knows of one generation of the shard, and meets another, when it is about to leave."""
    service, peer = Service(met, unknown=unknown), Peer()
    connection = Connection(
        service=service,  # type: ignore[arg-type]
        carriers=service,  # type: ignore[arg-type]
        shard=0,
        job="j",
        worker=0,
        incarnation=1,
        peer=peer,  # type: ignore[arg-type]
        retry_limit_s=retry_limit_s,
        log=peer.said.append,
        generation=known,
    )
    if leaves:
        connection.quiet()
    service.ready.set()
    assert peer.heard.wait(LIMIT_S)
    connection.close()
    return peer


@pytest.mark.parametrize("met", [5, 6])
def test_the_live_process_of_a_shard_or_a_newer_one_is_connected_to(met: int):
    assert connected(5, met).frames == [wire.Kind.HELLO]


def test_a_process_whose_place_another_has_taken_is_not_connected_to():
    """It may not know yet that it is fenced, and what it holds is void."""
    peer = connected(5, 4)
    assert peer.frames == []
    assert isinstance(peer.error, ConnectionLost)
    assert "generation 4; the live one is of 5" in peer.error.message
    assert peer.said == ["connection to shard 0 at a:1 broke; trying again"]


def test_a_shard_that_does_not_know_the_job_is_asked_again():
    """Also by who has never reached it: it was started again since all were let in, or the job has gone."""
    peer = connected(5, 5, unknown=2, retry_limit_s=LIMIT_S)
    assert (peer.frames, peer.error) == ([wire.Kind.HELLO], None)
    assert isinstance(connected(5, 5, unknown=1_000_000).error, ConnectionLost)  # not that there is no job


def test_of_a_worker_that_leaves_it_is_not_said_that_it_is_not_taken_any_more():
    assert connected(5, 4, leaves=True).said == []


@pytest.mark.parametrize("carrier", ["shm", "tcp", "grpc"])
def test_a_shard_that_is_started_again_after_it_gave_a_token_out_is_asked_for_another(
    one_shard: Cluster, carrier: str, monkeypatch: pytest.MonkeyPatch
):
    """The process that HELLO reaches, with what was handed off, did not give the token."""
    shard, made = one_shard.shards[0].shard, []
    make_token = shard.make_token

    def of_the_process_before(*whose: Any) -> bytes:
        made.append(make_token(*whose))
        return bytes(TOKEN_BYTES) if len(made) == 1 else made[-1]

    monkeypatch.setattr(shard, "make_token", of_the_process_before)

    def body(worker: ps.Worker) -> float:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": -torch.ones(30)})
        return float(table.pull().result(LIMIT_S).values["w"][0])

    assert run_workers(one_shard, body, carrier=carrier) == [1.0]
    assert len(made) > 1
