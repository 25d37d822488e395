"""Contributions that hold NaN or infinity, on real shard tables, under each choice of a job."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from ps_server.rpc.complaints import MAX_LINES, Complaints
from ps_server.shard.partition.screening import Screen, looks_finite
from ps_wire.errors import NonFiniteGradient
from ps_wire.frames.frame import Kind
from ps_wire.frames.messages import parse_message, refused_from_proto
from ps_wire.process import kernels
from ps_wire.spec.consistency import ASP, BSP, SSP
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.plan import Plan
from ps_wire.v1 import coordinator_pb2 as pb
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

ERROR, SKIP, APPLY = NonFinite.ERROR, NonFinite.SKIP, NonFinite.APPLY
MODELS = pytest.mark.parametrize("model", [BSP(), SSP(1), ASP()], ids=str)
WITHHELD = pytest.mark.parametrize("choice", [ERROR, SKIP])


def spec_of(**options):
    return table_spec("SGD", group(lr=0.1, momentum=0.9, weight_decay=0.01), **options)


def servers_of(spec, choice, *, model=BSP(), num_shards=2, num_workers=2):  # noqa: B008
    return Servers(
        spec,
        draw(spec, 1),
        num_shards=num_shards,
        num_workers=num_workers,
        consistency=model,
        nonfinite=choice,
    )


def step(servers, number, *pushes):
    servers.step(number, pushes, servers.spec.optimizer.hyperparameters)


def spoilt(gradients, value=math.nan, places=None):
    """Copies, with one value of some (default: each) parameter not finite, near its end."""
    gradients = [gradient.clone() for gradient in gradients]
    for place in range(len(gradients)) if places is None else places:
        gradients[place].view(-1)[-1] = value
    return gradients


def all_bad(gradients):
    """So that no partition has a part that could be applied."""
    return [torch.full_like(gradient, math.nan) for gradient in gradients]


def books(servers, worker):
    ledgers = [table.ledger(worker) for table in servers.shards]
    for ledger in ledgers:
        assert ledger.applied + ledger.dropped + ledger.abstained == ledger.received
    return sum(ledger.applied for ledger in ledgers), sum(ledger.abstained for ledger in ledgers)


def stored(servers):
    """What the servers hold, without asking."""
    return [cell.values.now.clone() for table in servers.shards for cell in table.cells()]


# -- whose contribution is left out --------------------------------------------------------------------


@MODELS
@WITHHELD
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_who_sends_nan_counts_as_one_who_abstains(model, choice, dtype):
    """The weights are equal to the bit to those of a run in which it abstained, and so are the books."""
    spec = spec_of(dtype=dtype)
    good, bad = draw(spec, 2), all_bad(draw(spec, 3))
    ran, abstained = (servers_of(spec, choice, model=model, num_workers=3) for _ in range(2))
    pushes = [Push(worker=0, gradients=good), Push(worker=1, gradients=good, weight=3.0)]
    for servers, gradients in ((ran, bad), (abstained, None)):
        step(servers, 0, *pushes, Push(worker=2, gradients=gradients, weight=0.3))
        servers.leave(2)
        step(servers, 1, *pushes)
    assert same(ran.pull(0, 2), abstained.pull(0, 2))
    partitions = ran.plan.num_partitions
    assert books(ran, 2) == books(abstained, 2) == (0, partitions)
    assert books(ran, 0) == (2 * partitions, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_the_partitions_that_hold_it_leave_it_out(value):
    """The last element of the largest parameter is bad: all other partitions apply the contribution."""
    spec = spec_of()
    good, other = draw(spec, 2), draw(spec, 3)
    servers, local = servers_of(spec, SKIP), Local(spec, draw(spec, 1))
    step(servers, 0, Push(worker=0, gradients=good), Push(worker=1, gradients=spoilt(other, value, [4])))
    local.step(
        [Push(worker=0, gradients=good), Push(worker=1, gradients=other)],
        spec.optimizer.hyperparameters,
    )
    assert books(servers, 1) == (servers.plan.num_partitions - 1, 1)
    pulled = servers.pull(0, 1)
    assert same(pulled[:4], local.weights[:4])
    assert pulled[4].isfinite().all()
    assert not same(pulled[4:5], local.weights[4:5])


@MODELS
def test_apply_does_as_it_says(model):
    """NaN is applied and counted as applied; nobody is told."""
    spec = spec_of()
    servers = servers_of(spec, APPLY, model=model)
    step(
        servers, 0, Push(worker=0, gradients=draw(spec, 2)), Push(worker=1, gradients=all_bad(draw(spec, 3)))
    )
    assert all(weight.isnan().all() for weight in servers.pull(0, 1))
    assert books(servers, 1) == (servers.plan.num_partitions, 0)


@MODELS
@WITHHELD
def test_a_step_of_which_nothing_is_left_closes(model, choice):
    """One worker alone, weighted: its clock and in BSP the version advance, the weights keep their bytes."""
    spec = spec_of()
    servers = servers_of(spec, choice, model=model, num_workers=1)
    before = stored(servers)
    step(servers, 0, Push(worker=0, gradients=all_bad(draw(spec, 2)), weight=3.0))
    assert same(stored(servers), before)
    assert books(servers, 0) == (0, servers.plan.num_partitions)
    versions = {cell.machine.version for table in servers.shards for cell in table.cells()}
    assert versions == ({1} if model == BSP() else {0})


def test_a_piece_that_only_the_one_left_out_had_is_skipped():
    """No decay and no momentum there, as if nobody had a gradient."""
    spec = spec_of(shapes=((40,), (50,)))
    servers, local = servers_of(spec, SKIP, num_shards=1), Local(spec, draw(spec, 1))
    mine, theirs = draw(spec, 2), draw(spec, 3)
    step(servers, 0, Push(worker=0, gradients=[mine[0], None]), Push(worker=1, gradients=spoilt(theirs)))
    local.step([Push(worker=0, gradients=[mine[0], None])], spec.optimizer.hyperparameters)
    assert same(servers.pull(0, 1), local.weights)


# -- sums that overflow --------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 2.0)])
@WITHHELD
def test_a_sum_of_finite_values_that_overflows_is_not_applied(choice, weights, caplog):
    """Nobody is to blame: all are counted as abstained, the step closes, and the log says so."""
    caplog.set_level(logging.WARNING, "ps_server")
    spec = spec_of(shapes=((40,),))
    servers = servers_of(spec, choice, num_shards=1)
    huge = [torch.full((40,), 3e38)]
    pushes = [Push(worker=worker, gradients=huge, weight=weights[worker]) for worker in range(2)]
    step(servers, 0, *pushes)
    assert same(servers.pull(0, 1), draw(spec, 1))
    assert books(servers, 0) == books(servers, 1) == (0, 1)
    assert servers.shards[0].cells()[0].machine.version == 1
    assert "the mean of finite gradients overflowed in step 0 on partition 0" in caplog.text


def test_what_is_left_may_still_overflow():
    """One holds NaN, the two others' sum overflows: all three are left out."""
    spec = spec_of(shapes=((40,),))
    servers = servers_of(spec, SKIP, num_shards=1, num_workers=3)
    huge = [torch.full((40,), 3e38)]
    step(servers, 0, *(Push(worker=w, gradients=spoilt(huge) if w == 1 else huge) for w in range(3)))
    assert same(servers.pull(0, 1), draw(spec, 1))
    assert [books(servers, worker) for worker in range(3)] == [(0, 1)] * 3


