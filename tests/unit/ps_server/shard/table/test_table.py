"""What a shard's table takes and what it refuses; a refused frame changes nothing."""

from __future__ import annotations

import logging
import struct

import pytest
import torch

from ps_server.agreement.gate import gate_of
from ps_server.shard.table.kept_hyperparameters import KEPT_HYPERPARAMETERS
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import (
    FrameMalformed,
    FrameRefused,
    HyperparametersDiffer,
    JobUnknown,
    PayloadMismatch,
    PushOutOfOrder,
    StaleIncarnation,
    StrangerRefused,
)
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import Kind
from ps_wire.frames.messages import hyperparameters_to_proto
from ps_wire.spec.consistency import ASP, BSP
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters
from tests.unit.ps_server.tables import Kept, bitmap, group, table_spec

# One bucket: 20 + 12 elements at 0 and 32, padded to a granule of 1024; both in partition 0 of shard 0.
SPEC = table_spec("SGD", group(lr=1.0), shapes=((12,), (20,)))
BYTES = 4096
ONES = torch.ones(1024).numpy().tobytes()


class Table:
    """A started table on one shard with members 0 and 1, and what it sends to each."""

    def __init__(self, *, consistency=BSP(), start=True, spec=SPEC, num_shards=1):  # noqa: B008
        self.table = ShardTable(
            job="j", spec=spec, plan=Plan(spec, num_shards), shard=0, gate=gate_of(consistency)
        )
        self.outlets = [Kept(), Kept()]
        for worker in range(2):
            self.table.join(worker, 1, 0)
        if start:
            self.send(Kind.LOAD, payload=bytes(BYTES))
            self.table.start()
            self.outlets[0].clear()

    def send(self, kind, worker=0, *, member=True, incarnation=1, **fields):
        frame = wire.Frame(kind=kind, worker=worker, incarnation=incarnation, **fields)
        self.table.receive(wire.decode(wire.encode(frame)), self.outlets[worker], member=member)

    def hyper(self, number, worker=0, *, rank=0, **values):
        message = hyperparameters_to_proto(Hyperparameters((group(**values),)))
        self.send(Kind.HYPER, worker, rank=rank, hyper=number, meta=message.SerializeToString())

    @property
    def weights(self):
        return self.table.cells()[0].values.now

    @property
    def version(self):
        return self.table.cells()[0].machine.version


def listed(*indices):
    return struct.pack(f"<{len(indices)}I", *indices)


