"""One connection: its HELLO, then its frames; whatever else comes is refused, counted, and survived."""

from __future__ import annotations

import logging
import mmap
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ps_server.shard.connection_tokens import TOKEN_BYTES
from ps_server.shard.shard import Shard
from ps_server.shard.table.kept_hyperparameters import KeptHyperparameters
from ps_server.shard.transport.behind import Behind
from ps_server.shard.transport.session import Session
from ps_wire.errors import FrameMalformed, InternalError, NonFiniteGradient, StrangerRefused
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.carrier import MEMORY, Carrier, deliver
from ps_wire.frames.frame import Kind
from ps_wire.frames.messages import parse_message, refused_from_proto
from ps_wire.process import kernels, trace
from ps_wire.process.ranks import MAX_SIZE
from ps_wire.sockets import shared_memory
from ps_wire.sockets.shared_memory import Layout
from ps_wire.spec.table import BucketOptions, Hyperparameters
from ps_wire.v1 import coordinator_pb2
from tests.unit.ps_server.tables import Kept, group, table_spec
from tests.until import LIMIT_S

SPEC = table_spec("SGD", group(lr=1.0), shapes=((12,),))


class Wire:
    """A shard with job `j` of two workers, and one connection to it."""

    def __init__(self):
        self.shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
        for worker in range(2):
            self.admit(worker)
        self.shard.open_table("j", SPEC)
        self.connect()

    MODEL = "bsp"

    def admit(self, worker, incarnation=1, *, reader=False):
        self.shard.members.admit(
            job="j",
            consistency_text=self.MODEL,
            num_workers=2,
            worker=worker,
            incarnation=incarnation,
            clocks={},
            reader=reader,
        )

    def connect(self, carrier=MEMORY):
        self.outlet = Kept()
        self.session = Session(self.shard, self.outlet, token_bytes=TOKEN_BYTES, carrier=carrier)

    def send(self, kind, worker=0, incarnation=1, **fields):
        frame = wire.Frame(kind=kind, worker=worker, incarnation=incarnation, **fields)
        return self.session.receive(frame)

    def hello(self, worker=0, incarnation=1, *, token=None, job="j", rank=0):
        token = self.shard.make_token("j", worker, incarnation, rank) if token is None else token
        return self.send(Kind.HELLO, worker, incarnation, rank=rank, meta=token + job.encode())

    def refusal(self):
        """The frame that came last, and the error in it."""
        frame = self.outlet.take()[-1]
        assert frame.kind is Kind.REFUSE
        return frame, refused_from_proto(parse_message(coordinator_pb2.Refused, bytes(frame.meta)))


def test_a_hello_with_its_token_opens_the_connection():
    """The answer carries the shard's generation."""
    it = Wire()
    it.shard.generation = 4
    assert not it.session.authenticated
    assert it.hello()
    (frame,) = it.outlet.take()
    assert (frame.kind, frame.worker, frame.incarnation, frame.generation) == (Kind.HELLO, 0, 1, 4)
    assert it.session.authenticated
    assert it.send(Kind.LOAD, payload=bytes(4096))
    assert [frame.kind for frame in it.outlet.take()] == [Kind.ACK]


def test_an_ack_says_whether_it_is_of_weights_or_of_a_push():
    """The first push is of step 0, and so are weights: who has sent them twice cannot tell by it."""
    it = Wire()
    it.hello()
    it.outlet.clear()
    it.send(Kind.LOAD, payload=bytes(4096))
    it.send(Kind.LOAD, payload=bytes(4096))
    it.shard.start_table("j", 0)
    it.send(Kind.PUSH, payload=bytes(4096))
    acks = [frame for frame in it.outlet.take() if frame.kind is Kind.ACK]
    assert [bool(ack.flags & wire.LOADED) for ack in acks] == [True, True, False]


def used(it):
    token = it.shard.make_token("j", 0, 1)
    assert it.hello(token=token)
    it.connect()
    return {"token": token}


def bad_end(it):
    token = it.shard.make_token("j", 0, 1)
    return {"token": token[:-1] + bytes([token[-1] ^ 1])}


