"""Timetables: torch's own order, the formula of the bubble, and how many micro-batches a stage holds."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from ps_wire.errors import PipelineError
from ps_worker.pipeline.timetable import (
    Action,
    formula,
    gpipe,
    idle_share,
    in_flight,
    of_torch,
    one_forward_one_backward,
    ticks,
    timed,
)

RULES = {"gpipe": (gpipe, ScheduleGPipe), "1f1b": (one_forward_one_backward, Schedule1F1B)}
SIZES = [(1, 1), (2, 2), (2, 8), (4, 4), (4, 8), (5, 7)]


class Stage:
    """A stage that notes what torch's schedule has it do, and is always ready."""

    has_backward = is_first = True
    is_last = False
    device = "cpu"

    def __init__(self, stages, index):
        self.num_stages, self.stage_index, self.did = stages, index, []

    def forward_one_chunk(self, microbatch, *_, **__):
        self.did.append(Action(self.stage_index, "F", microbatch))

    def backward_one_chunk(self, microbatch, **_):
        self.did.append(Action(self.stage_index, "B", microbatch))

    def __getattr__(self, name):
        return lambda *_, **__: []


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("name", RULES)
def test_the_order_is_that_in_which_torch_runs(name, stages, microbatches):
    rule, made = RULES[name]
    for rank, order in enumerate(rule(stages, microbatches)):
        stage = Stage(stages, rank)
        schedule = made(stage, microbatches, loss_fn=lambda *_: 0)
        schedule._stage_forward_initialized = schedule._stage_backward_initialized = True
        schedule.step(torch.zeros(microbatches, 1))
        assert list(order) == stage.did


@pytest.mark.parametrize(("ranks", "stages", "microbatches"), [(2, 4, 4), (2, 4, 8), (4, 8, 8)])
def test_schedules_with_several_stages_on_a_rank_are_torchs(ranks, stages, microbatches):
    """Their timetable ends, and its bubble is no more than the formula's."""
    order = of_torch(ScheduleInterleaved1F1B, ranks, stages, microbatches)
    assert [{it.stage % ranks for it in row} for row in order] == [{rank} for rank in range(ranks)]
    share = idle_share(timed(order, ticks(order)))
    assert share == pytest.approx(formula("interleaved1f1b", ranks, stages, microbatches))
    zero_bubble = of_torch(ScheduleInterleavedZeroBubble, ranks, stages, microbatches)
    assert idle_share(timed(zero_bubble, ticks(zero_bubble))) < share
    assert formula("zero-bubble", ranks, stages, microbatches) is None


def test_what_torch_refuses_is_refused():
    with pytest.raises(PipelineError, match=r"ScheduleInterleaved1F1B, 2 ranks, 4 stages: .*round"):
        of_torch(ScheduleInterleaved1F1B, 2, 4, 5)


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("name", RULES)
def test_the_bubble_of_even_stages_is_the_formula(name, stages, microbatches):
    """However long a backward is beside a forward."""
    order = RULES[name][0](stages, microbatches)
    for backward in (1.0, 2.0):
        rows = timed(order, lambda it, backward=backward: backward if it.kind == "B" else 1.0)
        expected = formula(name, stages, stages, microbatches)
        assert idle_share(rows) == pytest.approx(expected)
        assert expected == pytest.approx((stages - 1) / (microbatches + stages - 1))


def test_a_slow_stage_lets_the_others_wait():
    order = gpipe(2, 2)
    rows = timed(order, lambda it: 3.0 if it.stage == 1 else 1.0)
    assert [(it.begin, it.end) for it in rows[1]] == [(1, 4), (4, 7), (7, 10), (10, 13)]
    assert [(it.begin, it.end) for it in rows[0]] == [(0, 1), (1, 2), (10, 11), (13, 14)]


def test_a_stage_of_1f1b_holds_as_many_microbatches_as_stages_are_left():
    assert in_flight(one_forward_one_backward(4, 8)) == (4, 3, 2, 1)
    assert in_flight(gpipe(4, 8)) == (8, 8, 8, 8)


def test_halves_of_a_backward_take_a_tick_each():
    order = ((Action(0, "F", 0), Action(0, "I", 0), Action(0, "W", 0), Action(0, "F", 1), Action(0, "B", 1)),)
    assert [it.end for it in timed(order, ticks(order))[0]] == [1, 2, 3, 4, 6]
    assert in_flight(order) == (1,)


def test_an_order_that_waits_for_itself_is_refused():
    with pytest.raises(PipelineError, match="never ends"):
        timed(((Action(0, "B", 0), Action(0, "F", 0)),), lambda _: 1.0)
