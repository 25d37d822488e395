"""Laws 1, 3, 9 and 11 on real shard tables, spoken to in frames: equal to the bit, every optimizer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from ps_wire.spec.consistency import ASP, BSP, SSP
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, changed, draw, group, same, table_spec

SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
ADAM = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}

VARIANTS = {
    "sgd": ("SGD", SGD),
    "sgd-weight_decay-maximize": ("SGD", SGD | {"weight_decay": 0.05, "maximize": True}),
    "sgd-momentum-dampening": ("SGD", SGD | {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "sgd-nesterov": ("SGD", SGD | {"momentum": 0.8, "nesterov": True}),
    "adam": ("Adam", ADAM),
    "adam-weight_decay-maximize": ("Adam", ADAM | {"weight_decay": 0.1, "maximize": True}),
    "adam-amsgrad": ("Adam", ADAM | {"amsgrad": True}),
    "adamw": ("AdamW", ADAM | {"weight_decay": 0.1}),
    "adamw-amsgrad": ("AdamW", ADAM | {"weight_decay": 0.1, "amsgrad": True}),
    "adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.0}),
    "adagrad-decays": (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop-centered-momentum": (
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "centered": True, "momentum": 0.9, "weight_decay": 0.1},
    ),
    "adadelta": ("Adadelta", {"lr": 1.0, "rho": 0.8, "weight_decay": 0.1}),
    "adamax": ("Adamax", {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True}),
    "nadam": ("NAdam", {"lr": 0.01, "momentum_decay": 0.01}),
    "nadam-decoupled": ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.01, "betas": (0.5, 0.6)}),
    "radam-decoupled": (
        "RAdam",
        {"lr": 0.01, "betas": (0.5, 0.6), "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "asgd": ("ASGD", {"lr": 0.01, "lambd": 0.1, "t0": 1.0, "weight_decay": 0.1}),
    "rprop": ("Rprop", {"lr": 0.01, "etas": (0.4, 1.3), "step_sizes": (1e-4, 1.0)}),
}
EVERY_OPTIMIZER = pytest.mark.parametrize("variant", VARIANTS)
STEPS = 4


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's threads spin when cores are shared; the tests that want two say so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spec_of(variant, **options):
    """A table with two param-groups that differ in lr."""
    name, hyper = VARIANTS[variant]
    return table_spec(name, group(**hyper), group(**hyper | {"lr": hyper["lr"] / 3}), **options)


def script(spec, num_workers, seed, *, steps=STEPS):
    """Per step the hyper-parameters and every worker's push, from a seed.

    From step 1 on some workers lack some gradients, parameter 1 has none at all at step 2, some workers
    abstain (all at step 2 of a job of one), and pushes weigh differently at odd steps.
    """
    dice = random.Random(seed)
    for step in range(steps):
        rate = dict(spec.optimizer.hyperparameters.groups[0])["lr"]
        hyper = spec.optimizer.hyperparameters
        if step == 2:
            hyper = changed(hyper, lr=rate * 0.7)
        pushes = []
        for worker in range(num_workers):
            gradients = draw(spec, seed * 1000 + step * 10 + worker)
            if step > 0:
                gradients = [None if dice.random() < 0.3 else gradient for gradient in gradients]
            if step == 2:
                gradients[1] = None
            if step == 2 and worker == num_workers - 1:
                gradients = None
            weight = dice.choice((1.0, 3.0, 0.3)) if step % 2 else 1.0
            pushes.append(Push(worker=worker, gradients=gradients, weight=weight))
        yield step, pushes, hyper


def run(spec, *, num_shards, num_workers, seed=1, order=0, consistency=BSP()):  # noqa: B008
    """The weights of every step on the servers, beside those of the local loop."""
    start = draw(spec, seed)
    servers = Servers(
        spec, start, num_shards=num_shards, num_workers=num_workers, consistency=consistency, seed=order
    )
    local = Local(spec, start)
    for step, pushes, hyper in script(spec, num_workers, seed):
        servers.step(step, pushes, hyper)
        averaged = consistency == BSP()
        local.step(pushes if averaged else [replace(push, weight=1.0) for push in pushes], hyper)
        yield servers.pull(step % num_workers, step + 1), local.weights


@EVERY_OPTIMIZER
@pytest.mark.parametrize(("num_shards", "num_workers"), [(2, 1), (1, 3), (2, 4), (3, 2)])
def test_law_1_bsp_is_one_optimizer_on_the_rank_order_mean(variant, num_shards, num_workers):
    """N workers over k shards leave the very bytes of one process that averages the same N gradients."""
    outcomes = run(spec_of(variant), num_shards=num_shards, num_workers=num_workers)
    for step, (ours, theirs) in enumerate(outcomes):
        assert same(ours, theirs), f"step {step}"


@pytest.mark.parametrize("variant", ["sgd-momentum-dampening", "adamw-amsgrad", "rmsprop-centered-momentum"])
def test_law_1_holds_when_torch_shares_the_work_out(variant):
    """Threads cut a whole parameter where they like: the bytes stay the same."""
    torch.set_num_threads(2)
    assert all(same(*weights) for weights in run(spec_of(variant), num_shards=2, num_workers=2))


@pytest.mark.parametrize("variant", ["sgd-momentum-dampening", "adamw-amsgrad", "rmsprop-centered-momentum"])
def test_law_1_holds_in_float64(variant):
    """Tables of float64 are averaged and updated in float64."""
    assert all(
        same(*weights) for weights in run(spec_of(variant, dtype="float64"), num_shards=2, num_workers=3)
    )


@EVERY_OPTIMIZER
def test_a_first_gradient_may_come_late(variant):
    """Neighbours in a partition that get their first gradient at different steps are updated as in torch."""
    spec = spec_of(variant, shapes=((40,), (50,), (60,), (70,)))
    start = draw(spec, 1)
    servers, local = Servers(spec, start), Local(spec, start)
    for step, have in enumerate([(0, 1), (2,), (0, 1, 2, 3)]):
        gradients = [
            gradient if place in have else None for place, gradient in enumerate(draw(spec, 10 + step))
        ]
        pushes = [Push(worker=0, gradients=gradients)]
        servers.step(step, pushes, spec.optimizer.hyperparameters)
        local.step(pushes, spec.optimizer.hyperparameters)
        assert same(servers.pull(0, step + 1), local.weights), f"step {step}"


def test_parameters_in_one_group_and_bucket_share_partitions():
    """The tables above have partitions with several pieces, and parameters that are cut in several."""
    plan = Servers(spec_of("sgd"), draw(spec_of("sgd"), 0), num_shards=3).plan
    pieces = [plan.pieces(plan.partition(index)) for index in range(plan.num_partitions)]
    assert max(map(len, pieces)) > 1
    assert sum(piece.parameter == 4 for several in pieces for piece in several) > 3


@pytest.mark.parametrize("variant", ["sgd-nesterov", "adam", "adadelta"])
def test_law_3_bsp_does_not_depend_on_arrival_order(variant):
    """Same pushes, frames in another order: same bytes."""
    spec = spec_of(variant)
    runs = [[ours for ours, _ in run(spec, num_shards=2, num_workers=3, order=order)] for order in (1, 2, 3)]
    for weights in zip(*runs, strict=True):
        assert same(weights[0], weights[1])
        assert same(weights[0], weights[2])


@EVERY_OPTIMIZER
@pytest.mark.parametrize("consistency", [ASP(), SSP(0)], ids=str)
def test_law_9_one_worker_without_a_barrier_is_the_local_loop(variant, consistency):
    """ASP and SSP apply each gradient as it is; the push's weight has no say."""
    spec = spec_of(variant)
    for ours, theirs in run(spec, num_shards=2, num_workers=1, consistency=consistency):
        assert same(ours, theirs)