def replaced(it):
    token = it.shard.make_token("j", 0, 1)
    it.admit(0, 2)
    return {"token": token}


@pytest.mark.parametrize(
    "attempt",
    [
        lambda _: {"token": bytes(TOKEN_BYTES)},
        lambda _: {"token": b""},
        lambda it: {"token": it.shard.make_token("j", 1, 1)},
        bad_end,
        lambda it: {"token": it.shard.make_token("j", 0, 1), "incarnation": 2},
        lambda it: {"token": it.shard.make_token("j", 0, 1), "worker": 9},
        lambda it: {"token": it.shard.make_token("j", 0, 1), "job": "k"},
        lambda it: {"token": it.shard.make_token("j", 0, 1), "job": "\N{SNOWMAN}"},
        used,
        replaced,
    ],
    ids=["wrong", "none", "another's", "bad end", "incarnation", "worker", "job", "text", "used", "replaced"],
)
def test_a_hello_without_a_good_token_closes_the_connection(attempt):
    """Whatever is wrong with it; it is counted and nothing is opened."""
    it = Wire()
    wanted = attempt(it)
    before = it.shard.refused_frames
    assert not it.hello(**wanted)
    assert not it.session.authenticated
    assert it.refusal()[1].facts is not None
    assert it.shard.refused_frames == before + 1


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.HELLO])
def test_the_first_frame_is_a_hello(kind):
    """Anything else closes the connection."""
    it = Wire()
    assert not it.send(kind, payload=bytes(4096))
    assert isinstance(it.refusal()[1], StrangerRefused)
    assert it.shard.refused_frames == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" * 4096,
        b"PSv1" + b"\xff" * 60,
        b"PSv1\1c" + bytes(58),
    ],
    ids=lambda data: repr(data[:8]),
)
@pytest.mark.parametrize("authenticated", [False, True])
def test_garbage_closes_the_connection(garbage, authenticated):
    """Refused and counted, before and after HELLO; the shard goes on with others."""
    it = Wire()
    if authenticated:
        it.hello()
    assert not deliver(garbage, it.session)
    it.refusal()
    assert it.shard.refused_frames == 1
    it.connect()
    assert it.hello(1)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": Kind.PUSH, "worker": 1}, "StrangerRefused"),
        ({"kind": Kind.PUSH, "incarnation": 2}, "StaleIncarnation"),
        ({"kind": Kind.PUSH, "table": 3}, "JobUnknown"),
        ({"kind": Kind.PUSH, "partition": 7}, "JobUnknown"),
        ({"kind": Kind.HELLO}, "FrameMalformed"),
        ({"kind": Kind.LOAD, "partition": 7, "step": 5, "payload": bytes(4)}, "PayloadMismatch"),
    ],
    ids=str,
)
def test_a_frame_that_does_not_fit_is_refused_and_the_connection_stays(fields, error):
    """The refusal says which table, partition and step it was about."""
    it = Wire()
    it.hello()
    assert it.send(**fields)
    frame, refused = it.refusal()
    assert type(refused).__name__ == error
    for name in ("table", "partition", "step"):
        assert getattr(frame, name) == fields.get(name, 0)
    assert it.shard.refused_frames == 1


def test_a_job_that_is_gone_is_unknown():
    """Its connections hear of it with their next frame, and close in peace."""
    it = Wire()
    it.hello()
    it.shard.drop("j")
    assert it.send(Kind.PULL, meta=struct.pack("<I", 0))
    assert type(it.refusal()[1]).__name__ == "JobUnknown"
    it.session.closed()


def test_a_closed_connection_is_sent_nothing():
    """Before HELLO there is nothing to forget."""
    it = Wire()
    it.session.closed()
    it.hello()
    it.send(Kind.LOAD, payload=bytes(4096))
    it.shard.start_table("j", 0)
    it.send(Kind.PUSH, payload=bytes(4096))
    it.send(Kind.PULL, step=1, meta=struct.pack("<I", 0))
    first, _ = it.outlet, it.outlet.clear()
    it.session.closed()
    it.connect()
    it.hello(1)
    it.send(Kind.PUSH, 1, payload=bytes(4096))
    assert not first


