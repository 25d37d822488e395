"""What the carrier `shm` owes beside the frames: who may write which memory, and what is never mapped."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ps_wire.errors import Evicted
from ps_wire.frames import frame as wire
from ps_wire.process import kernels, trace
from ps_wire.sockets import shared_memory
from ps_wire.sockets.frame_socket import MAX_DESCRIPTORS, FrameSocket, close_all
from tests.component.service import Cluster
from tests.until import until

from .bench import BIG, Bench, UnixClient, pull

pytestmark = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="memfd_create is Linux's")
NBYTES = 4 * BIG


class Sharing:
    """A connection of a worker that shares memory, and the worker's side of that memory."""

    def __init__(self, bench: Bench, *, flags: int = wire.SHARED, worker: int = 0) -> None:
        self._worker = worker
        client: UnixClient = bench.connection()
        self._socket = FrameSocket(client.socket)
        self.gradients = Region()
        self.weights = Region()
        hello = wire.decode(bench.hello(bench.shard.make_token(bench.job, worker, 1)))
        self.send(wire.Kind.HELLO, flags=flags, meta=bytes(hello.meta))
        assert self.next().kind is wire.Kind.HELLO

    def send(self, kind: wire.Kind, **fields: Any) -> None:
        self.send_together([{"kind": kind, **fields}])

    def send_together(self, frames: list[dict[str, Any]]) -> None:
        self._socket.send([wire.Frame(worker=self._worker, incarnation=1, **fields) for fields in frames])

    def next(self) -> wire.Frame:
        frame = self._socket.receive()
        assert frame is not None
        return frame

    def share(self, *descriptors: int) -> None:
        self.send(
            wire.Kind.SHARE, descriptors=descriptors or (self.gradients.descriptor, self.weights.descriptor)
        )

    def refused(self) -> str:
        """What the next frame, a REFUSE, says."""
        frame = self.next()
        assert frame.kind is wire.Kind.REFUSE, frame
        return bytes(frame.meta).decode(errors="replace")


class Region:
    def __init__(self, nbytes: int = NBYTES) -> None:
        self.descriptor = shared_memory.create(nbytes)
        self.values = np.frombuffer(mmap.mmap(self.descriptor, nbytes), dtype=np.float32)

    def __del__(self) -> None:
        os.close(self.descriptor)


@pytest.fixture
def in_job(server: Cluster) -> Callable[[Callable[[Bench], None]], None]:
    return lambda test: Bench.run(server, "uds", test)


def test_gradients_are_read_and_weights_written_where_they_lie(in_job: Any):
    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.share()
        for step in range(3):
            peer.gradients.values[:] = -1.0
            peer.send(wire.Kind.PUSH, step=step, flags=wire.SHARED)
            ack = peer.next()
            assert (ack.kind, ack.step) == (wire.Kind.ACK, step)
            assert not ack.flags & wire.LENT  # asp: applied
            assert not peer.weights.values.any() or peer.weights.values[0] == step  # nobody has asked yet
            peer.send(wire.Kind.PULL, step=step + 1, meta=bytes(4))
            pulled = peer.next()
            assert (pulled.kind, pulled.version, len(pulled.payload)) == (wire.Kind.PULLED, step + 1, 0)
            assert pulled.flags & wire.SHARED
            assert (peer.weights.values == step + 1.0).all()

    in_job(test)


def test_weights_are_written_as_they_are_made_where_a_push_comes_with_what_asks_for_them(in_job: Any):
    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.share()
        names: list[str] = []
        trace.install(Spans(names))
        try:
            for step in range(2):
                peer.gradients.values[:] = -1.0
                push = {"kind": wire.Kind.PUSH, "step": step, "flags": wire.SHARED}
                peer.send_together([push, {"kind": wire.Kind.PULL, "step": step + 1, "meta": bytes(4)}])
                assert [peer.next().kind for _ in range(2)] == [wire.Kind.ACK, wire.Kind.PULLED]
                assert (peer.weights.values == step + 1.0).all()
        finally:
            trace.install(None)
        assert names.count("step and copy weights") == (2 if kernels.KERNELS is not None else 0)

    in_job(test)


