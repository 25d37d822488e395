"""The optimizer's state on the shards is torch's: a run goes on from it in plain torch, and the reverse.

`KINDS` are all optimizers that shards run, with what gives them more state. The model of these tests has
param-groups, a layer that never has a gradient, channels_last weights, a scalar and a one-element parameter.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_server.shard.optimizer.piece_optimizer import KNOWN
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import shard_pb2 as pb
from ps_worker.model.optimizer_state import SCALARS, Gathering, Scattering
from tests.component.models import Mlp
from tests.component.reference import assert_same, batch, seeded
from tests.component.service import run_workers
from tests.inside import link_of

STEPS = 3
SMALL = ps.BucketOptions(partition_bytes=4096)
KINDS = {
    **{name: (name, {}) for name in KNOWN},
    "SGD with momentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "Adam with amsgrad": ("Adam", {"amsgrad": True}),
    "AdamW with amsgrad": ("AdamW", {"amsgrad": True}),
    "RMSprop with momentum": ("RMSprop", {"momentum": 0.9}),
    "RMSprop, all": ("RMSprop", {"momentum": 0.9, "centered": True}),
}
EVERY = pytest.mark.parametrize("kind", KINDS)


class Mixed(nn.Module):
    """See the module's docstring; `wide` is cut into several partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.never = nn.Linear(3, 2)
        self.wide = nn.Linear(5, 601)
        self.one = nn.Parameter(torch.full((1,), 0.5))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.conv(x)).mean((2, 3))
        return self.wide(hidden) * self.scale + self.one