def test_a_new_connection_retires_the_one_before_it():
    """What was still on its way there is not taken, nor answered; other workers' go on."""
    it = Wire()
    it.hello()
    old, outlet = it.session, it.outlet
    it.connect()
    it.hello(1)
    other = it.session
    it.connect()
    it.hello()
    outlet.clear()
    load = wire.Frame(kind=Kind.LOAD, incarnation=1, payload=bytes(4096))
    assert not old.receive(load)
    assert not outlet
    assert not it.shard.table("j", 0).cells()[0].loaded
    old.closed()
    assert it.session.receive(load)
    assert other.receive(wire.Frame(kind=Kind.LOAD, worker=1, incarnation=1, payload=bytes(4096)))
    assert it.shard.refused_frames == 0


@pytest.mark.skipif(not shared_memory.AVAILABLE, reason="no memory to be lent here")
@pytest.mark.parametrize(("worker", "doubles"), [(0, True), (wire.FIRST_READER, False)])
def test_only_a_members_push_has_a_shard_hold_its_weights_twice(worker, doubles):
    it = Wire()
    if not doubles:
        it.admit(worker, reader=True)
    it.shard.start_table("j", 0)
    it.connect(Carrier.UDS)
    assert it.hello(worker)
    assert it.send(Kind.PUSH, worker, weight=1.0, flags=wire.PULLS, payload=bytes(4096))
    assert [cell.values.doubled for cell in it.shard.table("j", 0).cells()] == [doubles]


def test_a_bug_of_ours_is_loud(caplog, monkeypatch):
    """It is logged with its trace, told to the worker as ours, and the connection is closed."""
    it = Wire()
    it.hello()

    def broken(*_arguments, **_options):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(it.shard.table("j", 0), "receive", broken)
    with caplog.at_level(logging.ERROR):
        assert not it.send(Kind.PUSH, payload=bytes(4096))
    error = it.refusal()[1]
    assert isinstance(error, InternalError)
    assert "ZeroDivisionError: oops" in error.message
    assert "bug while taking a frame" in caplog.text
    assert not isinstance(error, FrameMalformed)


def test_thousands_of_refused_frames_write_few_lines(caplog):
    """And how many there were is said when the connection ends."""
    it = Wire()
    it.hello()
    with caplog.at_level(logging.DEBUG, logger="ps_server"):
        for _ in range(3000):
            it.send(Kind.PUSH, worker=1)
        it.session.closed()
    assert len(caplog.text) < 5000
    assert "job j worker 0: 2990 more of these lines" in caplog.text
    assert it.shard.refused_frames == 3000


def test_who_is_evicted_between_its_token_and_its_connection_gets_none_and_hears_why(caplog):
    """No fence would find that connection: its pushes would come to cells that know no such worker.

    The coordinator has logged why it is gone, and here it is no trouble.
    """
    it = Wire()
    it.shard.start_table("j", 0)
    replace = it.shard.replace_session

    def evicts_first(*args):
        clocks = it.shard.members.fence(job="j", worker=0, incarnation=1)
        it.shard.members.evict(job="j", worker=0, incarnation=1, limits=clocks, membership_epoch=1)
        return replace(*args)

    it.shard.replace_session = evicts_first
    with caplog.at_level(logging.INFO, logger="ps_server"):
        assert not it.hello()
    assert "refused" not in caplog.text
    assert type(it.refusal()[1]).__name__ == "Evicted"
    assert not it.session.authenticated
    assert it.shard.jobs()[0].sessions.live == {}
    it.session.closed()


def test_who_is_fenced_between_its_token_and_its_connection_is_to_come_again():
    """Until the verdict nobody knows what becomes of it."""
    it = Wire()
    replace = it.shard.replace_session

    def fences_first(*args):
        it.shard.members.fence(job="j", worker=0, incarnation=1)
        return replace(*args)

    it.shard.replace_session = fences_first
    assert not it.hello()
    assert it.refusal()[1].retryable
    assert not it.session.authenticated


