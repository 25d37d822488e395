"""Cuts of a table on one shard: what is kept while it is held, and that it always goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ps_server.agreement.gate import gate_of
from ps_server.shard.table import cuts
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import PushOutOfOrder, StrangerRefused
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.spec.consistency import ASP, BSP, Consistency
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec

ELEMENTS = 1024
KEY = wire.FIRST_READER, 1
LR = {"lr": 1.0, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}


class Outlet:
    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []

    def send(self, message: Message) -> None:
        self.frames.append(wire.decode(message.encoded()))

    def write_along(self, *_: object) -> bool:
        return False

    @property
    def kinds(self) -> list[wire.Kind]:
        return [frame.kind for frame in self.frames]


class Timer:
    """That comes to its end when the test says so."""

    def __init__(self, _name: str, limit_s: float, run: Callable[[], object], **_: object) -> None:
        self.limit_s, self._run = limit_s, run
        self.started = self.cancelled = False

    def start(self) -> None:
        self.started = True

    def cancel(self) -> None:
        self.cancelled = True

    def end(self) -> None:
        assert self.started
        assert not self.cancelled
        self._run()


@pytest.fixture(name="timers")
def _timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    """Those of all cuts, the newest one last."""
    made: list[Timer] = []

    def timer(*given: object, **options: object) -> Timer:
        made.append(Timer(*given, **options))
        return made[-1]

    monkeypatch.setattr(cuts.watched, "timer", timer)
    return made


def table_of(model: Consistency, num_workers: int = 1, partitions: int = 1) -> ShardTable:
    parameter = ParameterSpec(name="w", shape=(ELEMENTS * partitions,), dtype="float32", group=0, device=0)
    hyper = Hyperparameters((tuple(sorted(LR.items())),))
    buckets = BucketOptions(bucket_bytes=1 << 20, first_bucket_bytes=1 << 20, partition_bytes=4 * ELEMENTS)
    spec = TableSpec(
        number=0,
        parameters=(parameter,),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=hyper),
        buckets=buckets,
    )
    table = ShardTable(job="j", spec=spec, plan=Plan(spec, 1), shard=0, gate=gate_of(model))
    assert table.partitions() == tuple(range(partitions))
    for partition in range(partitions):
        load = wire.Frame(kind=wire.Kind.LOAD, partition=partition, payload=bytes(4 * ELEMENTS))
        table.receive(load, Outlet(), member=True)
    table.start()
    for worker in range(num_workers):
        table.join(worker, 1, 0)
    return table


def push(worker: int = 0, step: int = 0, partition: int = 0) -> wire.Frame:
    return wire.Frame(
        kind=wire.Kind.PUSH,
        worker=worker,
        incarnation=1,
        step=step,
        partition=partition,
        payload=bytes(4 * ELEMENTS),
    )


def await_cut(table: ShardTable, outlet: Outlet, partitions: int = 1) -> None:
    meta = b"".join(partition.to_bytes(4, "little") for partition in range(partitions))
    frame = wire.Frame(
        kind=wire.Kind.PULL, worker=KEY[0], incarnation=1, step=KEY[1], flags=wire.CUT, meta=meta
    )
    table.receive(frame, outlet, member=False)


def test_a_shard_without_a_coordinator_gives_a_cut_up_by_itself(timers: list[Timer]) -> None:
    table, outlet = table_of(ASP()), Outlet()
    assert table.cut.hold(KEY) == {0: 0}
    table.receive(push(), outlet, member=True)
    assert not outlet.frames
    (limit,) = timers
    assert limit.limit_s == cuts.HOLD_LIMIT_S
    limit.end()
    assert outlet.kinds == [wire.Kind.ACK]


def test_the_end_of_an_old_cut_leaves_the_limit_of_the_next_one(timers: list[Timer]) -> None:
    """It comes late, from a coordinator that was slow to give the old one up."""
    table, outlet = table_of(ASP()), Outlet()
    table.cut.hold(KEY)
    table.cut.hold((KEY[0], 2))
    table.cut.end(KEY)
    table.receive(push(), outlet, member=True)
    assert not outlet.frames
    assert [timer.cancelled for timer in timers] == [True, False]
    timers[-1].end()
    assert outlet.kinds == [wire.Kind.ACK]


def test_a_cut_is_behind_the_step_that_a_worker_has_pushed_before_it_left() -> None:
    """Its push stays in that step, which can only close behind it: else the cut would never come about."""
    table, outlet = table_of(BSP()), Outlet()
    table.join(1, 1, 0)
    table.receive(push(), outlet, member=True)
    table.leave(0, 1)
    assert table.cut.hold(KEY) == {0: 1, 1: 0}


def test_a_push_that_comes_too_early_is_refused_during_a_hold_as_ever() -> None:
    """Of each worker one push is kept: nobody can make a shard keep more."""
    table, outlet = table_of(ASP()), Outlet()
    table.cut.hold(KEY)
    table.receive(push(), outlet, member=True)
    for step in (1, 2, 3):
        with pytest.raises(PushOutOfOrder):
            table.receive(push(step=step), outlet, member=True)
    assert not outlet.frames
    table.cut.end(KEY)
    assert outlet.kinds == [wire.Kind.ACK]


def test_a_push_that_is_refused_after_a_hold_says_so() -> None:
    """Nobody waits for an answer that does not come."""
    table, outlet = table_of(BSP(), num_workers=2), Outlet()
    table.receive(push(step=0), outlet, member=True)
    table.cut.hold(KEY)
    table.receive(push(step=1), outlet, member=True)  # in BSP, before version 1 is there
    table.cut.end(KEY)
    assert outlet.kinds == [wire.Kind.ACK, wire.Kind.REFUSE]


def test_as_many_workers_as_like_may_wait_for_the_end() -> None:
    """What is kept is given again one after the other, not one inside the other."""
    workers = 400
    table, outlet = table_of(ASP(), num_workers=workers), Outlet()
    table.cut.hold(KEY)
    for worker in range(workers):
        table.receive(push(worker), outlet, member=True)
    assert not outlet.frames
    table.cut.end(KEY)
    assert sorted(frame.worker for frame in outlet.frames) == list(range(workers))
    assert table.cells()[0].machine.version == workers


def test_the_end_says_how_many_partitions_were_not_sent() -> None:
    """One is behind the other: its push has not come."""
    table, outlet = table_of(ASP(), partitions=2), Outlet()
    await_cut(table, outlet, partitions=2)
    table.receive(push(), Outlet(), member=True)
    assert table.cut.hold(KEY) == {0: 1}
    table.cut.arm(KEY, {0: 1})
    assert outlet.kinds == [wire.Kind.ACK, wire.Kind.PULLED]
    assert table.cut.end(KEY) == 1
    table.cut.hold((KEY[0], 2))
    assert table.cut.end((KEY[0], 2)) == 2


def test_a_cut_that_nobody_awaits_was_not_sent() -> None:
    """Its reader's connection broke meanwhile."""
    table, outlet = table_of(ASP()), Outlet()
    await_cut(table, outlet)
    table.forget(outlet)
    table.cut.hold(KEY)
    table.cut.arm(KEY, {0: 0})
    assert table.cut.end(KEY) == 1
    assert outlet.kinds == [wire.Kind.ACK]


def test_a_reader_does_nothing_but_read() -> None:
    table, outlet = table_of(ASP()), Outlet()
    for kind in (wire.Kind.PUSH, wire.Kind.HYPER, wire.Kind.LOAD, wire.Kind.ABSTAIN):
        with pytest.raises(StrangerRefused, match="a reader only reads"):
            table.receive(wire.Frame(kind=kind, worker=KEY[0], incarnation=1), outlet, member=False)