# -- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields", "error", "match"),
    [
        (Kind.PUSH, {"payload": bytes(BYTES - 4)}, PayloadMismatch, "takes 4096 bytes of float32"),
        (Kind.PUSH, {"payload": bytes(BYTES + 4)}, PayloadMismatch, "got 4100 bytes"),
        (Kind.PUSH, {}, PayloadMismatch, "got 0 bytes"),
        (Kind.PUSH, {"payload": bytes(BYTES), "codec": 1}, PayloadMismatch, "with codec 1"),
        (Kind.PUSH, {"payload": bytes(BYTES), "partition": 1}, PayloadMismatch, "partition 1 .* not on this"),
        (Kind.PUSH, {"payload": bytes(BYTES), "partition": 2**32 - 1}, PayloadMismatch, "not on this shard"),
        (Kind.PUSH, {"payload": bytes(BYTES), "meta": b"\1\1"}, FrameMalformed, "bitmap of 2 pieces has 1 b"),
        (Kind.PUSH, {"payload": bytes(BYTES), "hyper": 3}, PayloadMismatch, "no hyper-parameters 3"),
        (Kind.PUSH, {"payload": bytes(BYTES), "weight": 0.0}, PayloadMismatch, "weight of a push"),
        (Kind.PUSH, {"payload": bytes(BYTES), "weight": -1.0}, PayloadMismatch, "weight"),
        (Kind.PUSH, {"payload": bytes(BYTES), "weight": float("nan")}, PayloadMismatch, "weight"),
        (Kind.PUSH, {"payload": bytes(BYTES), "weight": float("inf")}, PayloadMismatch, "weight"),
        (Kind.PUSH, {"payload": bytes(BYTES), "step": 1}, PushOutOfOrder, "its clock here is 0"),
        (Kind.PUSH, {"payload": bytes(BYTES), "incarnation": 2}, StaleIncarnation, "incarnation 2"),
        (Kind.ABSTAIN, {}, FrameMalformed, "ABSTAIN frame lists partitions"),
        (Kind.ABSTAIN, {"meta": b"\0\0\0"}, FrameMalformed, "4 bytes each"),
        (Kind.ABSTAIN, {"meta": listed(0, 9)}, PayloadMismatch, "partition 9"),
        (Kind.PULL, {"meta": b""}, FrameMalformed, "PULL frame lists partitions"),
        (Kind.PULL, {"meta": listed(9)}, PayloadMismatch, "partition 9"),
        (Kind.PULL, {"meta": listed(0), "step": 4}, PushOutOfOrder, "pulls at clock 4"),
        (Kind.LOAD, {"payload": bytes(BYTES), "incarnation": 2}, FrameRefused, "has started"),
        (Kind.HYPER, {"hyper": 1, "meta": b"\xff"}, FrameMalformed, "not a Hyperparameters"),
        (Kind.HELLO, {}, FrameMalformed, "HELLO frame does not go to a shard"),
        (Kind.PULLED, {}, FrameMalformed, "PULLED"),
        (Kind.ACK, {}, FrameMalformed, "ACK"),
        (Kind.REFUSE, {}, FrameMalformed, "REFUSE"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_of_it_is_taken(kind, fields, error, match):
    """Sizes, codecs, places, lists, steps: the error names what was expected; then honest frames go on."""
    it = Table()
    with pytest.raises(error, match=match):
        it.send(kind, **fields)
    assert it.table.ledger(0).received == 0
    assert not it.outlets[0]
    for worker in range(2):
        it.send(Kind.PUSH, worker, payload=ONES)
    assert torch.equal(it.weights[:12], torch.full((12,), -1.0))


def test_a_stranger_pushes_nothing():
    """One who reads only, or has left."""
    it = Table()
    it.table.leave(1, 1)
    with pytest.raises(StrangerRefused):
        it.send(Kind.PUSH, 1, payload=ONES)
    assert it.version == 0


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.PUSH, {"payload": bytes(BYTES)}),
        (Kind.ABSTAIN, {"meta": listed(0)}),
        (Kind.PULL, {"meta": listed(0)}),
    ],
    ids=str,
)
def test_nothing_moves_before_the_table_starts(kind, fields):
    """The job is told that it has not."""
    with pytest.raises(JobUnknown, match="has not started"):
        Table(start=False).send(kind, **fields)


def test_weights_that_nobody_loaded_are_not_sent():
    """Neither to a member nor to a reader."""
    it = Table(start=False)
    with pytest.raises(JobUnknown, match="no weights yet"):
        it.send(Kind.PULL, flags=wire.READ, meta=listed(0))
    it.table.start()
    with pytest.raises(JobUnknown, match="no weights yet"):
        it.send(Kind.PULL, meta=listed(0))


def test_a_load_of_another_size_is_refused():
    """And the weights stay unloaded."""
    it = Table(start=False)
    with pytest.raises(PayloadMismatch):
        it.send(Kind.LOAD, payload=bytes(8))
    assert not it.table.cells()[0].loaded
    it.send(Kind.LOAD, payload=ONES)
    assert [frame.kind for frame in it.outlets[0].take()] == [Kind.ACK]
    assert torch.equal(it.weights, torch.ones(1024))


# -- taken ---------------------------------------------------------------------------------------------


def test_readers_are_answered_at_once_members_at_the_gate():
    """A reader gets the version that there is, with the members' clocks."""
    it = Table()
    it.send(Kind.PUSH, payload=ONES)
    it.outlets[0].clear()
    it.send(Kind.PULL, step=1, meta=listed(0))
    assert not it.outlets[0]
    it.send(Kind.PULL, 1, member=False, step=77, meta=listed(0))
    (frame,) = it.outlets[1].take()
    assert (frame.kind, frame.version, frame.step) == (Kind.PULLED, 0, 77)
    assert list(struct.iter_unpack("<IQ", frame.meta)) == [(0, 1), (1, 0)]
    it.send(Kind.ABSTAIN, 1, meta=listed(0))
    (frame,) = it.outlets[0].take()
    assert (frame.kind, frame.version, frame.step) == (Kind.PULLED, 1, 1)
    assert frame.payload == it.weights.numpy().tobytes()