def test_ranks_of_one_worker_have_a_connection_each_and_a_new_one_retires_that_of_its_rank_alone():
    it = Wire()
    sessions = {}
    for rank in (0, 1, 1):
        it.connect()
        assert it.hello(rank=rank)
        assert it.outlet.take()[-1].rank == rank
        sessions.setdefault(rank, []).append(it.session)

    def takes(session, rank):
        return session.receive(
            wire.Frame(kind=Kind.LOAD, worker=0, incarnation=1, rank=rank, payload=bytes(4096))
        )

    (first,), (before, now) = sessions[0], sessions[1]
    assert [takes(first, 0), takes(before, 1), takes(now, 1)] == [True, False, True]
    assert set(it.shard.jobs()[0].sessions.live) == {(0, 0), (0, 1)}
    now.closed()
    assert set(it.shard.jobs()[0].sessions.live) == {(0, 0)}
    assert takes(first, 0)


def test_a_token_of_one_rank_opens_no_connection_of_another_and_a_frame_says_its_rank():
    it = Wire()
    assert not it.hello(rank=1, token=it.shard.make_token("j", 0, 1, 2))
    assert isinstance(it.refusal()[1], StrangerRefused)

    it.connect()
    assert it.hello(rank=1)
    assert it.send(Kind.LOAD, rank=2, payload=bytes(4096))
    assert "this connection is rank 1's, not 2's" in it.refusal()[1].message


@pytest.mark.parametrize(("worker", "rank"), [(0, MAX_SIZE), (wire.FIRST_READER, 1)])
def test_a_rank_that_no_group_has_gets_no_token(worker: int, rank: int):
    it = Wire()
    it.shard.start_table("j", 0)
    it.admit(wire.FIRST_READER, reader=True)

    with pytest.raises(StrangerRefused, match=f"no rank {rank} of worker"):
        it.shard.make_token("j", worker, 1, rank)


def test_an_eviction_ends_the_connections_of_all_ranks():
    it = Wire()
    severed: list[int] = []
    sessions = []
    for rank in range(3):
        it.connect()
        it.outlet.sever = partial(severed.append, rank)
        assert it.hello(rank=rank)
        sessions.append(it.session)

    limits = it.shard.members.fence(job="j", worker=0, incarnation=1)
    it.shard.members.evict(job="j", worker=0, incarnation=1, limits=limits, membership_epoch=1)

    assert it.shard.jobs()[0].sessions.live == {}
    assert severed == [0, 1, 2]
    for rank, session in enumerate(sessions):
        assert not session.receive(wire.Frame(kind=Kind.LOAD, worker=0, incarnation=1, rank=rank))


def test_hyper_parameters_of_ranks_with_the_same_number_are_told_apart():
    hyper = {rank: Hyperparameters((group(lr=float(rank)),)) for rank in (1, 2)}
    kept = KeptHyperparameters()
    for rank, mine in hyper.items():
        kept.keep((0, rank), 7, mine)

    again = KeptHyperparameters()
    again.load(kept.dump())

    assert [again.get((0, rank), 7) for rank in (1, 2)] == [hyper[1], hyper[2]]
    assert again.get((0, 0), 7) is None


