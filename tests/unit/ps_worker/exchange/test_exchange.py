"""What an exchange notes, sends again and waits for; shards are played by the test, frame by frame."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import ConnectionLost, FrameMalformed
from ps_wire.frames import frame as wire
from ps_wire.frames.meta import bitmap
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.exchange.exchange import KEPT_HYPERPARAMETERS, Exchange
from ps_worker.group.gradient_reduce import Reduced
from ps_worker.memory.table_memory import Sharing
from tests.component.sent import Sent
from tests.until import LIMIT_S

HYPER = Hyperparameters(((("lr", 0.1),),))
SPEC = TableSpec(
    number=3,
    parameters=(ParameterSpec(name="a", shape=(40, 70)), ParameterSpec(name="b", shape=(5,))),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=HYPER),
    buckets=BucketOptions(bucket_bytes=0, first_bucket_bytes=0, partition_bytes=4096),
)


def made(num_shards: int = 2) -> tuple[Exchange, list[Sent]]:
    exchange = Exchange(table=3, plan=Plan(SPEC, num_shards), worker=5, incarnation=2, start=HYPER)
    connections = [Sent() for _ in range(num_shards)]
    exchange.connect(connections)  # type: ignore[arg-type]
    return exchange, connections


def push_all(exchange: Exchange, step: int) -> None:
    present = [[True] * len(exchange.plan.pieces(partition)) for partition in exchange.partitions]
    exchange.push(exchange.partitions, step=step, weight=1.0, present=present)


def ack(exchange: Exchange, index: int, step: int) -> None:
    exchange.receive(wire.Frame(kind=wire.Kind.ACK, table=3, partition=index, step=step, worker=5))


def unacked(exchange: Exchange) -> set[int]:
    return {frame.partition for frame in exchange.in_flight.unacked()}


def pulled(exchange: Exchange, index: int, *, step: int, value: float, version: int) -> wire.Frame:
    payload = torch.full((exchange.partitions[index].numel,), value).numpy().tobytes()
    return wire.Frame(
        kind=wire.Kind.PULLED,
        table=3,
        partition=index,
        step=step,
        version=version,
        meta=struct.pack("<IQIQ", 5, step, 6, step + 1),
        payload=payload,
    )


def test_every_frame_goes_to_the_shard_that_holds_the_partition():
    exchange, connections = made()
    push_all(exchange, 0)
    for shard, connection in enumerate(connections):
        assert connection.of(wire.Kind.PUSH)
        for frame in connection.frames:
            assert exchange.partitions[frame.partition].shard == shard
            assert (frame.table, frame.worker, frame.incarnation, frame.step) == (3, 5, 2, 0)
    sent = sum(len(connection.frames) for connection in connections)
    assert unacked(exchange) == set(range(sent))
    assert exchange.bytes_pushed == sum(tensor.nbytes for tensor in exchange.gradients.tensors)


def test_an_ack_ends_one_push_and_a_stale_one_ends_none():
    exchange, _ = made()
    push_all(exchange, 4)
    ack(exchange, 0, 3)
    assert 0 in unacked(exchange)
    ack(exchange, 0, 4)
    ack(exchange, 0, 4)
    assert 0 not in unacked(exchange)
    assert not exchange.in_flight.wait_acked(limit_s=0.01)
    assert exchange.in_flight.wait_acked([0], limit_s=0.0)
    for index in sorted(unacked(exchange)):
        ack(exchange, index, 4)
    assert exchange.in_flight.wait_acked(limit_s=0.0)


def test_replay_is_what_has_no_answer_in_order():
    """Hyper-parameters first, then pushes without ACK, then what is still to be pulled; per shard."""
    exchange, connections = made()
    changed = Hyperparameters(((("lr", 0.5),),))
    exchange.set_hyperparameters(changed)
    push_all(exchange, 0)
    ack(exchange, 0, 0)
    exchange.pull(step=1)
    exchange.receive(pulled(exchange, 0, step=1, value=1.0, version=1))
    for shard, connection in enumerate(connections):
        again = list(exchange.replay(shard))
        sent = connection.of(wire.Kind.PUSH)
        assert [frame.kind for frame in again if frame.kind is wire.Kind.HYPER] == [wire.Kind.HYPER]
        assert again[0].hyper == 1
        assert [frame for frame in again if frame.kind is wire.Kind.PUSH] == [
            frame for frame in sent if frame.partition != 0
        ]
        assert again[-1].kind is wire.Kind.PULL
        asked = struct.unpack(f"<{len(again[-1].meta) // 4}I", again[-1].meta)
        mine = {partition.index for partition in exchange.partitions if partition.shard == shard}
        assert set(asked) == mine - {0}
        assert all(frame.hyper == 1 for frame in again if frame.kind is wire.Kind.PUSH)


def test_replay_of_a_quiet_exchange_is_empty():
    exchange, _ = made()
    assert list(exchange.replay(0)) == list(exchange.replay(1)) == []


def test_hyperparameters_are_sent_to_all_shards_where_they_differ():
    exchange, connections = made()
    exchange.set_hyperparameters(HYPER)
    assert all(not connection.frames for connection in connections)
    for number in range(1, KEPT_HYPERPARAMETERS + 4):
        exchange.set_hyperparameters(Hyperparameters(((("lr", float(number)),),)))
        assert exchange.takes(Hyperparameters(((("lr", float(number)),),)))
    for connection in connections:
        numbers = [frame.hyper for frame in connection.of(wire.Kind.HYPER)]
        assert numbers == list(range(1, KEPT_HYPERPARAMETERS + 4))
    kept = [frame.hyper for frame in exchange.replay(0)]
    assert kept == list(range(4, KEPT_HYPERPARAMETERS + 4))


def test_a_pull_asks_first_layers_first():
    exchange, connections = made()
    exchange.pull(step=0)
    for connection in connections:
        (frame,) = connection.of(wire.Kind.PULL)
        asked = struct.unpack(f"<{len(frame.meta) // 4}I", frame.meta)
        assert list(asked) == sorted(asked, reverse=True)


def test_weights_arrive_in_the_flat_memory_with_version_and_clocks():
    exchange, _ = made()
    exchange.pull(step=2)
    for index in range(exchange.plan.num_partitions):
        exchange.receive(pulled(exchange, index, step=2, value=float(index + 1), version=7 + index))
    exchange.wait_pulled()
    assert exchange.in_flight.versions == [7 + index for index in range(exchange.plan.num_partitions)]
    assert exchange.in_flight.clocks == {5: 2, 6: 3}
    for partition in exchange.partitions:
        assert bool((exchange.weights.partition(partition) == partition.index + 1).all())


def test_stale_answers_are_ignored():
    """Of an earlier step, or of a partition that was answered already."""
    exchange, _ = made()
    exchange.pull(step=2)
    exchange.receive(pulled(exchange, 0, step=1, value=9.0, version=9))
    assert exchange.in_flight.versions[0] == 0
    assert exchange.landing(pulled(exchange, 0, step=1, value=9.0, version=9), 4) is None
    assert bool((exchange.weights.partition(exchange.partitions[0]) != 9.0).all()), (
        "nothing of it was written"
    )
    exchange.receive(pulled(exchange, 0, step=2, value=1.0, version=2))
    exchange.receive(pulled(exchange, 0, step=2, value=9.0, version=9))
    assert exchange.in_flight.versions[0] == 2
    assert bool((exchange.weights.partition(exchange.partitions[0]) == 1.0).all())
    exchange.receive(pulled(exchange, 0, step=3, value=9.0, version=9))
    assert exchange.in_flight.versions[0] == 2


def test_what_is_asked_for_while_an_answer_comes_is_still_waited_for():
    """The answer is to the pull before: its partition is missing, and so is its version."""
    exchange, _ = made()
    exchange.pull(step=2)
    exchange.memory.watch(lambda _: exchange.pull(step=3))
    exchange.receive(pulled(exchange, 0, step=2, value=1.0, version=2))
    exchange.memory.watch(lambda _: None)
    assert exchange.in_flight.versions[0] == 0
    for index in range(1, exchange.plan.num_partitions):
        exchange.receive(pulled(exchange, index, step=3, value=3.0, version=3))
    assert not exchange.all_pulled
    exchange.receive(pulled(exchange, 0, step=3, value=3.0, version=3))
    assert exchange.all_pulled
    assert set(exchange.in_flight.versions) == {3}


def test_memory_that_is_lent_stays_so_however_often_the_push_is_acknowledged():
    """It was sent again over a new connection; only FREE gives the memory back, also where it comes first."""
    exchange, _ = made(num_shards=1)
    push_all(exchange, 0)
    lent = range(exchange.plan.num_partitions)
    for _again in range(2):
        for index in lent:
            frame = wire.Frame(kind=wire.Kind.ACK, flags=wire.LENT, table=3, partition=index, worker=5)
            exchange.receive(frame)
        assert exchange.in_flight.wait_acked(limit_s=0.0)
        assert not exchange.in_flight.all_free
        assert [frame.partition for frame in exchange.replay(0)] == list(lent)
    for index in lent:
        assert not exchange.in_flight.all_free
        exchange.receive(wire.Frame(kind=wire.Kind.FREE, table=3, partition=index, worker=5))
    assert exchange.in_flight.all_free


def test_who_abstains_takes_back_nothing_that_it_has_pushed():
    """Nor what the shards have acknowledged by then: only what has not left abstains."""
    exchange, connections = made()
    first, *others = exchange.partitions
    present = [[True] * len(exchange.plan.pieces(first))]
    exchange.push([first], step=0, weight=1.0, present=present)
    ack(exchange, first.index, 0)
    exchange.abstain(step=0)
    sent = [frame.partition for connection in connections for frame in connection.of(wire.Kind.ABSTAIN)]
    assert sorted(sent) == [partition.index for partition in others]


def test_an_ack_may_come_before_the_push_has_returned():
    """Each push is noted before it leaves."""

    class Quick(Sent):
        def send(self, *frames: wire.Frame) -> None:
            super().send(*frames)
            for frame in frames:
                ack(exchange, frame.partition, frame.step)

    exchange, _ = made(num_shards=1)
    exchange.connect([Quick()])  # type: ignore[list-item]
    push_all(exchange, 0)
    assert exchange.in_flight.wait_acked(limit_s=0.0)


def test_who_has_joined_again_sends_all_as_the_new_incarnation():
    """Also hyper-parameters that were kept, and that a new connection sends first."""
    exchange, connections = made(num_shards=1)
    exchange.set_hyperparameters(Hyperparameters(((("lr", 0.5),),)))
    push_all(exchange, 0)
    exchange.reenter(9)
    assert exchange.in_flight.wait_acked(limit_s=0.0), "what the one before had pushed is over"
    assert [(it.kind, it.incarnation) for it in exchange.replay(0)] == [(wire.Kind.HYPER, 9)]
    connections[0].frames.clear()
    push_all(exchange, 4)
    assert {frame.incarnation for frame in connections[0].frames} == {9}


def test_clocks_never_go_back():
    exchange, _ = made()
    exchange.pull(step=5)
    exchange.receive(pulled(exchange, 0, step=5, value=0.0, version=1))
    exchange.pull(step=4)
    exchange.receive(pulled(exchange, 0, step=4, value=0.0, version=1))
    assert exchange.in_flight.clocks == {5: 5, 6: 6}


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (wire.Frame(kind=wire.Kind.ACK, partition=999), "partition 999"),
        (wire.Frame(kind=wire.Kind.PULLED, partition=0, step=1, payload=b"1234"), "4 bytes"),
    ],
)
def test_an_answer_that_does_not_fit_fails_the_exchange(frame: wire.Frame, text: str):
    exchange, _ = made()
    exchange.pull(step=1)
    exchange.receive(frame)
    with pytest.raises(FrameMalformed, match=text):
        exchange.wait_pulled()


def test_a_failure_ends_every_wait_now_and_later():
    exchange, _ = made()
    push_all(exchange, 0)
    exchange.pull(step=1)
    told: list[Any] = []
    exchange.in_flight.when_acked(told.append)
    exchange.in_flight.when_pulled(told.append)
    raised: list[BaseException] = []

    def waits(wait: Any) -> None:
        try:
            wait()
        except ConnectionLost as error:
            raised.append(error)

    threads = [
        threading.Thread(target=waits, args=(wait,))
        for wait in (exchange.in_flight.wait_acked, exchange.wait_pulled)
    ]
    for thread in threads:
        thread.start()
    first = ConnectionLost("gone")
    exchange.in_flight.fail(first)
    exchange.in_flight.fail(ConnectionLost("gone again"))
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert raised == [first, first]
    assert told == [first, first]
    for later in (
        exchange.in_flight.wait_acked,
        exchange.wait_pulled,
        lambda: exchange.pull(step=2),
        lambda: push_all(exchange, 1),
        lambda: exchange.abstain(step=1),
        exchange.load,
    ):
        with pytest.raises(ConnectionLost) as caught:
            later()
        assert caught.value is first
    exchange.in_flight.when_acked(told.append)
    assert told[-1] is first


def test_callbacks_come_once():
    exchange, _ = made()
    told: list[Any] = []
    exchange.in_flight.when_acked(told.append)
    assert told == [None]
    push_all(exchange, 0)
    exchange.in_flight.when_acked(told.append)
    for index in range(exchange.plan.num_partitions):
        assert len(told) == 1
        ack(exchange, index, 0)
    assert told == [None, None]
    ack(exchange, 0, 0)
    assert told == [None, None]


@given(st.lists(st.booleans(), max_size=70))
def test_a_bitmap_has_the_first_piece_in_the_lowest_bit(present: list[bool]):
    packed = bitmap(present)
    assert len(packed) == (len(present) + 7) // 8
    number = int.from_bytes(packed, "little")
    assert [bool(number >> place & 1) for place in range(len(present))] == present
    assert number < 1 << max(len(present), 1)


def test_a_push_without_any_gradient_has_no_payload():
    exchange, connections = made(1)
    partition = exchange.partitions[0]
    pieces = len(exchange.plan.pieces(partition))
    exchange.push([partition], step=0, weight=1.0, present=[[False] * pieces])
    (frame,) = connections[0].frames
    assert len(frame.payload) == 0
    assert not any(frame.meta)
    assert len(frame.meta) == (pieces + 7) // 8


class Ranks:
    """A group of two, whose rank 1 owns the first partition, and whose shard may read what both have."""

    owned, brings, sums, beside = [0], [0], True, None

    def __init__(self, *_: object) -> None:
        self.descriptors = (8, 9)
        self.asked: list[bool] = []

    def arrive(self, step: int) -> None:
        """Its ranks are played by the test."""

    def push(self, bucket: int, *, apart: bool, present: Any, **_: object) -> list[Reduced]:
        self.asked.append(apart)
        self.ready = [
            Reduced(partitions=[0], weight=1.0, present=present[:1], terms=[TERMS if apart else ()])
        ]
        return []

    def rest(self) -> list[Reduced]:
        return self.ready


TERMS = (memoryview(bytes(4096)), memoryview(bytes(4096)))


@pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")
@pytest.mark.parametrize("sharing", [Sharing.MAPPED, Sharing.COPIED, Sharing.PRIVATE])
def test_a_shard_that_maps_the_weights_gets_the_memory_of_all_ranks_and_adds_up_what_they_have(
    sharing: Sharing,
):
    """And no more once it could not map it: what leaves then is the mean, which lies in flat gradients."""
    exchange = Exchange(
        table=3, plan=Plan(SPEC, 1), worker=5, incarnation=2, start=HYPER, sharing=sharing, ranks=Ranks
    )
    ranks, connection = exchange._ranks, Sent()
    exchange.connect([connection])  # type: ignore[list-item]
    exchange.sharing.share()
    apart = sharing is Sharing.MAPPED
    for frame in connection.of(wire.Kind.SHARE):
        own = len(exchange.memory.descriptors)
        assert (frame.version, frame.hyper) == (own + 2 * apart, 2 * apart)
        assert frame.descriptors[own:] == (8, 9)[: 2 * apart]
    assert bool(connection.of(wire.Kind.SHARE)) == (sharing is not Sharing.PRIVATE)

    push_all(exchange, 0)
    assert not connection.of(wire.Kind.PUSH)
    exchange.push_rest(step=0)
    (frame,) = connection.of(wire.Kind.PUSH)
    assert (frame.terms, frame.nbytes, exchange.bytes_pushed) == (TERMS if apart else (), 4096, 4096)
    assert len(frame.payload) == (0 if apart else 4096)
    ack(exchange, 0, 0)

    exchange.memory.withhold_descriptors()
    assert not [frame for frame in exchange.replay(0) if frame.kind is wire.Kind.SHARE]
    push_all(exchange, 1)
    exchange.push_rest(step=1)
    assert connection.of(wire.Kind.PUSH)[-1].terms == ()
    assert ranks is not None
    assert ranks.asked == [apart, False]  # type: ignore[attr-defined]