def test_an_answer_is_a_copy():
    """Later updates do not reach into a reply that is on its way."""
    it = Table()
    it.send(Kind.ABSTAIN, 1, meta=listed(0))
    it.send(Kind.PULL, 1, step=1, meta=listed(0))
    it.outlets[1].clear()
    it.send(Kind.PUSH, payload=ONES)
    then = it.weights.numpy().tobytes()
    for worker in range(2):
        it.send(Kind.PUSH, worker, step=1, payload=ONES)
    frame = it.outlets[1].take()[0]
    assert (frame.version, bytes(frame.payload)) == (1, then)
    assert it.weights.numpy().tobytes() != then


def test_what_a_lost_connection_has_asked_for_is_not_sent_there():
    """The worker asks again over the next one."""
    it = Table()
    it.send(Kind.PUSH, payload=ONES)
    it.send(Kind.PULL, step=1, meta=listed(0))
    gone = it.outlets[0]
    it.table.forget(gone)
    gone.clear()
    it.send(Kind.PUSH, 1, payload=ONES)
    assert it.version == 1
    assert not gone


def test_weights_that_are_loaded_have_no_history():
    """The optimizer begins anew, too: what it had counted was of other weights."""
    spec = table_spec("SGD", group(lr=1.0, momentum=0.9), shapes=((16,),))
    (cell,) = Table(spec=spec, consistency=ASP()).table.cells()
    values, hyper = cell.values, spec.optimizer.hyperparameters.groups[0]
    values.apply(torch.ones(values.now.numel()), [True], hyper)
    assert values.export_state()[0]
    values.set_weights(torch.full((values.now.numel(),), 2.0))
    values.apply(torch.ones(values.now.numel()), [True], hyper)
    assert values.now[:16].tolist() == [1.0] * 16


def test_weights_that_come_again_once_the_table_has_started_are_acknowledged():
    """Who has brought them may have sent them twice; they set nothing."""
    it = Table()
    it.send(Kind.LOAD, payload=ONES)
    assert [frame.kind for frame in it.outlets[0].take()] == [Kind.ACK]
    assert not it.weights.any()


def test_a_lost_connection_gets_nothing_more():
    """What the worker asked for stays; it is sent where it asks again."""
    it = Table(consistency=ASP())
    gone = it.outlets[0]
    it.send(Kind.PUSH, payload=ONES)
    it.table.forget(gone)
    gone.clear()
    it.send(Kind.PUSH, 1, payload=ONES)
    assert not gone
    it.send(Kind.PUSH, payload=ONES)
    assert [frame.kind for frame in gone.take()] == [Kind.ACK]
    assert it.table.ledger(0).duplicates == 1
    assert it.version == 2


@pytest.mark.parametrize("present", [(True, False), (False, True), (False, False)], ids=str)
def test_parameters_without_a_gradient_are_left_alone(present):
    """By the bitmap; with none present no payload travels."""
    it = Table()
    for worker in range(2):
        payload = ONES if any(present) else b""
        it.send(Kind.PUSH, worker, meta=bitmap(present), payload=payload)
    pieces = it.table.cells()[0].pieces
    moved = [bool(it.weights[piece.offset] != 0) for piece in pieces]
    assert moved == list(present)
    assert it.version == 1
    assert it.table.ledger(0).applied == 1


def test_a_partition_without_elements_of_parameters_keeps_step():
    """Padding is versioned as all else is, and has no optimizer."""
    it = Table(spec=table_spec("Adam", group(lr=1.0), shapes=((0,),)))
    for worker in range(2):
        it.send(Kind.PUSH, worker)
        it.send(Kind.PULL, worker, step=1, meta=listed(0))
    assert it.version == 1
    assert it.table.cells()[0].values.optimizer_bytes() == 0
    assert [outlet.take()[-1].kind for outlet in it.outlets] == [Kind.PULLED] * 2


# -- hyper-parameters ----------------------------------------------------------------------------------


def test_hyper_parameters_belong_to_the_pushes_that_name_them():
    """Number 0 is the table's own."""
    it = Table(consistency=ASP())
    it.hyper(1, lr=10.0)
    for step, number in enumerate((1, 0, 1)):
        it.send(Kind.PUSH, step=step, hyper=number, payload=ONES)
    assert it.weights[0] == -21.0
    with pytest.raises(PayloadMismatch, match="worker 1 has sent no"):
        it.send(Kind.PUSH, 1, hyper=1, payload=ONES)