class Lent(Wire):
    """A connection of worker 0 that shares its gradients; three partitions, worker 1 pushes as well."""

    SHAPES = ((3072,),)

    def __init__(self):
        self.shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
        for worker in range(2):
            self.admit(worker)
        options = BucketOptions(bucket_bytes=1 << 20, first_bucket_bytes=1 << 20, partition_bytes=4096)
        self.spec = replace(table_spec("SGD", group(lr=1.0), shapes=self.SHAPES), buckets=options)
        self.shard.open_table("j", self.spec)
        self.table = self.shard.table("j", 0)
        self.connect(Carrier.UDS)
        self.hello(flags=wire.SHARED)
        for partition in range(3):
            self.send(Kind.LOAD, partition=partition, payload=bytes(4096))
        self.table.start()
        self.share()
        self.outlet.take()

    def hello(self, **fields):
        token = self.shard.make_token("j", 0, 1)
        return self.send(Kind.HELLO, meta=token + b"j", **fields)

    def share(self):
        """New memory; returns its values."""
        nbytes = Layout(self.table.plan).nbytes
        descriptor = shared_memory.create(nbytes)
        values = np.frombuffer(mmap.mmap(descriptor, nbytes), dtype=np.float32)
        assert self.send(Kind.SHARE, version=1, descriptors=(descriptor,))
        self.values = values

    def push(self, *partitions, flags=wire.SHARED | wire.LISTED | wire.PULLS, step=0):
        listed = meta.listed(partitions)
        return self.send(Kind.PUSH, flags=flags, partition=partitions[0], step=step, meta=listed)

    def others_push(self, step=0):
        """Worker 1's, with zeros, on all partitions; returns the weights then."""
        outlet = Kept()
        for partition in range(3):
            place = {"partition": partition, "step": step, "worker": 1, "incarnation": 1}
            frame = wire.Frame(kind=Kind.PUSH, payload=bytes(4096), **place)
            self.table.receive(frame, outlet, member=True)
        return [cell.values.now.tolist() for cell in self.table.cells()]


@pytest.mark.skipif(not shared_memory.AVAILABLE, reason="memfd_create is Linux's")
def test_a_list_of_pushes_is_taken_partition_by_partition_each_once():
    """Also where one of it was there before, and where the list comes again: after a break, for instance."""
    it = Lent()
    for step, value in enumerate((2.0, 6.0)):
        it.values[:] = value
        it.push(1, flags=wire.SHARED | wire.LISTED | wire.PULLS, step=step)
        it.push(2, 1, 0, step=step)
        it.push(2, 1, 0, step=step)
        acks = it.outlet.take()
        assert [(ack.kind, ack.partition, ack.step) for ack in acks] == [
            (Kind.ACK, partition, step) for partition in (1, 2, 1, 0, 2, 1, 0)
        ]
        expected = [-1.0, -4.0][step]
        assert it.others_push(step) == [[expected] * 1024] * 3
        ledgers = [cell.ledger(0) for cell in it.table.cells()]
        assert {(ledger.applied, ledger.duplicates) for ledger in ledgers} == {
            (step + 1, step + 1),
            (step + 1, 2 * (step + 1)),
        }
        it.outlet.take()


@pytest.mark.skipif(not shared_memory.AVAILABLE, reason="memfd_create is Linux's")
def test_of_a_list_only_the_partition_is_refused_that_cannot_be_taken():
    it = Lent()
    it.push(1, flags=wire.SHARED | wire.LISTED)
    it.outlet.take()
    it.table.cell(1).owed.owe(0, 1, NonFiniteGradient("owed", step=9))
    it.push(0, 1, 2)
    taken = [(frame.kind, frame.partition) for frame in it.outlet.take()]
    assert taken == [(Kind.ACK, 0), (Kind.REFUSE, 1), (Kind.ACK, 2)]
    assert it.shard.refused_frames == 1


@pytest.mark.skipif(not shared_memory.AVAILABLE, reason="memfd_create is Linux's")
@pytest.mark.parametrize("listed", [(0, 1, 9), (0, 1, 1)])
def test_of_a_list_that_is_none_nothing_is_taken(listed):
    it = Lent()
    assert it.push(*listed)
    assert it.refusal()[0].kind is Kind.REFUSE
    assert not any(cell.machine.staged for cell in it.table.cells())


def test_a_list_of_pushes_needs_shared_memory():
    it = Wire()
    it.hello()
    it.send(Kind.LOAD, payload=bytes(4096))
    it.shard.start_table("j", 0)
    assert it.send(Kind.PUSH, flags=wire.LISTED, meta=meta.listed([0]), payload=bytes(4096))
    assert "shares no memory" in it.refusal()[1].message


