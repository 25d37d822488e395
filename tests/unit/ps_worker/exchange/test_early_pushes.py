"""Buckets of a group that leave in backward: by whom they are pushed, and what is looked at afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.exchange.exchange import Exchange
from ps_worker.group.arrived_weights import Versions
from ps_worker.group.beside import Beside
from ps_worker.group.gradient_reduce import Reduced
from ps_worker.group.lent_gradients import FlatGradients
from ps_worker.optimizer.bucket_gradients import BucketGradients
from ps_worker.optimizer.gradient_changes import Sample
from tests.component.sent import Sent
from tests.unit.ps_worker.group.wires import town
from tests.until import LIMIT_S, until

HYPER = Hyperparameters(((("lr", 0.1),),))
SPEC = TableSpec(
    number=3,
    parameters=tuple(ParameterSpec(name=name, shape=(4, 3)) for name in "abc"),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=HYPER),
    buckets=BucketOptions(bucket_bytes=0, first_bucket_bytes=0),
)
PLAN = Plan(SPEC, 1)  # a bucket for each parameter


class Ranks:
    """A group that has this rank's gradients when `there` is set, and writes its sum over them."""

    sums, descriptors, by_bucket = True, (), False

    def __init__(self, beside: Beside, flat: FlatGradients, owned: Sequence[int]) -> None:
        self.beside = beside
        self.owned = self.brings = owned  # a partition for each bucket
        self.there = threading.Event()
        self.calls: list[tuple[int, str, bool]] = []
        self.abstained: list[int] = []
        self.arrived: list[int] = []
        self._flat = flat

    def arrive(self, step: int) -> None:
        self.arrived.append(step)

    def push(self, bucket: int, *, waits: bool, present: Any, **_: object) -> list[Reduced]:
        assert self.there.wait(LIMIT_S)
        self.calls.append((bucket, threading.current_thread().name, waits))
        self._flat.tensors[bucket].fill_(7.0)
        if bucket not in self.owned:
            return []
        return [Reduced(partitions=[bucket], weight=1.0, present=present, terms=[()])]

    def rest(self) -> list[Reduced]:
        return []

    def abstain(self, step: int) -> list[Reduced]:
        self.abstained.append(step)
        return []

    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[int], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
        _bucket: int | None,
    ) -> Versions:
        """The other rank's are nines."""
        arrive()
        assert not mapped()
        for bucket, flat in enumerate(weights(step)):
            if bucket not in self.owned:
                flat.fill_(9.0)
        return Versions(newest=[step] * PLAN.num_partitions, clock=step, spread=0)


@pytest.fixture(name="group")
def _group() -> Iterator[tuple[Exchange, Ranks, Sent]]:
    with grouped(range(PLAN.num_partitions)) as group:
        yield group


@contextmanager
def grouped(owned: Sequence[int], *, ahead: bool = False) -> Iterator[tuple[Exchange, Ranks, Sent]]:
    """The exchange of one of two ranks, which owns these partitions."""
    made: list[Ranks] = []
    with town(2) as group:
        beside = Beside(group.channels[0], group.aborts[0])

        def make(flat: FlatGradients, *_: object) -> Any:
            made.append(Ranks(beside, flat, owned))
            return made[0]

        exchange = Exchange(table=3, plan=PLAN, worker=5, incarnation=2, start=HYPER, ahead=ahead, ranks=make)
        connection = Sent()
        exchange.connect([connection])  # type: ignore[list-item]
        yield exchange, made[0], connection
        beside.close()


def push(exchange: Exchange, buckets: Sequence[int], step: int, *, early: bool) -> None:
    for bucket in buckets:
        parts = [exchange.partitions[bucket]]
        exchange.push(parts, step=step, weight=1.0, present=[[True]], early=early)


def ack(exchange: Exchange, index: int, step: int) -> None:
    exchange.receive(wire.Frame(kind=wire.Kind.ACK, table=3, partition=index, step=step, worker=5))


def ack_all(exchange: Exchange, step: int) -> None:
    for index in range(PLAN.num_partitions):
        ack(exchange, index, step)


def answer(exchange: Exchange, index: int, value: float, step: int) -> None:
    """The weights of a partition after a step."""
    payload = torch.full((exchange.partitions[index].numel,), value).numpy().tobytes()
    exchange.receive(
        wire.Frame(
            kind=wire.Kind.PULLED,
            table=3,
            partition=index,
            step=step,
            version=step,
            payload=payload,
            worker=5,
        )
    )


def asked(connection: Sent) -> list[list[int]]:
    """What each PULL asks for."""
    return [list(meta.read_listed(frame)) for frame in connection.of(wire.Kind.PULL)]


