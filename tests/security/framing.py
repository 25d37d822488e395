"""Data connections that speak frames which are nearly right, over each carrier, to a real server.

They are a member's, who has said HELLO, or a stranger's. Each sends some frames, ends its side, and reads all
that comes: the shard has to answer or to cut it off, and never to leave it there.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc

from ps_wire.access.channel import CLIENT
from ps_wire.errors import FrameRefused, ProtocolMismatch
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Carrier
from ps_wire.frames.messages import parse_message
from ps_wire.sockets import shared_memory
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.transport.socket_stream import DOORS
from tests.integration.raw import NUMEL, Metadata, RawWorker
from tests.until import LIMIT_S

from .mutation import Mutation

MAX_FRAMES = 16  # of one connection
BUGS = frozenset({"InternalError", "INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED"})
SHARED_BYTES = (4 * NUMEL, 4 * NUMEL, 4096, 0)


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one connection says.

    Attributes:
        messages: frames, or nearly; nothing behind one that cannot be decoded would be looked at.
        descriptors: that go with the first message behind HELLO.
        member: whether it says a good HELLO first.
        rank: of the worker, as whom it says so.
    """

    messages: Sequence[bytes]
    descriptors: Sequence[int]
    member: bool
    rank: int


def storm(
    worker: RawWorker,
    carrier: Carrier,
    seed: str,
    count: int,
    *,
    metadata: Metadata,
    on_sent: Callable[[int], None],
    over: threading.Event,
) -> Counter[str]:
    """Sends at least `count` frames over a carrier, one connection after the other, and reads what comes.

    Args:
        worker: who is a member; nothing else uses it meanwhile.
        carrier: of all connections.
        seed: of what is drawn.
        count: of frames.
        metadata: with which calls are made.
        on_sent: told how many more there are.
        over: ends it early.

    Returns:
        How many answers came of which kind, refusals by the names of their errors; how often a connection was
        cut off, or ended with which status.

    Raises:
        TimeoutError: a connection was left as it was.
    """
    draw = random.Random(seed)
    mutation = Mutation(draw.getrandbits(64), (worker.job,))
    answers: Counter[str] = Counter()
    sent = 0
    with grpc.insecure_channel(worker.servers.addresses[0], options=CLIENT) as channel:
        while sent < count and not over.is_set():
            with _spoken(draw, mutation, worker, shares=carrier is Carrier.SHM) as spoken:
                if carrier is Carrier.GRPC:
                    answers += _call(channel, worker, spoken, metadata)
                else:
                    answers += _connection(worker, carrier, spoken)
            sent += len(spoken.messages)
            on_sent(len(spoken.messages))
    return answers


@contextmanager
def _spoken(draw: random.Random, mutation: Mutation, worker: RawWorker, *, shares: bool) -> Iterator[Spoken]:
    messages: list[bytes] = []
    rank = draw.choice((0, 0, 1))
    for _ in range(draw.randrange(1, MAX_FRAMES + 1)):
        messages.append(_right(draw, worker, rank) if draw.random() < 0.3 else mutation.frame(0, 1, rank))
        try:
            wire.decode(messages[-1])
        except (FrameRefused, ProtocolMismatch):
            break
    descriptors: list[int] = []
    member = draw.random() < 0.8
    if shares and member and draw.random() < 0.7:
        descriptors = [_memory(draw.choice(SHARED_BYTES)) for _ in range(draw.choice((1, 2, 2, 2, 3, 4)))]
        share = wire.Frame(
            kind=wire.Kind.SHARE,
            worker=0,
            rank=rank,
            incarnation=1,
            version=draw.choice((len(descriptors), 2, 2, 1, 0, 9)),
            hyper=draw.choice((0, 0, 1, 2, 3, (1 << 32) - 1)),  # descriptors of the ranks of its group
        )
        messages.insert(0, wire.encode(share))
    try:
        yield Spoken(messages, descriptors, member, rank)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _right(draw: random.Random, worker: RawWorker, rank: int) -> bytes:
    """A frame that is taken, if its step is the next: what is wrong comes before, between and after such."""
    partition = draw.choice([*worker.partitions()])
    listed = {"partition": partition.index, "meta": partition.index.to_bytes(4, "little"), "rank": rank}
    match draw.randrange(5):
        case 0:
            return worker.frame(wire.Kind.PULL, step=draw.randrange(3), **listed)
        case 1:
            return worker.frame(wire.Kind.ABSTAIN, step=draw.randrange(30), **listed)
        case 2:  # its gradient is where the ranks of its group have theirs, if it shares that
            of_ranks = {"payload": b"", "flags": wire.SHARED | wire.RANKS, "rank": rank}
            return worker.push(partition, draw.randrange(30), **of_ranks)
    return worker.push(partition, draw.randrange(30), rank=rank)


def _memory(nbytes: int) -> int:
    """Memory to share; of no byte, the end of a pipe."""
    if nbytes:
        return shared_memory.create(nbytes)
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _connection(worker: RawWorker, carrier: Carrier, spoken: Spoken) -> Counter[str]:
    opened = worker.open(0, spoken.rank)
    (address,) = [offer.address for offer in opened.carriers if offer.name == _offered(carrier)]
    received = bytearray()
    end = "ended"
    with DOORS[carrier](address, worker.servers.addresses[0], LIMIT_S) as connected:
        try:
            if spoken.member:
                flags = wire.SHARED if carrier is Carrier.SHM else 0
                meta = opened.token + worker.job.encode()
                hello = worker.frame(wire.Kind.HELLO, flags=flags, meta=meta, rank=spoken.rank)
                connected.sendall(hello)
            for number, message in enumerate(spoken.messages):
                if number == 0 and spoken.descriptors:
                    socket.send_fds(connected, [message], spoken.descriptors)
                else:
                    connected.sendall(message)
            connected.shutdown(socket.SHUT_WR)
        except ConnectionError:
            end = "cut off"  # and what it was told lies there to be read
        with suppress(ConnectionError):
            while part := connected.recv(1 << 16):
                received += part
    return Counter([end, *map(_answer, _frames(received))])


def _offered(carrier: Carrier) -> str:
    return Carrier.UDS if carrier is Carrier.SHM else carrier


def _frames(received: bytearray) -> Iterator[bytes]:
    """Frames one behind the other; the last one may have been cut off."""
    place = 0
    while len(received) - place >= wire.HEADER_BYTES:
        head = wire.Header(received, place)
        end = place + wire.HEADER_BYTES + head.padded_meta_bytes + head.payload_bytes
        if end > len(received):
            return
        yield bytes(received[place:end])
        place = end


def _call(channel: grpc.Channel, worker: RawWorker, spoken: Spoken, metadata: Metadata) -> Counter[str]:
    messages = [*([worker.hello(0, rank=spoken.rank)] if spoken.member else []), *spoken.messages]
    call = channel.stream_stream("/ps_wire.v1.Shard/Data")(iter(messages), timeout=LIMIT_S, metadata=metadata)
    ended: Counter[str] = Counter()
    try:
        for answer in call:
            ended[_answer(answer)] += 1
        ended["ended"] += 1
    except grpc.RpcError as error:
        ended[error.code().name] += 1
    return ended


def _answer(message: bytes) -> str:
    """The kind of an answer; for a refusal, the name of its error."""
    frame = wire.decode(message)
    if frame.kind is not wire.Kind.REFUSE:
        return frame.kind.name
    return parse_message(pb.Refused, bytes(frame.meta)).error