@pytest.mark.skipif(not shared_memory.AVAILABLE, reason="memfd_create is Linux's")
def test_gradients_are_read_from_the_memory_that_was_shared_last():
    """Where they lie is looked up once for as long as that is."""
    it = Lent()
    for step, (value, expected) in enumerate([(2.0, -1.0), (4.0, -3.0), (8.0, -7.0)]):
        if step == 2:
            it.share()
        it.values[:] = value
        it.push(0, 1, 2, step=step)
        assert it.others_push(step) == [[expected] * 1024] * 3


class Asked(Lent):
    """A connection of worker 0 that shares gradients and memory for weights; pushes are applied at once."""

    MODEL = "asp"

    def share(self):
        """Gradients of 1, 2 and 3 in the three partitions; weights that nobody has written."""
        nbytes = Layout(self.table.plan).nbytes
        descriptors = tuple(shared_memory.create(nbytes) for _ in range(2))
        self.values, self.weights = (
            np.frombuffer(mmap.mmap(it, nbytes), dtype=np.float32).reshape(3, 1024) for it in descriptors
        )
        assert self.send(Kind.SHARE, descriptors=descriptors)
        self.values[:] = [[1.0], [2.0], [3.0]]
        self.weights[:] = 77.0

    def step(self, *partitions, asked=None, at=0, **fields):
        """Pushes, and right behind them what asks; returns what was done with weights, in order."""
        push = wire.Frame(
            kind=Kind.PUSH,
            incarnation=1,
            flags=wire.SHARED | wire.LISTED,
            step=at,
            partition=partitions[0],
            meta=meta.listed(partitions),
        )
        listed = meta.listed(partitions if asked is None else asked)
        asks = {"kind": Kind.PULL, "incarnation": 1, "step": at + 1, "meta": listed, **fields}
        spans = Spans()
        trace.install(spans)
        try:
            behind = Behind(Coming(wire.Frame(**asks)))
            frame = push
            while frame is not None:
                assert self.session.receive(frame, behind)
                frame = behind.next()
        finally:
            trace.install(None)
        self.names = spans.names
        return [name for name in spans.names if name in ("step and copy weights", "copy weights")]

    def told(self):
        """The partitions whose weights are said to be there, each with its version."""
        frames = [frame for frame in self.outlet.take() if frame.kind is Kind.PULLED]
        assert all(frame.flags & wire.SHARED and not frame.payload for frame in frames)
        return {frame.partition: frame.version for frame in frames}


class Coming:
    """A socket from which these frames come."""

    def __init__(self, *frames):
        self.frames = list(frames)

    def received(self, *, reads=False):
        return self.frames.pop(0) if self.frames else None


class Spans:
    """The names of all spans, in order."""

    def __init__(self):
        self.names = []

    def span(self, name, *_about, **_named):
        self.names.append(name)
        return nullcontext()


ALONG = "step and copy weights" if kernels.KERNELS is not None else "copy weights"
shares = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="memfd_create is Linux's")


@shares
def test_weights_that_are_asked_for_right_behind_a_push_are_written_in_the_pass_of_its_step():
    it = Asked()
    for step in range(2):
        assert it.step(2, 0, 1, at=step) == [ALONG] * 3
        assert it.told() == {2: step + 1, 0: step + 1, 1: step + 1}
        expected = -(step + 1) * it.values
        assert np.array_equal(it.weights, expected)
        assert [cell.values.now.tolist() for cell in it.table.cells()] == expected.tolist()
    assert it.session.sent_bytes == 2 * it.weights.nbytes


@shares
@pytest.mark.parametrize(
    "fields", [{"flags": wire.READ}, {"step": 2}, {"table": 1}, {"worker": 1}, {"meta": b""}]
)
def test_what_asks_for_other_weights_is_taken_behind_all_pushes(fields):
    """Some of these are refused there, as they are anywhere else: then no memory is written."""
    it = Asked()
    assert "step and copy weights" not in it.step(0, 1, **fields)
    assert [cell.machine.version for cell in it.table.cells()] == [1, 1, 0]
    if "flags" not in fields:
        assert (it.weights == 77.0).all()