def test_hyper_parameters_belong_to_the_rank_that_has_sent_them():
    it = Table(consistency=ASP())
    it.hyper(1, lr=10.0)
    it.hyper(1, lr=100.0, rank=1)
    for step, rank in enumerate((0, 1, 0)):
        it.send(Kind.PUSH, step=step, hyper=1, rank=rank, payload=ONES)
    assert it.weights[0] == -120.0


def test_the_last_few_hyper_parameters_are_kept():
    """A worker cannot fill the memory with them."""
    it = Table(consistency=ASP())
    for number in range(1, KEPT_HYPERPARAMETERS + 2):
        it.hyper(number, lr=1.0)
    it.send(Kind.PUSH, hyper=2, payload=ONES)
    with pytest.raises(PayloadMismatch, match="no hyper-parameters 1"):
        it.send(Kind.PUSH, step=1, hyper=1, payload=ONES)


def test_hyper_parameters_of_who_has_gone_are_kept_no_more():
    """In order, or evicted."""
    it = Table(consistency=ASP())
    for worker in range(2):
        it.hyper(1, worker, lr=1.0)
    it.table.leave(0, 1)
    assert set(it.table.dump(going_on=True).hyper) == {(1, 0)}
    it.table.fence(1, 1)
    it.table.evict(1, 1, 0, 1)
    assert not it.table.dump(going_on=True).hyper


def test_hyper_parameters_of_another_kind_are_refused():
    """They are checked before they are kept."""
    it = Table()
    with pytest.raises(PayloadMismatch, match="the table has"):
        it.hyper(1, lr=1.0, momentum=0.9)
    with pytest.raises(PayloadMismatch, match="no hyper-parameters 1"):
        it.send(Kind.PUSH, hyper=1, payload=ONES)


def test_hyper_parameters_that_differ_in_a_step_are_counted_and_named_once(caplog):
    """The lowest contributor's are taken, step after step; one warning."""
    it = Table()
    it.hyper(1, worker=1, lr=5.0)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            it.send(Kind.PUSH, 1, step=step, hyper=1, payload=ONES)
            it.send(Kind.PUSH, 0, step=step, payload=ONES)
    assert it.weights[0] == -3.0
    assert it.table.cells()[0].hyper_mismatches == 3
    assert sum("different hyper-parameters" in record.message for record in caplog.records) == 1


def test_a_strict_worker_is_told_that_its_step_took_other_hyper_parameters():
    """In place of the next weights, and at whatever it does after; not the one whose were taken."""
    it = Table()
    it.hyper(1, worker=1, lr=5.0)
    for worker in (0, 1):
        it.send(Kind.PUSH, worker, hyper=worker, flags=wire.STRICT, payload=ONES)
    for worker in (0, 1):
        it.send(Kind.PULL, worker, step=1, meta=listed(0))
    pulled, refused = (outlet.take()[-1] for outlet in it.outlets)
    assert it.weights[0] == -1.0
    assert pulled.kind is Kind.PULLED
    assert (refused.kind, b"worker 0" in bytes(refused.meta)) == (Kind.REFUSE, True)
    it.send(Kind.PUSH, 0, step=1, payload=ONES)
    with pytest.raises(HyperparametersDiffer, match="strict_hyperparameters"):
        it.send(Kind.PUSH, 1, step=1, hyper=1, flags=wire.STRICT, payload=ONES)


def test_figures_add_up_over_partitions():
    """Law 12 in process: applied + dropped + abstained = received."""
    spec = table_spec("SGD", group(lr=1.0), shapes=((3000,),), buckets=BucketOptions(partition_bytes=4096))
    it = Table(spec=spec, start=False)
    for cell in range(3):
        it.send(Kind.LOAD, partition=cell, payload=bytes(BYTES))
    it.table.start()
    for worker, lists in ((0, (0, 1)), (1, (2,))):
        it.send(Kind.ABSTAIN, worker, meta=listed(*lists))
        for partition in {0, 1, 2} - set(lists):
            it.send(Kind.PUSH, worker, partition=partition, payload=ONES)
    for worker, abstained in ((0, 2), (1, 1)):
        ledger = it.table.ledger(worker)
        assert ledger.received == 3
        assert (ledger.applied, ledger.abstained, ledger.dropped) == (3 - abstained, abstained, 0)
    assert it.table.totals().tau == {0: 3}
