"""Steps that are closed by other threads: what has come between the last push and the closing counts."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch

from ps_server.agreement.gate import gate_of
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import CutAborted, NonFiniteGradient
from ps_wire.frames import frame as wire
from ps_wire.spec.consistency import BSP
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.plan import Plan
from tests.unit.ps_server.tables import Kept, group, table_spec

SPEC = table_spec("SGD", group(lr=1.0), shapes=((16,),))


class Deferred:
    """A table of two workers whose steps close when the test says so."""

    def __init__(self, *, started: bool = True) -> None:
        self.queue: list[Callable[[], None]] = []
        self.outlet = Kept()
        self.table = ShardTable(
            job="j",
            spec=SPEC,
            plan=Plan(SPEC, 1),
            shard=0,
            gate=gate_of(BSP()),
            nonfinite=NonFinite.ERROR,
            opening=1,
            submit=self.queue.append,
        )
        if not started:
            return
        for worker in (0, 1):
            self.table.join(worker, 1, 0)
        self.table.cell(0).loaded = True
        self.table.start()

    @property
    def version(self) -> int:
        return self.table.cell(0).machine.version

    def push(self, worker: int, step: int, value: float = 0.0) -> None:
        payload = torch.full((self.table.plan.partition(0).numel,), value).numpy().tobytes()
        frame = wire.Frame(kind=wire.Kind.PUSH, worker=worker, incarnation=1, step=step, payload=payload)
        self.table.receive(frame, self.outlet, member=True)

    def read(self, flags: int) -> None:
        """Worker 0, who is no member any more, asks for the weights."""
        meta = struct.pack("<I", 0)
        frame = wire.Frame(kind=wire.Kind.PULL, flags=flags, incarnation=1, step=1, meta=meta)
        self.table.receive(frame, self.outlet, member=False)

    def close(self) -> None:
        while self.queue:
            self.queue.pop(0)()


def test_a_step_closes_once_whoever_leaves_meanwhile():
    """A leave completes it again; it is given to the threads once."""
    it = Deferred()
    it.push(0, 0)
    it.push(1, 0)
    it.table.leave(1, 1)
    it.close()
    assert it.version == 1


def test_a_step_that_is_about_to_close_waits_for_the_verdict_over_one_of_its_workers():
    """It was complete when the worker fell silent: whether its push counts is for the coordinator to say."""
    it = Deferred()
    it.push(0, 0)
    it.push(1, 0)
    assert it.table.fence(1, 1) == 1
    it.close()
    assert it.version == 0
    it.table.evict(1, 1, 0, 1)  # it had not come to all partitions
    it.close()
    assert it.version == 1
    assert it.table.ledger(1).dropped == 1
    assert it.table.ledger(0).applied == 1


def test_what_is_handed_off_of_a_push_is_no_longer_the_workers_memory():
    """It goes on writing there when the shard's successor has answered it."""
    it = Deferred()
    memory = bytearray(4 * it.table.plan.partition(0).numel)
    push = wire.Frame(
        kind=wire.Kind.PUSH, flags=wire.SHARED, worker=0, incarnation=1, payload=memoryview(memory)
    )
    it.table.receive(push, it.outlet, member=True)
    (staged,) = it.table.dump(going_on=True).cells[0].machine.staged
    memory[:] = b"\1" * len(memory)
    assert not staged.payload.values.any()
    assert not staged.payload.borrowed


def test_an_error_that_nobody_has_heard_is_handed_on():
    """Its worker gets it at its next step, from the shard's successor."""
    it, successor = Deferred(), Deferred(started=False)
    it.push(0, 0, value=float("nan"))
    it.push(1, 0)
    it.close()
    successor.table.load(it.table.dump(going_on=True), going_on=True)
    successor.table.start()
    with pytest.raises(NonFiniteGradient):
        successor.push(0, 1)
    successor.push(1, 1)


KEY = (0, 1)  # of a cut


def test_a_cut_holds_the_step_before_it_though_no_thread_has_closed_that_yet():
    """All have pushed what is below the cut; its moment comes when that is in the weights."""
    it, taken = Deferred(), []
    it.table.cut.save(KEY, {0: 1, 1: 1}, lambda cell: taken.append(cell.machine.version), limit_s=1000.0)
    it.push(0, 0)
    it.push(1, 0)
    assert taken == []
    it.close()
    assert taken == [1]
    it.table.cut.end(KEY)


def test_a_cut_that_a_worker_has_gone_past_is_none():
    """It has pushed what is not to be in it; the others go on."""
    it = Deferred()
    it.push(0, 0)
    with pytest.raises(CutAborted, match="worker 0 has pushed beyond the cut"):
        it.table.cut.save(KEY, {0: 0, 1: 0}, lambda _: None, limit_s=1000.0)
    it.push(1, 0)
    it.close()
    assert it.version == 1


@pytest.mark.parametrize("flags", [wire.READ, 0])
def test_who_reads_when_all_have_finished_gets_the_last_step(flags: int):
    """Its pushes were acknowledged: the weights have them, though no thread has closed the step yet."""
    it = Deferred()
    for worker in (0, 1):
        it.push(worker, 0)
        it.table.leave(worker, 1)
    it.outlet.clear()
    it.read(flags)
    (pulled,) = it.outlet.take()
    assert (pulled.kind, pulled.version) == (wire.Kind.PULLED, 1)
    it.close()
    assert it.version == 1


def test_who_reads_when_all_have_finished_hears_that_its_last_push_was_not_applied():
    """In `finish()`, where nothing is pushed or pulled any more that could tell it."""
    it = Deferred()
    for worker in (0, 1):
        it.push(worker, 0, value=float("nan"))
        it.table.leave(worker, 1)
    with pytest.raises(NonFiniteGradient):
        it.read(wire.READ)


def test_who_goes_on_before_its_step_has_closed_closes_it():
    """Its last push was acknowledged, so it may send the next one at once."""
    it = Deferred()
    it.push(0, 0)
    it.push(1, 0)
    it.push(0, 1)
    assert it.version == 1
    it.close()
    assert it.version == 1