@shares
def test_what_is_asked_for_beyond_the_pushes_is_answered_behind_them():
    it = Asked()
    it.step(2)
    it.told()
    assert it.step(0, 1, asked=(0, 1, 2)) == [ALONG, ALONG, "copy weights"]
    assert it.told() == {0: 1, 1: 1, 2: 1}
    assert np.array_equal(it.weights, -it.values)


@shares
def test_no_other_workers_push_comes_between_a_push_and_what_asks_behind_it(monkeypatch):
    """Else two connections wait for each other at each partition, and weights are copied once more."""
    it = Asked()
    receive, seen = it.table.receive, []

    def free(cell):
        taken = cell.lock.acquire(blocking=False)
        if taken:
            cell.lock.release()
        return taken

    def looked(frame, *args, **kwargs):
        with ThreadPoolExecutor(1) as another:
            free_there = [another.submit(free, cell).result(LIMIT_S) for cell in it.table.cells()]
        seen.append((frame.kind, frame.partition, free_there))
        receive(frame, *args, **kwargs)

    monkeypatch.setattr(it.table, "receive", looked)
    it.step(2, 0, asked=(2, 0, 1))
    assert seen == [
        (Kind.PUSH, 2, [True, True, False]),
        (Kind.PULL, 2, [True, True, False]),
        (Kind.PUSH, 0, [False, True, True]),
        (Kind.PULL, 0, [False, True, True]),
        (Kind.PULL, 1, [True, True, True]),
    ]


@shares
def test_a_push_of_a_partition_that_is_not_here_is_refused_with_what_asks_behind_it():
    it = Asked()
    it.table._cells.pop(1)
    assert it.step(0, 1, 2) == [ALONG] * 2
    kinds = [(frame.kind, frame.partition) for frame in it.outlet.take() if frame.kind is not Kind.ACK]
    assert kinds == [(Kind.PULLED, 0), (Kind.REFUSE, 1), (Kind.REFUSE, 1), (Kind.PULLED, 2)]


@shares
def test_a_push_that_is_not_finite_is_not_written_and_its_worker_hears_so():
    it = Asked()
    it.values[1, 7] = np.nan
    it.step(0, 1, 2)
    assert it.told() == {0: 1, 2: 1}
    assert not (it.weights[1] == -it.values[1]).any()
    assert it.table.cell(1).values.now.tolist() == [0.0] * 1024


@shares
def test_a_push_that_comes_again_is_not_applied_again_and_what_asks_gets_the_weights():
    it = Asked()
    it.step(0, 1, 2)
    it.weights[:] = 77.0
    it.told()
    assert it.step(0, 1, 2) == ["copy weights"] * 3
    assert it.told() == {0: 1, 1: 1, 2: 1}
    assert np.array_equal(it.weights, -it.values)


class Bounded(Asked):
    MODEL = "ssp:0"


@shares
def test_weights_that_change_while_they_wait_at_the_gate_are_written_again():
    """Under `ssp`, where the other worker's push of that step is what opens it."""
    it = Bounded()
    it.step(0, 1, 2)
    assert it.told() == {}
    it.values[:] = 10.0
    outlet = Kept()
    for partition in range(3):
        payload = np.full(1024, 5.0, dtype=np.float32).tobytes()
        push = wire.Frame(kind=Kind.PUSH, payload=payload, partition=partition, worker=1, incarnation=1)
        it.table.receive(push, outlet, member=True)
    assert it.told() == {0: 2, 1: 2, 2: 2}
    assert it.weights[:, 0].tolist() == [-6.0, -7.0, -8.0]


class Closed(Asked):
    MODEL = "bsp"


@shares
def test_under_bsp_what_asks_comes_behind_all_pushes():
    """So that steps are complete as early as they can be."""
    it = Closed()
    assert it.step(0, 1, 2) == []
    taken = [name for name in it.names if name in ("stage", "take a pull")]
    assert taken == ["stage"] * 3 + ["take a pull"] * 3
    assert it.others_push() == (-it.values / 2).tolist()
    assert it.told() == {0: 1, 1: 1, 2: 1}
    assert np.array_equal(it.weights, -it.values / 2)
