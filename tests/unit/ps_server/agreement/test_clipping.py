"""The mean gradient clipped by its norm over all shards, on real shard tables: as in one process."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ps_server.agreement.clipping import Clipping, Norm, coefficient, holders
from ps_server.coordinator.fleet.ballots import Ballots
from ps_wire.spec.plan import Plan
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

ONE_PAGE = {"shapes": ((7,),)}


def spec_of(max_norm=1.0, lr=0.1, **options):
    return table_spec("SGD", group(lr=lr, momentum=0.9), clip_grad_norm=max_norm, **options)


def pushes_of(spec, step, num_workers=3):
    """One worker lacks a gradient, another abstains at step 2, weights differ."""
    pushes = []
    for worker in range(num_workers):
        gradients = [gradient / (1 + 9 * step) for gradient in draw(spec, 10 * step + worker)]
        gradients = [None, *gradients[1:]] if worker == 0 else gradients
        abstains = step == 2 and worker == 1
        pushes.append(
            Push(worker=worker, gradients=None if abstains else gradients, weight=(1.0, 3.0, 0.5)[worker])
        )
    return pushes


def run(spec, *, num_shards, order=0, steps=4):
    start = draw(spec, 1)
    servers = Servers(spec, start, num_shards=num_shards, num_workers=3, seed=order)
    local = Local(spec, start)
    for step in range(steps):
        pushes = pushes_of(spec, step)
        servers.step(step, pushes, spec.optimizer.hyperparameters)
        local.step(pushes, spec.optimizer.hyperparameters)
        pulled = servers.pull(0, step + 1)
        assert pulled is not None
        yield pulled, local.weights


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("max_norm", [1.0, 1e6, 20.0])
def test_a_clipped_step_is_that_of_one_process(num_shards, dtype, max_norm):
    """Equal to `clip_grad_norm_` of the averaged gradient, where it clips and where it does not."""
    for ours, theirs in run(spec_of(max_norm, dtype=dtype), num_shards=num_shards):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_clipping_changes_the_step():
    """Otherwise the test above would say nothing."""
    clipped = list(run(spec_of(1.0), num_shards=2))
    free = list(run(spec_of(1e6), num_shards=2))
    assert not same(clipped[0][0], free[0][0])


def test_a_clipped_step_does_not_depend_on_arrival_order():
    """Squares are added in partition order, then in shard order: same bytes."""
    runs = [[ours for ours, _ in run(spec_of(), num_shards=2, order=order)] for order in (1, 2, 3)]
    for one, *others in zip(*runs, strict=True):
        assert all(same(one, other) for other in others)


@pytest.mark.parametrize("squares", [0.0, 1e-30, 0.25, 1.0, 1.1, 1e30, math.inf, math.nan])
def test_the_coefficient_is_torchs(squares):
    """Never above 1; an infinite norm gives 0, and a NaN one NaN."""
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.full((1,), math.sqrt(squares), dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    ours = coefficient(1.0, squares) * math.sqrt(squares)
    np.testing.assert_allclose(ours, parameter.grad.item(), rtol=1e-12)
    assert math.isnan(coefficient(1.0, squares)) == math.isnan(squares)


def test_no_shard_closes_a_step_before_all_have_it():
    """A pull waits although its shard has every push; then all shards close with one scale."""
    spec = spec_of(1.0)
    servers = Servers(spec, draw(spec, 1), num_shards=2)
    before = servers.pull(0, 0)
    held = []
    servers.report = lambda shard, norm: held.append((shard, norm))
    servers.step(0, [Push(worker=0, gradients=draw(spec, 2))], spec.optimizer.hyperparameters)
    assert sorted(shard for shard, _ in held) == [0, 1]
    assert servers.pull(0, 1) is None
    assert same(servers.pull(0, 1, read=True), before)
    first, second = (Servers.report(servers, *report) for report in held)
    assert first is second is None
    after = servers.pull(0, 1)
    assert after is not None
    moved = math.sqrt(sum(((a - b) ** 2).sum().item() for a, b in zip(after, before, strict=True)))
    assert moved == pytest.approx(0.1, rel=1e-5)  # lr times the largest norm


def test_a_member_that_leaves_completes_a_clipped_step():
    """On all shards, and what it pushed counts."""
    spec = spec_of(0.5)
    gradients = draw(spec, 2)
    servers, other = (Servers(spec, draw(spec, 1), num_shards=2, num_workers=n) for n in (2, 1))
    for each in (servers, other):
        each.step(0, [Push(worker=0, gradients=gradients)], spec.optimizer.hyperparameters)
    assert servers.pull(0, 1) is None
    servers.leave(1)
    assert same(servers.pull(0, 1), other.pull(0, 1))


def test_a_leave_while_the_decision_is_awaited_changes_nothing():
    """The step closes with what its members had pushed, once."""
    spec = spec_of(0.5)
    runs = []
    for leaves in (False, True):
        servers = Servers(spec, draw(spec, 1), num_shards=2, num_workers=2)
        held = []
        servers.report = lambda shard, norm, held=held: held.append((shard, norm))
        pushes = [Push(worker=worker, gradients=draw(spec, worker)) for worker in range(2)]
        servers.step(0, pushes, spec.optimizer.hyperparameters)
        if leaves:
            servers.leave(1)
        assert len(held) == 2
        for report in held:
            Servers.report(servers, *report)
        runs.append(servers.pull(0, 1))
        assert all(table.ledger(1).applied == len(table.cells()) for table in servers.shards)
    assert runs[0] is not None
    assert same(runs[1], runs[0])


def test_a_decision_that_comes_again_is_not_taken_twice():
    """Nor one of a step that is not complete."""
    spec = spec_of(1.0)
    servers = Servers(spec, draw(spec, 1), num_shards=2)
    servers.step(0, [Push(worker=0, gradients=draw(spec, 2))], spec.optimizer.hyperparameters)
    after = servers.pull(0, 1)
    for step in (0, 1, 7):
        servers.shards[0].closer.decide(step, 1.0)
    assert same(servers.pull(0, 1), after)
    assert servers.shards[0].closer.undecided() is None


def test_a_suspended_clipped_job_can_go_on():
    """All leave a step that one partition has and another has not: it closes when somebody is back."""
    spec = spec_of(1.0, shapes=((20000,), (20000,)))
    servers = Servers(spec, draw(spec, 1), num_shards=2)
    frames = servers.frames(0, Push(worker=0, gradients=draw(spec, 2)))
    servers._give(frames[0].partition, frames[0])
    servers.leave(0)
    assert [table.closer.undecided() for table in servers.shards] == [None, None]
    for table in servers.shards:
        table.join(0, 2, 1)
    versions = {cell.machine.version for table in servers.shards for cell in table.cells()}
    assert versions == {1}


# -- the coordinator -----------------------------------------------------------------------------------


def norm(step, squares=4.0, opening=1, **fields):
    return Norm(**{"job": "j", "table": 0, "opening": opening, "step": step, "squares": squares, **fields})


def opened(spec=None, num_shards=2):
    decisions = Ballots(num_shards)
    decisions.opened("j", spec or spec_of(1.0), 1)
    return decisions


def said(decisions, shard, norm):
    """The scale that follows from a norm, and the shards that it goes to; None: none does."""
    found = decisions.reported(shard, norm)
    if not found:
        return None
    (made,) = found
    assert made.beside
    return made.order.decide, made.shards


def test_a_step_is_decided_when_all_shards_have_reported_it():
    """With the norm over all of them, for all of them; a shard that reports twice counts once."""
    decisions = opened()
    assert said(decisions, 1, norm(0, 7.0)) is None
    assert said(decisions, 1, norm(0, 7.0)) is None
    decide, shards = said(decisions, 0, norm(0, 9.0))
    assert shards == (0, 1)
    assert (decide.job, decide.table, decide.opening, decide.step) == ("j", 0, 1, 0)
    assert decide.scale == coefficient(1.0, 16.0)


def test_shards_squares_are_added_in_their_order():
    """Not in the order in which reports come: each run decides the same scale, to the bit."""
    squares = [1.0, *[2**-53] * 3]
    last_first = opened(spec_of(1.0, shapes=((80_000,),)), len(squares))
    for shard in reversed(range(1, len(squares))):
        assert said(last_first, shard, norm(0, squares[shard])) is None
    decide, shards = said(last_first, 0, norm(0, squares[0]))
    assert shards == tuple(range(len(squares)))
    assert decide.scale == coefficient(1.0, sum(squares)) != coefficient(1.0, sum(reversed(squares)))


def test_a_shard_that_has_not_heard_a_decision_is_told_again():
    """The same one, alone; the next step goes on."""
    decisions = opened()
    said(decisions, 0, norm(0))
    decide, _ = said(decisions, 1, norm(0))
    assert said(decisions, 1, norm(0, 99.0)) == (decide, (1,))
    assert said(decisions, 0, norm(1)) is None
    again, shards = said(decisions, 1, norm(1))
    assert (again.step, shards) == (1, (0, 1))


@pytest.mark.parametrize(
    "wrong",
    [norm(1), norm(2**63), norm(0, opening=2), norm(0, job="k"), norm(0, table=1)],
    ids=["ahead", "far ahead", "another opening", "another job", "another table"],
)
def test_a_report_out_of_place_is_no_part_of_a_decision(wrong):
    """A step that is not open, a table that was made before, a stranger."""
    decisions = opened()
    assert said(decisions, 0, wrong) is None
    assert said(decisions, 1, norm(0)) is None
    assert said(decisions, 7, norm(0)) is None
    assert said(decisions, 0, norm(0)) is not None


def test_a_norm_with_an_evicted_worker_in_it_enters_no_scale():
    """Whether it has come before the first report of the new epoch, or comes again after it."""
    decisions = opened()
    assert said(decisions, 0, norm(0, 900.0)) is None
    assert said(decisions, 1, norm(0, 7.0, membership_epoch=1)) is None
    assert said(decisions, 0, norm(0, 900.0)) is None
    decide, _ = said(decisions, 0, norm(0, 2.0, membership_epoch=1))
    assert decide.scale == coefficient(1.0, 9.0)


def test_a_shard_reports_the_norm_of_those_who_are_left():
    """The step that it had reported is looked at again; what comes of it is of the new epoch."""
    clipping = Clipping(2)
    for index in (0, 1):
        clipping.complete(3, index, 900.0)
    assert clipping.poll() == (3, 1800.0, 0)
    clipping.reopen(1)
    assert clipping.undecided() is None
    assert not clipping.decided(3)
    clipping.complete(3, 1, 2.0)
    assert clipping.poll() is None
    clipping.complete(3, 0, 1.0)
    assert clipping.poll() == (3, 3.0, 1)
    assert clipping.poll() is None


def test_a_shard_without_a_part_of_the_table_is_not_waited_for():
    """A table of one page is on one shard, however many there are, and that one decides alone."""
    spec = spec_of(1.0, **ONE_PAGE)
    assert holders(Plan(spec, 3)) == (0,)
    servers = Servers(spec, draw(spec, 1), num_shards=3)
    servers.report = None
    servers.step(0, [Push(worker=0, gradients=draw(spec, 2))], spec.optimizer.hyperparameters)
    assert servers.pull(0, 1) is not None


def test_tables_that_are_gone_are_forgotten():
    """A dropped job, and a table that is opened again with or without clipping."""
    decisions = opened()
    decisions.dropped("k")
    assert said(decisions, 0, norm(0)) is None
    decisions.dropped("j")
    assert said(decisions, 1, norm(0)) is None
    decisions = opened()
    said(decisions, 0, norm(0))
    decisions.opened("j", spec_of(1.0), 2)
    assert said(decisions, 1, norm(0, opening=2)) is None
    decisions.opened("j", spec_of(None), 3)
    assert said(decisions, 0, norm(0, opening=3)) is None


def test_squares_are_added_in_partition_order():
    """Not in the order of completion; each step comes out once, and is there until it is decided."""
    squares = [1.0, 1e-16, 1e-16, 1e-16]
    clipping = Clipping(4)
    for index in (3, 1, 2):
        clipping.complete(5, index, squares[index])
    assert clipping.poll() is None
    clipping.complete(5, 0, squares[0])
    assert sum(squares) != sum(reversed(squares))
    assert clipping.poll() == clipping.undecided() == (5, sum(squares), 0)
    assert clipping.poll() is None
    assert not clipping.decided(4)
    assert clipping.decided(5)
    assert clipping.undecided() is None
    assert not clipping.decided(5)


def test_what_was_taken_before_members_have_gone_is_of_the_epoch_before():
    """It may be reported later than what is computed again."""
    clipping = Clipping(1)
    clipping.complete(5, 0, 2.0)
    assert clipping.poll() == (5, 2.0, 0)
    clipping.reopen(3)
    assert clipping.poll() is None
    clipping.complete(5, 0, 1.0)
    assert clipping.poll() == (5, 1.0, 3)


def test_a_job_that_went_back_to_a_snapshot_is_decided_from_its_step_on():
    """A table is opened again at a later step than 0."""
    decisions = Ballots(2)
    decisions.opened("j", spec_of(), 7, step=5)
    norms = [Norm(job="j", table=0, opening=7, step=5, squares=4.0) for _ in range(2)]
    assert said(decisions, 0, norms[0]) is None
    found = said(decisions, 1, norms[1])
    assert found is not None
    assert found[0].step == 5
