"""What blocks cost: time by an injected clock, bytes that autograd keeps and stages send, parameters."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.cost import BlockCost, cheapest_cuts, costs_of, memory_of, sizes_of
from tests.unit.ps_worker.pipeline.models import CHARACTERS, CONTEXT, WIDTH, Transformer


class Clock:
    """A clock that a block moves."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Slow(nn.Module):
    """It takes as long as it is told, and twice that in backward; every other time it takes longer."""

    def __init__(self, clock, takes_s):
        super().__init__()
        self.clock, self.takes_s = [clock], takes_s
        self.calls = itertools.count()

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        late = 100.0 if next(self.calls) % 3 == 0 else 0.0
        self.clock[0].now_s += self.takes_s + late
        y = x * 1.0
        y.register_hook(self.backward_takes)
        return y

    def backward_takes(self, gradient):
        self.clock[0].now_s += 2 * self.takes_s
        return gradient


def cost(**values):
    return BlockCost(**{"name": "", "parameters": 0, "parameter_bytes": 0} | values)


def test_a_block_takes_the_median_of_its_forwards_and_backwards():
    clock = Clock()
    model = nn.Sequential(nn.Linear(3, 3), Slow(clock, 0.5), Slow(clock, 2.0))
    costs = costs_of(blocks_of(model), model, [torch.ones(2, 3)], clock=clock)
    assert [(it.forward_s, it.backward_s) for it in costs] == [(0, 0), (0.5, 1.0), (2.0, 4.0)]


def test_bytes_are_those_of_parameters_activations_and_what_is_sent():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))
    first, second, third = costs_of(blocks_of(model), model, [torch.ones(3, 4)])
    assert (first.parameters, first.parameter_bytes) == (40, 160)
    assert (first.activation_bytes, first.sent_bytes) == (3 * 4 * 4, 3 * 8 * 4), "its input"
    assert (second.activation_bytes, second.sent_bytes) == (0, 3 * 8 * 4), (
        "its output is the next one's input"
    )
    assert (third.activation_bytes, third.sent_bytes) == (3 * 8 * 4, 0)
    assert sizes_of(blocks_of(model), model)[0] == cost(name="0", parameters=40, parameter_bytes=160)


def test_measuring_leaves_the_model_and_the_generators_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    before = {name: it.clone() for name, it in model.state_dict().items()}
    state = torch.get_rng_state()
    costs_of(blocks_of(model), model, [torch.ones(3, 4)])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], it) for name, it in model.state_dict().items())
    assert all(it.grad is None for it in model.parameters())


def test_a_model_on_meta_is_measured_block_by_block():
    model = Transformer(2).to("meta")
    tokens = torch.zeros(3, CONTEXT, dtype=torch.long)
    costs = costs_of(blocks_of(model), model, [tokens])
    mask = CONTEXT * 4
    assert [it.sent_bytes for it in costs] == [
        *(3 * CONTEXT * WIDTH * 4 + mask, 3 * CONTEXT * WIDTH * 4 + mask),
        *(3 * CONTEXT * WIDTH * 4, 3 * CONTEXT * WIDTH * 4, 0),
    ]
    assert all(it.forward_s > 0 and it.backward_s > 0 for it in costs)
    assert costs[-1].parameters == CHARACTERS * WIDTH
    assert all(it.is_meta for it in model.parameters())


def test_a_block_that_does_not_run_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    with pytest.raises(PipelineError, match=r"block 1 does not run with the example: RuntimeError: .*mat1"):
        costs_of(blocks_of(model), model, [torch.ones(3, 4)])


def test_cuts_are_by_time_memory_or_parameters():
    costs = [
        cost(forward_s=4.0, parameters=1, activation_bytes=10),
        cost(forward_s=1.0, parameters=1, activation_bytes=10),
        cost(forward_s=1.0, parameters=1, activation_bytes=10),
        cost(backward_s=1.0, parameters=3, activation_bytes=10),
    ]
    assert cheapest_cuts(costs, 2, "time", in_flight=(1, 1)) == (0, 1)
    assert cheapest_cuts(costs, 2, "parameters", in_flight=(1, 1)) == (0, 3)
    assert cheapest_cuts(costs, 2, "memory", in_flight=(1, 1)) == (0, 2)
    assert cheapest_cuts(costs, 2, "memory", in_flight=(3, 1)) == (0, 1), "the first stage holds three"
    with pytest.raises(PipelineError, match="cut by time, memory, parameters or at names, got 'luck'"):
        cheapest_cuts(costs, 2, "luck", in_flight=(1, 1))


def test_memory_is_parameters_gradients_the_optimizer_and_activations():
    costs = [cost(parameter_bytes=100, activation_bytes=7), cost(parameter_bytes=10)]
    assert memory_of(costs, 3) == 220 + 21
    assert memory_of(costs, 1, optimizer_states=2) == 440 + 7