@pytest.mark.parametrize("ends", ["rest", "abstention"])
def test_a_bucket_that_leaves_early_and_all_behind_it_are_pushed_beside_in_their_order(
    group: tuple[Exchange, Ranks, Sent], ends: str
):
    """Nobody waits for other ranks but the end of the step. The next one, without such a bucket, is plain."""
    exchange, ranks, connection = group
    push(exchange, [1, 0], 0, early=True)
    assert not ranks.arrived
    push(exchange, [2], 0, early=False)
    assert ranks.arrived == [0]
    assert not connection.of(wire.Kind.PUSH)
    ranks.there.set()
    exchange.push_rest(step=0) if ends == "rest" else exchange.abstain(step=0)
    assert ranks.calls == [(bucket, "ps-reduce", True) for bucket in range(3)]
    sent = [it.partition for it in connection.of(wire.Kind.PUSH)]
    assert sent == [0, 1, 2] * (1 if ends == "rest" else 2)  # which sends again what has no answer
    assert ranks.abstained == ([] if ends == "rest" else [0])
    ack_all(exchange, 0)

    push(exchange, range(3), 1, early=False)
    me = threading.current_thread().name
    assert ranks.calls[3:] == [(bucket, me, False) for bucket in range(3)]


def test_weights_of_what_a_rank_owns_are_asked_for_beside_and_shown_when_all_ranks_have_all():
    """Backward reads those of before meanwhile, and so does whoever leaves the group then."""
    with grouped([0, 2], ahead=True) as (exchange, ranks, connection):
        before, memory = exchange.weights, exchange.memory
        ranks.there.set()
        push(exchange, [0], 0, early=True)
        until(lambda: bool(connection.of(wire.Kind.PUSH)))
        ack(exchange, 0, 0)
        assert not asked(connection)  # it would be all that is known to have left
        push(exchange, [1, 2], 0, early=True)
        until(lambda: asked(connection) == [[0]])
        answer(exchange, 0, 5.0, 1)
        exchange.push_rest(step=0)
        ack(exchange, 2, 0)
        exchange.pull(step=1)
        assert asked(connection) == [[0], [2]]
        answer(exchange, 2, 6.0, 1)
        assert exchange.in_flight.all_pulled
        assert exchange.weights is before
        assert not any(map(torch.any, before.tensors))

        exchange.wait_pulled()
        assert exchange.weights is memory.of(1) is not before
        assert [it.unique().tolist() for it in exchange.weights.tensors] == [[5.0], [9.0], [6.0]]
        assert not any(map(torch.any, before.tensors))


def test_where_weights_have_one_place_nothing_is_asked_for_beside():
    with grouped(range(PLAN.num_partitions)) as (exchange, ranks, connection):
        ranks.there.set()
        for bucket in range(3):
            push(exchange, [bucket], 0, early=True)
            until(lambda bucket=bucket: len(connection.of(wire.Kind.PUSH)) == bucket + 1)
            ack(exchange, bucket, 0)
        exchange.push_rest(step=0)
        assert not asked(connection)


def test_who_joins_again_in_the_same_step_asks_for_nothing_that_the_incarnation_before_has_pushed():
    """Servers refuse who asks for weights of a step that it has not pushed."""
    exchange = Exchange(table=3, plan=PLAN, worker=5, incarnation=2, start=HYPER, ahead=True)
    connection = Sent()
    exchange.connect([connection])  # type: ignore[list-item]
    push(exchange, [0, 1], 0, early=True)
    exchange.reenter(4)
    push(exchange, [0], 0, early=True)
    assert not asked(connection)
    ack(exchange, 0, 0)
    push(exchange, [1], 0, early=True)
    assert asked(connection) == [[0]]


@pytest.mark.parametrize("absent", [False, True])
def test_a_sum_over_what_was_sent_is_no_change_of_the_scripts_and_one_past_autograd_is(
    group: tuple[Exchange, Ranks, Sent], absent: bool
):
    exchange, ranks, _ = group
    plan = Plan(
        TableSpec(
            number=3,
            parameters=SPEC.parameters,
            optimizer=SPEC.optimizer,
            buckets=BucketOptions(bucket_bytes=1 << 20, first_bucket_bytes=1 << 20),
        ),
        1,
    )
    exchange = Exchange(
        table=3,
        plan=plan,
        worker=5,
        incarnation=2,
        start=HYPER,
        ranks=lambda flat, *_: Ranks(ranks.beside, flat, [0]),  # type: ignore[arg-type,return-value]
    )
    exchange.connect([Sent()])  # type: ignore[list-item]
    parameters = [torch.nn.Parameter(torch.zeros(4, 3)) for _ in "abc"]
    for number, parameter in enumerate(parameters):
        if not (absent and number == 1):
            parameter.grad = torch.full((4, 3), float(number))
    bucket = BucketGradients(exchange, plan.buckets[0], parameters, list("abc"))
    bucket.copy()
    bucket.leave(late=False, sample=Sample(slice(None), turn=6))  # the third row
    assert exchange._ranks is not None
    exchange._ranks.there.set()  # type: ignore[attr-defined]
    bucket.push(step=0, weight=1.0)
    exchange.push_rest(step=0)
    assert all((it == 7.0).all() for it in exchange.gradients.tensors)

    assert bucket.changed_since_left() is None
    parameters[2].grad.data[2] += 1.0  # type: ignore[union-attr]
    assert bucket.changed_since_left() == "the gradient of 'c' was changed after backward"