@MODELS
def test_finite_values_whose_sum_is_not_are_applied(model, monkeypatch):
    """The one reduction of torch that is looked at first may overflow by itself."""
    monkeypatch.setattr(kernels, "KERNELS", None)
    spec = table_spec("SGD", group(lr=1e-38), shapes=((40,),))
    servers = servers_of(spec, ERROR, model=model, num_shards=1, num_workers=1)
    huge = torch.full((40,), 3e38)
    assert not looks_finite(huge)
    before = servers.pull(0, 0)
    step(servers, 0, Push(worker=0, gradients=[huge]))
    (after,) = servers.pull(0, 1)
    torch.testing.assert_close(after, before[0] - 3.0)
    assert books(servers, 0) == (1, 0)


@pytest.mark.parametrize("model", [SSP(1), ASP()], ids=str)
def test_the_weight_of_a_push_overflows_nothing_where_it_has_no_say(model):
    """SSP and ASP apply the gradient as it is."""
    spec = table_spec("SGD", group(lr=1e-38), shapes=((40,),))
    servers = servers_of(spec, ERROR, model=model, num_shards=1, num_workers=1)
    step(servers, 0, Push(worker=0, gradients=[torch.full((40,), 3e38)], weight=1e30))
    assert books(servers, 0) == (1, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_reduction_finds_every_value_that_is_not_finite(dtype):
    """Whatever it is and wherever; short dtypes are summed in a wide one."""
    values = torch.full((1000,), 100.0, dtype=dtype)
    assert looks_finite(values)
    for place in (0, 17, 999):
        for wrong in ((math.nan,), (math.inf,), (-math.inf,), (math.inf, -math.inf)):
            spoilt_values = values.clone()
            for offset, value in enumerate(wrong):
                spoilt_values[place - offset] = value
            assert not looks_finite(spoilt_values)


# -- clipped tables ------------------------------------------------------------------------------------


def test_a_clipped_step_takes_the_norm_of_what_is_left():
    """As in a run in which the sender of NaN abstained."""
    spec = spec_of(clip_grad_norm=0.5)
    good = Push(worker=0, gradients=draw(spec, 2))
    runs = []
    for gradients in (None, all_bad(draw(spec, 3))):
        servers = servers_of(spec, SKIP)
        step(servers, 0, good, Push(worker=1, gradients=gradients))
        runs.append(servers.pull(0, 1))
    assert runs[0] is not None
    assert same(runs[1], runs[0])


def test_a_clipped_step_under_apply_is_torchs():
    """A NaN norm makes every gradient NaN, on all shards."""
    spec = spec_of(clip_grad_norm=0.5)
    servers = servers_of(spec, APPLY)
    step(
        servers,
        0,
        Push(worker=0, gradients=draw(spec, 2)),
        Push(worker=1, gradients=spoilt(draw(spec, 3), places=[1])),
    )
    assert all(weight.isnan().all() for weight in servers.pull(0, 1))


# -- who is told ---------------------------------------------------------------------------------------


def sent(servers, worker):
    """(weights that a worker was sent, errors), by partition, since it last looked."""
    frames = servers.outlets[worker].take()
    refused = [frame for frame in frames if frame.kind is Kind.REFUSE]
    errors = {f.partition: refused_from_proto(parse_message(pb.Refused, bytes(f.meta))) for f in refused}
    return {frame.partition for frame in frames if frame.kind is Kind.PULLED}, errors


def check_told(servers, worker):
    """One partition holds the bad value: its answer is the error, all other answers are weights."""
    weights, errors = sent(servers, worker)
    ((partition, error),) = errors.items()
    assert weights == set(range(servers.plan.num_partitions)) - {partition}
    assert isinstance(error, NonFiniteGradient)
    assert error.facts == {"parameter": "p2", "worker": worker, "table": 0, "step": 0}
    assert f"parameter 'p2' of worker {worker} has non-finite values in step 0" in error.message
    assert "--nonfinite skip" in error.message
    return partition


@MODELS
def test_the_sender_is_told_in_place_of_weights(model):
    """Parameter, worker, step and remedy; the others get theirs."""
    spec = spec_of()
    servers = servers_of(spec, ERROR, model=model)
    bad = Push(worker=1, gradients=spoilt(draw(spec, 3), places=[2]))
    step(servers, 0, Push(worker=0, gradients=draw(spec, 2)), bad)
    assert sent(servers, 1) == (set(), {})
    servers.ask(1, 1)
    check_told(servers, 1)
    assert servers.pull(0, 1) is not None


def test_a_pull_that_waits_for_the_step_is_answered_with_the_error():
    """When the step closes."""
    spec = spec_of()
    servers = servers_of(spec, ERROR)
    step(servers, 0, Push(worker=1, gradients=spoilt(draw(spec, 3), places=[2])))
    servers.ask(1, 1)
    assert sent(servers, 1) == (set(), {})
    step(servers, 0, Push(worker=0, gradients=draw(spec, 2)))
    check_told(servers, 1)


@MODELS
def test_a_connection_that_broke_does_not_lose_the_error(model):
    """Asked again, it is answered again; what is pushed again is acknowledged again."""
    spec = spec_of()
    servers = servers_of(spec, ERROR, model=model)
    bad = Push(worker=1, gradients=spoilt(draw(spec, 3), places=[2]))
    step(servers, 0, Push(worker=0, gradients=draw(spec, 2)), bad)
    servers.ask(1, 1)
    check_told(servers, 1)
    step(servers, 0, bad)
    kinds = [frame.kind for frame in servers.outlets[1].take()]
    assert kinds == [Kind.ACK] * servers.plan.num_partitions
    servers.ask(1, 1)
    check_told(servers, 1)


@MODELS
def test_who_goes_on_without_a_pull_is_told_at_its_next_push(model):
    """Or when it reads after its finish; a later incarnation starts afresh."""
    spec = spec_of(shapes=((40,),))
    servers = servers_of(spec, ERROR, model=model, num_shards=1)
    step(servers, 0, Push(worker=0, gradients=draw(spec, 2)), Push(worker=1, gradients=spoilt(draw(spec, 3))))
    for gradients in (None, draw(spec, 4)):
        with pytest.raises(NonFiniteGradient, match="'p0' of worker 1"):
            step(servers, 1, Push(worker=1, gradients=gradients))
    with pytest.raises(NonFiniteGradient):
        servers.pull(1, 0, read=True)
    (table,) = servers.shards
    table.leave(1, 1)
    table.join(1, 2, 1)
    (cell,) = table.cells()
    cell.read(1, 2, servers.outlets[1], 0, ended=True)
    assert sent(servers, 1) == ({0}, {})


@MODELS
def test_who_is_skipped_is_not_told(model, caplog):
    """It gets weights; the log names the first on each shard, whatever the number of partitions."""
    caplog.set_level(logging.WARNING, "ps_server")
    spec = spec_of()
    servers = servers_of(spec, SKIP, model=model)
    bad = Push(worker=1, gradients=spoilt(draw(spec, 3)))
    step(servers, 0, Push(worker=0, gradients=draw(spec, 2)), bad)
    assert servers.pull(1, 1) is not None
    assert len([line for line in caplog.messages if "of worker 1 has non-finite values" in line]) == 2


def test_what_one_left_open_is_closed_without_it():
    """The others go on once it has left."""
    spec = spec_of()
    servers = servers_of(spec, ERROR)
    step(servers, 0, Push(worker=0, gradients=draw(spec, 2)), Push(worker=1, gradients=spoilt(draw(spec, 3))))
    servers.leave(1)
    step(servers, 1, Push(worker=0, gradients=draw(spec, 4)))
    assert servers.pull(0, 2) is not None


def test_it_is_said_once_for_each_worker_and_step_however_many_partitions_there_are(caplog):
    """Whichever workers' partitions come in between; and a few times a minute, whatever a worker sends."""
    spec = spec_of()
    screen, plan = Screen(ERROR, job="j", spec=spec, complaints=Complaints()), Plan(spec, 1)
    (piece, *_) = plan.pieces(plan.partition(0))
    for _ in range(500):
        for worker in (0, 1):
            screen.found(worker, 1, 3, piece, torch.float32)
    said = [line.partition(" of worker ")[2][:1] for line in caplog.messages]
    assert said == ["0", "1"]
    screen.found(0, 2, 1, piece, torch.float32)
    assert "of worker 0 has non-finite values in step 1:" in caplog.messages[-1], (
        "it joined again, further back"
    )
    for number in range(4, 500):
        screen.found(0, 2, number, piece, torch.float32)
    assert len(caplog.messages) == MAX_LINES