@pytest.mark.parametrize("consistency", [BSP(), ASP()], ids=str)
@pytest.mark.parametrize("variant", ["sgd-momentum-dampening", "adam-amsgrad", "nadam", "asgd"])
def test_law_11_k_shards_equal_one(variant, consistency):
    """More shards, the same bytes; under ASP with the same pushes in the same order."""
    spec = spec_of(variant)
    num_workers = 1 if consistency == ASP() else 3
    one, *others = (
        [ours for ours, _ in run(spec, num_shards=k, num_workers=num_workers, consistency=consistency)]
        for k in (1, 2, 3, 7)
    )
    for other in others:
        assert all(same(a, b) for a, b in zip(one, other, strict=True))


def test_asp_applies_pushes_of_several_workers_in_arrival_order():
    """Two pushes are two steps, each with its own hyper-parameters, in the order in which they came."""
    spec = spec_of("adam")
    start = draw(spec, 1)
    servers = Servers(spec, start, num_workers=2, consistency=ASP())
    local = Local(spec, start)
    for step, worker in [(0, 1), (1, 1), (0, 0), (2, 1)]:
        hyper = changed(spec.optimizer.hyperparameters, lr=0.01 * (worker + 1))
        push = Push(worker=worker, gradients=draw(spec, 7 * step + worker))
        servers.step(step, [push], hyper)
        local.step([push], hyper)
        assert same(servers.pull(worker, step + 1), local.weights)


def test_a_bsp_step_takes_the_hyper_parameters_of_its_lowest_contributor():
    """Not those of an abstaining worker of a lower rank, nor of who came last."""
    spec = spec_of("sgd")
    start, hyper = draw(spec, 1), spec.optimizer.hyperparameters
    servers, local = Servers(spec, start, num_workers=3), Local(spec, start)
    pushes = [Push(worker=worker, gradients=draw(spec, worker)) for worker in range(3)]
    pushes[0] = Push(worker=0, gradients=None)
    for worker in (2, 1, 0):
        servers.step(0, [pushes[worker]], changed(hyper, lr=float(worker + 1)))
    local.step(pushes, changed(hyper, lr=2.0))
    assert same(servers.pull(0, 1), local.weights)