class Spans:
    """Notes the names of spans."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def span(self, name: str, *_about: Any, **_named: Any) -> contextlib.AbstractContextManager[None]:
        self._names.append(name)
        return contextlib.nullcontext()


def test_a_connection_that_shares_takes_payloads_too(in_job: Any):
    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.send(wire.Kind.PUSH, payload=np.full(BIG, -2.0, dtype=np.float32).tobytes())
        assert peer.next().kind is wire.Kind.ACK
        peer.send(wire.Kind.PULL, step=1, meta=bytes(4))
        pulled = peer.next()
        assert (np.frombuffer(pulled.payload, dtype=np.float32) == 2.0).all()

    in_job(test)


@contextmanager
def _pipe() -> Iterator[int]:
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def _unsealed() -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, NBYTES)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _small() -> Iterator[int]:
    descriptor = shared_memory.create(NBYTES - 4096)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("made", "said"),
    [(_pipe, "no shared memory"), (_unsealed, "size is sealed"), (_small, f"of {NBYTES} bytes was expected")],
)
def test_what_could_kill_its_reader_is_never_mapped(in_job: Any, made: Any, said: str):
    """A peer that truncates what a shard has mapped would end it with SIGBUS."""

    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        with made() as bad:
            for pair in ((bad, peer.weights.descriptor), (peer.gradients.descriptor, bad)):
                peer.share(*pair)
                assert said in peer.refused()
        peer.send(wire.Kind.PUSH, flags=wire.SHARED)
        assert "shares no memory for table 0" in peer.refused()
        peer.share()
        peer.send(wire.Kind.PUSH, flags=wire.SHARED)
        assert peer.next().kind is wire.Kind.ACK

    in_job(test)


def test_sharing_needs_memory_for_what_is_copied_and_a_hello_that_says_so(in_job: Any):
    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.share(peer.gradients.descriptor)
        assert "mapped under plain bsp only" in peer.refused()
        other = Sharing(bench, flags=0)
        other.share()
        assert "its HELLO did not say so" in other.refused()
        other.send(wire.Kind.PUSH, flags=wire.SHARED)
        assert "takes" in other.refused()

    in_job(test)


def test_a_gradient_of_ranks_is_the_mean_of_what_they_have_and_of_who_has_said_so_alone(in_job: Any):
    def test(bench: Bench) -> None:
        peer, ranks = Sharing(bench), [Region(), Region(), Region()]
        own = (peer.gradients.descriptor, peer.weights.descriptor)
        for value, rank in zip((1.0, 2.0, -9.0), ranks, strict=True):
            rank.values[:] = value
        peer.share(*own)
        peer.send(wire.Kind.PUSH, flags=wire.SHARED | wire.RANKS)
        assert "shares no memory of the ranks" in peer.refused()
        for told in (4, 5, 6):
            peer.send(wire.Kind.SHARE, hyper=told, descriptors=(*own, *(it.descriptor for it in ranks)))
            assert ("one or two descriptors" in peer.refused()) == (told > 4)
        peer.send(wire.Kind.SHARE, hyper=3, descriptors=(*own, *(it.descriptor for it in ranks)))
        peer.gradients.values[:] = 5.0
        for step, flags in enumerate((wire.SHARED | wire.RANKS, wire.SHARED)):
            peer.send(wire.Kind.PUSH, step=step, flags=flags)
            assert peer.next().kind is wire.Kind.ACK
        peer.send(wire.Kind.PULL, step=2, meta=bytes(4))
        assert peer.next().kind is wire.Kind.PULLED
        assert (peer.weights.values == 2.0 - 5.0).all()

    in_job(test)


def test_a_partition_outside_the_shared_memory_is_refused(in_job: Any):
    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.share()
        peer.send(wire.Kind.PUSH, flags=wire.SHARED, partition=7)
        assert "no partition 7" in peer.refused()

    in_job(test)


def test_descriptors_are_closed_whatever_comes_of_them(in_job: Any):
    """Mapped, refused, beside frames that take none, more than the system passes on; a mapping keeps one."""

    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.share()
        peer.send(wire.Kind.PULL, meta=bytes(4))
        assert peer.next().kind is wire.Kind.PULLED
        extra = [os.dup(peer.weights.descriptor) for _ in range(MAX_DESCRIPTORS + 3)]
        before = _open_descriptors()
        for _ in range(20):
            peer.share()
            peer.share(peer.gradients.descriptor)
            assert "plain bsp" in peer.refused()
            peer.send(wire.Kind.PULL, meta=bytes(4), descriptors=(peer.weights.descriptor,))
            assert peer.next().kind is wire.Kind.PULLED
            peer.share(*extra)
            assert "one or two descriptors" in peer.refused()
        peer.send(wire.Kind.PUSH, flags=wire.SHARED)
        assert peer.next().kind is wire.Kind.ACK
        assert _open_descriptors() <= before
        close_all(extra)

    in_job(test)


def _open_descriptors() -> int:
    """Of shared memory; those of other tests may be closed meanwhile."""
    gc.collect()
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += entry.readlink().name.startswith("memfd:")
    return found


def test_a_peer_that_shares_and_vanishes_leaves_others_alone(in_job: Any):
    def test(bench: Bench) -> None:
        peer = Sharing(bench)
        peer.share()
        peer.send(wire.Kind.PUSH, flags=wire.SHARED)
        assert peer.next().kind is wire.Kind.ACK
        bench.clients[-1].close()
        client = bench.ready()
        client.send(pull(1))
        assert bench.next(client).kind is wire.Kind.PULLED

    in_job(test)


def _mappings(descriptor: int) -> int:
    """How often this process maps such memory."""
    inode = str(os.fstat(descriptor).st_ino)
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(inode in line.split() for line in lines)


def test_nothing_is_left_of_a_worker_that_was_stopped_and_is_evicted(in_job: Any):
    """It reads nothing, so that its replies are stuck: not its connection stays, and not its memory."""

    def test(bench: Bench) -> None:
        name = {"job": bench.job, "worker": 1, "incarnation": 1}
        bench.shard.members.admit(consistency_text="asp", num_workers=2, clocks={}, reader=False, **name)
        sockets = bench.server.shards[0].sockets
        before = sockets._connections.copy()
        peer = Sharing(bench, worker=1)
        for _ in range(3):
            peer.send(wire.Kind.PULL, meta=bytes(4))
        peer.share()
        until(lambda: _mappings(peer.gradients.descriptor) == 2)
        bench.shard.members.fence(**name)
        bench.shard.members.evict(limits={0: 0}, membership_epoch=1, **name)
        until(lambda: sockets._connections <= before)
        gc.collect()
        assert _mappings(peer.gradients.descriptor) == _mappings(peer.weights.descriptor) == 1
        with pytest.raises(Evicted):
            bench.shard.make_token(bench.job, 1, 1)

    in_job(test)
