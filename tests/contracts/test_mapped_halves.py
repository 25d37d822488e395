"""The shard's side of weights that workers map: whose memory it is, and what a stranger can do with it."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ps_worker as ps
from ps_wire.frames import frame as wire
from ps_wire.sockets import shared_memory
from ps_wire.sockets.frame_socket import FrameSocket, close_all
from tests.component.service import Cluster, fresh_name, run_workers

from .bench import Bench, UnixClient

pytestmark = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="no memfd_create here")

ELEMENTS = 4096
LIST = (0).to_bytes(4, "little")


class Peer:
    """A connection of worker 0 that shares its gradients and maps the shard's halves."""

    def __init__(self, bench: Bench) -> None:
        client: UnixClient = bench.connection()
        self.socket = FrameSocket(client.socket)
        self.descriptor = shared_memory.create(4 * ELEMENTS)
        self.gradients = np.frombuffer(mmap.mmap(self.descriptor, 4 * ELEMENTS), dtype=np.float32)
        self.send(wire.Kind.HELLO, flags=wire.SHARED, meta=bytes(wire.decode(bench.hello()).meta))
        assert self.next().kind is wire.Kind.HELLO

    def send(self, kind: wire.Kind, **fields: Any) -> None:
        self.socket.send([wire.Frame(kind=kind, worker=0, incarnation=1, **fields)])

    def next(self) -> wire.Frame:
        frame = self.socket.receive()
        assert frame is not None
        return frame

    def share(self) -> tuple[int, ...]:
        """Descriptors of the halves."""
        self.send(wire.Kind.SHARE, descriptors=(self.descriptor,))
        frame = self.next()
        assert (frame.kind, frame.partition, len(frame.descriptors)) == (wire.Kind.SHARE, 0, 2)
        return frame.descriptors

    def step(self, step: int, value: float) -> None:
        """Pushes and pulls."""
        self.gradients[:] = value
        self.send(wire.Kind.PUSH, step=step, version=step, flags=wire.SHARED | wire.PULLS)
        self.send(wire.Kind.PULL, step=step + 1, meta=LIST)
        ack, pulled = self.next(), self.next()
        assert (ack.kind, ack.flags & wire.LENT) == (wire.Kind.ACK, wire.LENT)
        assert (pulled.kind, pulled.version) == (wire.Kind.PULLED, step + 1)
        assert (len(pulled.payload), pulled.flags & wire.SHARED) == (0, wire.SHARED)


def halves_of(descriptors: tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    return [
        np.frombuffer(mmap.mmap(descriptor, 4 * ELEMENTS, prot=mmap.PROT_READ), dtype=np.float32)
        for descriptor in descriptors
    ]


@pytest.fixture
def in_job(server: Cluster) -> Callable[[Callable[[Peer], None]], None]:
    """Runs a test as the only worker of a bsp job whose table holds zeros; SGD with lr 1."""

    def run(test: Callable[[Peer], None]) -> None:
        job = fresh_name()

        def body(worker: ps.Worker) -> None:
            worker.table({"w": torch.zeros(ELEMENTS)}, optimizer=ps.SGD(lr=1.0))
            bench = Bench(server, job, UnixClient)
            try:
                test(Peer(bench))
            finally:
                for client in bench.clients:
                    client.close()

        run_workers(server, body, job=job)

    return run


def test_versions_alternate_between_the_halves_and_the_one_before_stays(in_job: Any):
    def test(peer: Peer) -> None:
        descriptors = peer.share()
        halves = halves_of(descriptors)
        for step in range(5):
            before = halves[step & 1].copy()
            peer.step(step, -1.0)
            assert (halves[step & 1] == before).all()
            assert (halves[~step & 1] == step + 1.0).all()
        close_all(descriptors)

    in_job(test)


def test_a_version_in_which_nothing_is_applied_is_in_its_half_too(in_job: Any):
    def test(peer: Peer) -> None:
        halves = halves_of(peer.share())
        peer.step(0, -3.0)
        peer.send(wire.Kind.ABSTAIN, step=1, meta=LIST)
        peer.send(wire.Kind.PULL, step=2, meta=LIST)
        assert peer.next().kind is wire.Kind.ACK
        assert peer.next().version == 2
        assert (halves[0] == 3.0).all()

    in_job(test)


def test_who_knows_that_the_job_has_ended_is_told_where_it_maps_the_weights(in_job: Any):
    """They change no more, so nothing is copied; where it maps nothing any more, they come."""

    def test(peer: Peer) -> None:
        halves = halves_of(peer.share())
        peer.step(0, -2.0)
        peer.send(wire.Kind.PULL, flags=wire.READ, meta=LIST)
        pulled = peer.next()
        assert (pulled.version, len(pulled.payload), pulled.flags & wire.SHARED) == (1, 0, wire.SHARED)
        assert (halves[1] == 2.0).all()
        peer.send(wire.Kind.SHARE)
        peer.send(wire.Kind.PULL, flags=wire.READ, meta=LIST)
        pulled = peer.next()
        assert (np.frombuffer(pulled.payload, dtype=np.float32) == 2.0).all()

    in_job(test)


def test_nobody_but_the_shard_can_write_or_resize_the_halves(in_job: Any):
    def test(peer: Peer) -> None:
        for descriptor in peer.share():
            with pytest.raises(PermissionError):
                mmap.mmap(descriptor, 4 * ELEMENTS)
            with pytest.raises(PermissionError):
                os.write(descriptor, b"x")
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, 0)
            with pytest.raises(PermissionError):
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            os.close(descriptor)

    in_job(test)


def test_a_share_without_descriptors_lets_go_and_payloads_come_again(in_job: Any):
    def test(peer: Peer) -> None:
        peer.share()
        peer.step(0, -1.0)
        peer.send(wire.Kind.SHARE)
        peer.send(wire.Kind.PULL, step=1, meta=LIST)
        pulled = peer.next()
        assert (np.frombuffer(pulled.payload, dtype=np.float32) == 1.0).all()
        peer.send(wire.Kind.PUSH, step=1, version=1, flags=wire.SHARED)
        assert peer.next().kind is wire.Kind.REFUSE

    in_job(test)


def test_a_second_share_gives_the_same_halves(in_job: Any):
    def test(peer: Peer) -> None:
        first, second = peer.share(), peer.share()
        assert [os.fstat(one).st_ino for one in first] == [os.fstat(other).st_ino for other in second]
        close_all([*first, *second])

    in_job(test)