def make(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    name, hyper = KINDS[kind]
    known = KNOWN[name]
    groups = [
        {"params": [model.scale, *model.never.parameters(), *model.wide.parameters()]},
        {"params": [model.one, *model.conv.parameters()], "lr": 0.02},
    ]
    return known.cls(groups, **hyper, **({"fused": True} if known.fused else {"foreach": False}))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(batch(0, step, 2, 3, 6, 6)).square().mean().backward()
        optimizer.step()


def alone(kind: str, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Plain torch, not interrupted."""
    model = seeded(Mixed)
    optimizer = make(kind, model)
    train(model, optimizer, range(steps))
    return model, optimizer


def state_dict_of(optimizer: torch.optim.Optimizer, model: nn.Module, states: list) -> dict:
    """As `optimizer.state_dict()`, with these states of the model's parameters in registration order."""
    by_parameter = dict(zip(model.parameters(), states, strict=True))
    ordered = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    states_by_id = {number: by_parameter[parameter] for number, parameter in enumerate(ordered)}
    return {
        "state": {number: state for number, state in states_by_id.items() if state},
        "param_groups": optimizer.state_dict()["param_groups"],
    }


def assert_same_state(got: dict, expected: dict) -> None:
    """Keys in the same order, and tensors with the same shapes, strides, dtypes and bits."""
    assert sorted(got["state"]) == sorted(expected["state"])
    for number, state in expected["state"].items():
        mine = got["state"][number]
        assert list(mine) == list(state)
        for name, value in state.items():
            assert mine[name].dtype is value.dtype, name
            assert mine[name].stride() == value.stride(), name
            assert torch.equal(mine[name], value), (number, name)


@pytest.fixture(params=["one_shard", "cluster"])
def shards(request):
    """One shard, two shards."""
    return request.getfixturevalue(request.param)


@EVERY
def test_a_run_goes_on_in_plain_torch_from_what_the_shards_have(shards, kind):
    """`load_state_dict` of torch takes it, and the weights are those of a run that was not interrupted."""
    expected, uninterrupted = alone(kind, 2 * STEPS)
    model = seeded(Mixed)

    def body(worker):
        optimizer = worker.wrap(make(kind, model), model, buckets=SMALL)
        train(model, optimizer, range(STEPS))
        states = link_of(worker).dump_state(0)
        worker.finish()
        return states

    (states,) = run_workers(shards, body)
    optimizer = make(kind, model)
    optimizer.load_state_dict(state_dict_of(optimizer, model, states))
    assert_same_state(optimizer.state_dict(), alone(kind, STEPS)[1].state_dict())
    train(model, optimizer, range(STEPS, 2 * STEPS))
    assert_same(model, expected)
    assert_same_state(optimizer.state_dict(), uninterrupted.state_dict())


@EVERY
def test_an_optimizer_with_state_goes_on_on_the_shards_when_it_is_wrapped(shards, kind):
    """The weights, and what is dumped at the end, are those of a run that was not interrupted."""
    expected, uninterrupted = alone(kind, 2 * STEPS)
    model, optimizer = alone(kind, STEPS)

    def body(worker):
        wrapped = worker.wrap(optimizer, model, buckets=SMALL)
        train(model, wrapped, range(STEPS, 2 * STEPS))
        states = link_of(worker).dump_state(0)
        worker.finish()
        return states

    (states,) = run_workers(shards, body)
    assert_same(model, expected)
    assert_same_state(state_dict_of(make(kind, model), model, states), uninterrupted.state_dict())


def test_a_dump_is_a_copy(one_shard):
    """Steps after it do not change it."""
    model = seeded(Mixed)

    def body(worker):
        optimizer = worker.wrap(make("Adam", model), model)
        train(model, optimizer, range(1))
        states = link_of(worker).dump_state(0)
        before = copy.deepcopy(states)
        train(model, optimizer, range(1, 2))
        again = link_of(worker).dump_state(0)
        assert not torch.equal(again[0]["exp_avg"], before[0]["exp_avg"])
        return states, before

    ((states, before),) = run_workers(one_shard, body)
    assert all(
        torch.equal(state[name], kept[name])
        for state, kept in zip(states, before, strict=True)
        for name in kept
    )


def test_a_load_after_the_start_takes_the_place_of_all_state(cluster):
    """Parameters without one in it have none after it; NaN is a value like others."""
    model = seeded(Mixed)

    def body(worker):
        optimizer = worker.wrap(make("Adam", model), model, buckets=SMALL)
        train(model, optimizer, range(2))
        states = link_of(worker).dump_state(0)
        changed = [{} for _ in states]
        changed[0] = {**states[0], "exp_avg": torch.full_like(states[0]["exp_avg"], float("nan"))}
        link_of(worker).load_state(0, changed)
        return changed, link_of(worker).dump_state(0)

    ((changed, got),) = run_workers(cluster, body)
    assert list(map(list, got)) == list(map(list, changed))
    assert got[0]["exp_avg"].isnan().all()
    assert torch.equal(got[0]["exp_avg_sq"], changed[0]["exp_avg_sq"])


def test_old_checkpoints_and_other_dtypes_are_taken_as_torch_takes_them(one_shard):
    """A step that is a number, a buffer that is None, a state of another dtype or layout."""
    model = seeded(Mlp)
    shape = model.first.weight.shape
    average = batch(0, 0, *shape)
    state = {
        "step": 7,
        "exp_avg": average.double(),
        "exp_avg_sq": average.t().contiguous().t().square(),
        "unused": None,
    }

    def body(worker):
        worker.wrap(torch.optim.Adam(model.parameters()), model)
        link_of(worker).load_state(0, [state, {}, {}, {}])
        return link_of(worker).dump_state(0)[0]

    (got,) = run_workers(one_shard, body)
    assert (got["step"].dtype, got["step"].item()) == (torch.float32, 7.0)
    assert torch.equal(got["exp_avg"], average)
    assert torch.equal(got["exp_avg_sq"], average.square())
    assert list(got) == ["step", "exp_avg", "exp_avg_sq"]


# -- without a service --------------------------------------------------------------------------------


@pytest.fixture
def plan_of_one() -> Plan:
    """One parameter in three partitions."""
    spec = TableSpec(
        number=0,
        parameters=(ParameterSpec(name="w", shape=(3000,)),),
        optimizer=OptimizerSpec(name="NAdam", hyperparameters=Hyperparameters((((("lr", 0.1)),),))),
        buckets=SMALL,
    )
    return Plan(spec, 1)


def scalar(name: str, value: float, piece: int = 0) -> pb.StateTensor:
    data = torch.tensor([value]).numpy().tobytes()
    return pb.StateTensor(piece=piece, name=name, dtype="float32", scalar=True, data=data)


def vector(name: str, values: torch.Tensor, piece: int = 0) -> pb.StateTensor:
    data = values.numpy().tobytes()
    return pb.StateTensor(piece=piece, name=name, dtype="float32", data=data)


def test_without_gates_the_largest_step_is_read_and_the_log_says_so_once(plan_of_one):
    """Pieces of one parameter that have taken different numbers of steps, one of them none."""
    gathering = Gathering(plan_of_one)
    for partition, step in ((0, 4.0), (1, 9.0)):
        (piece,) = plan_of_one.pieces(plan_of_one.partition(partition))
        gathering.receive(
            pb.PartitionState(
                partition=partition,
                tensors=[
                    scalar("step", step),
                    scalar("mu_product", step / 10),
                    vector("exp_avg", torch.full((piece.numel,), step)),
                ],
                last=True,
            )
        )
    (state,) = gathering.states()
    assert gathering.differs
    assert (state["step"].item(), state["mu_product"].item()) == (9.0, torch.tensor(0.9).item())
    assert state["exp_avg"].unique().tolist() == [0.0, 4.0, 9.0]


def test_scalars_of_a_state_are_those_that_the_servers_know():
    """Both ends tell `step` from a tensor by name: a scalar parameter has tensors without dimension."""
    assert {name for known in KNOWN.values() for name in known.scalars} == SCALARS


def test_scattered_pieces_are_gathered_to_the_same(plan_of_one):
    """Cut and put together again, over partitions, without a service."""
    state = {"step": torch.tensor(3.0), "exp_avg": torch.arange(3000.0)}
    gathering = Gathering(plan_of_one)
    messages = list(Scattering(plan_of_one, [state]).messages(0, pb.TableKey(job="j")))
    for message in messages:
        gathering.receive(message)
    (got,) = gathering.states()
    assert [message.HasField("key") for message in messages] == [True, False, False]
    assert all(torch.equal(got[name], state[name]) for name in state)
    assert not gathering.differs
