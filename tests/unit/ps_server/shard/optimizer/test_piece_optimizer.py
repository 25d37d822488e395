"""Torch's optimizers over pieces of parameters: the bytes of whole ones; what is refused, and why."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch

from ps_server.shard.optimizer import piece_optimizer
from ps_server.shard.optimizer.piece_optimizer import (
    KNOWN,
    REFUSED,
    PieceOptimizer,
    check_hyperparameters,
    state_slots,
)
from ps_wire.errors import OptimizerUnsupported, PayloadMismatch
from ps_wire.spec.table import Hyperparameters, OptimizerSpec
from tests.unit.ps_server.tables import defaults, group

NUMEL = 1000
CUTS = (0, 16, 48, 64, 512, 528, NUMEL)
EVERY = pytest.mark.parametrize("name", KNOWN)


def pieces_of(whole):
    return [whole[low:high] for low, high in itertools.pairwise(CUTS)]


def whole_optimizer(name, weights):
    return KNOWN[name].cls([weights], **({"fused": True} if KNOWN[name].fused else {"foreach": False}))


def test_a_state_that_was_taken_stays_as_it_was_while_steps_follow():
    """And one that is set is not the caller's memory: a snapshot is taken and restored so."""
    pieces, hyper = [torch.ones(16)], defaults("Adam", lr=0.1)
    optimizer = PieceOptimizer("Adam", hyper, pieces)
    optimizer.step([torch.ones(16)], hyper)
    taken = optimizer.export_state()
    then = [{name: value.clone() for name, value in state.items()} for state in taken]
    optimizer.step([torch.ones(16)], hyper)
    optimizer.import_state(taken)
    optimizer.step([torch.ones(16)], hyper)
    for state, before in zip(taken, then, strict=True):
        assert all(torch.equal(state[name], value) for name, value in before.items())


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pieces_cut_at_multiples_of_16_are_updated_as_the_whole(name, dtype):
    """To the bit, over steps whose lr, betas and weight decay change."""
    generator = torch.Generator().manual_seed(1)
    start = defaults(name)
    values = dict(start)
    whole = torch.randn(NUMEL, generator=generator, dtype=dtype)
    cut = whole.clone()
    ours, theirs = PieceOptimizer(name, start, pieces_of(cut)), whole_optimizer(name, whole)
    for step in range(6):
        new = {"lr": values["lr"] * (1 + step % 3), "weight_decay": 0.01 * (step % 2), "betas": (0.8, 0.99)}
        now = group(**{**values, **{key: new[key] for key in new.keys() & values.keys()}})
        gradient = torch.randn(NUMEL, generator=generator, dtype=dtype)
        ours.step(pieces_of(gradient), now)
        theirs.param_groups[0].update(now)
        whole.grad = gradient
        theirs.step()
        assert torch.equal(cut, whole), f"step {step}"


@EVERY
def test_a_piece_without_a_gradient_is_left_alone(name):
    """No decay, no step, no state: afterwards it is updated as one that has just begun."""
    start = defaults(name, **({"weight_decay": 0.1} if name != "Rprop" else {}))
    weights, twin = torch.ones(32), torch.ones(16)
    ours, alone = (PieceOptimizer(name, start, part) for part in ([weights[:16], weights[16:]], [twin]))
    gradient = torch.linspace(-1, 1, 16)
    for _ in range(3):
        ours.step([gradient, None], start)
    assert torch.equal(weights[16:], torch.ones(16))
    ours.step([None, gradient], start)
    alone.step([gradient], start)
    assert torch.equal(weights[16:], twin)


@pytest.mark.parametrize("hyper", [{"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}], ids=str)
def test_first_gradients_may_come_at_different_steps(hyper):
    """Torch's fused SGD fails where they do in one param-group: each piece has one of its own."""
    start = defaults("SGD", **hyper)
    pieces, twins = [torch.ones(16), torch.ones(16)], [torch.ones(16), torch.ones(16)]
    ours = PieceOptimizer("SGD", start, pieces)
    alone = [PieceOptimizer("SGD", start, [twin]) for twin in twins]
    gradient = torch.linspace(-1, 1, 16)
    for gradients in ([gradient, None], [gradient, gradient], [None, gradient]):
        ours.step(gradients, start)
        for optimizer, own in zip(alone, gradients, strict=True):
            optimizer.step([own], start)
    assert torch.equal(torch.cat(pieces), torch.cat(twins))


def test_momentum_may_begin_later():
    """As in torch, for SGD."""
    start = defaults("SGD", lr=0.1)
    pieces = [torch.ones(16), torch.ones(16)]
    ours = PieceOptimizer("SGD", start, pieces)
    for momentum in (0.0, 0.9, 0.5):
        now = group(**{**dict(start), "momentum": momentum})
        ours.step([torch.ones(16), torch.ones(16)], now)
    assert torch.allclose(pieces[0], torch.full((16,), 1 - 0.1 * (1 + 1 + 1.5)))
    assert torch.equal(*pieces)


SLOTS = [(name, {}) for name in KNOWN] + [
    ("SGD", {"momentum": 0.9}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"amsgrad": True}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


@pytest.mark.parametrize(("name", "hyper"), SLOTS, ids=str)
def test_the_memory_reserved_for_state_is_what_it_takes(name, hyper):
    """In tensors of the size of the weights; step counters are small change."""
    start = defaults(name, **hyper)
    weights = torch.zeros(4096)
    optimizer = PieceOptimizer(name, start, [weights])
    optimizer.step([torch.ones(4096)], start)
    slots = state_slots(OptimizerSpec(name=name, hyperparameters=Hyperparameters((start,))), 0)
    rest = optimizer.state_bytes() - slots * weights.nbytes
    assert 0 <= rest <= 32


# -- what can be named ---------------------------------------------------------------------------------


def test_every_optimizer_of_torch_is_known_or_refused():
    """A new one in torch shows up here."""
    found = {
        name
        for name, cls in vars(torch.optim).items()
        if inspect.isclass(cls)
        and issubclass(cls, torch.optim.Optimizer)
        and cls is not torch.optim.Optimizer
    }
    assert found <= KNOWN.keys() | REFUSED.keys()
    assert not KNOWN.keys() & REFUSED.keys()
    assert all(getattr(torch.optim, name) is known.cls for name, known in KNOWN.items())


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_one_is_told_why(name):
    """And which there are."""
    with pytest.raises(OptimizerUnsupported) as refused:
        piece_optimizer.known(name)
    assert REFUSED[name] in refused.value.message
    assert all(known in refused.value.message for known in KNOWN)
    assert refused.value.facts == {"optimizer": name}


@pytest.mark.parametrize("name", ["MyAdam", "", "sgd", "Optimizer", "__class__"])
def test_an_unknown_name_is_not_run(name):
    """A subclass, somebody else's, or no optimizer at all."""
    spec = OptimizerSpec(name=name, hyperparameters=Hyperparameters(((("lr", 0.1),),)))
    with pytest.raises(OptimizerUnsupported, match="not known to be element-wise"):
        piece_optimizer.check(spec)


@pytest.mark.parametrize(
    ("name", "hyper", "match"),
    [
        ("SGD", {"lr": -1.0}, "torch refuses SGD with .*lr.*-1.0"),
        ("SGD", {"lr": 0.1, "nesterov": True}, "Nesterov"),
        ("Adam", {"lr": 0.1, "betas": 3}, "torch refuses Adam"),
        ("Adam", {"lr": 0.1, "betas": (1.5, 0.9)}, "beta"),
        ("SGD", {"lr": 0.1, "betas": (0.9, 0.9)}, "has no hyper-parameter betas"),
        ("SGD", {"lr": 0.1, "color": "red", "taste": 1}, "has no hyper-parameter color, taste"),
    ],
    ids=str,
)
def test_hyper_parameters_that_torch_refuses_are_refused_by_name(name, hyper, match):
    """Before any memory is taken."""
    groups = (defaults(name), group(**hyper))
    with pytest.raises(OptimizerUnsupported, match=match):
        piece_optimizer.check(OptimizerSpec(name=name, hyperparameters=Hyperparameters(groups)))


@EVERY
def test_the_defaults_of_a_known_one_pass(name):
    """Whatever torch puts into its defaults."""
    piece_optimizer.check(OptimizerSpec(name=name, hyperparameters=Hyperparameters((defaults(name),))))


def test_warming_up_leaves_nothing_behind():
    """It may be done at any time: nothing global is another one afterwards."""
    before = (
        torch.get_default_dtype(),
        torch.get_rng_state(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
    )
    piece_optimizer.warm_up()
    dtype, generator, threads, grad = before
    assert torch.equal(torch.get_rng_state(), generator)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, threads)
    assert torch.is_grad_enabled() is grad


START = (group(lr=0.1, betas=(0.9, 0.99), amsgrad=False, name="x", limit=None),)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"lr": True}, "lr of param-group 0: True; the table has 0.1"),
        ({"lr": "fast"}, "lr of param-group 0"),
        ({"lr": None}, "lr of param-group 0"),
        ({"lr": (0.1,)}, "lr of param-group 0"),
        ({"betas": (0.9,)}, "betas of param-group 0"),
        ({"amsgrad": 0}, "amsgrad of param-group 0"),
        ({"limit": 1.0}, "limit of param-group 0"),
        ({"extra": 1.0}, "has hyper-parameters .*extra"),
    ],
    ids=str,
)
def test_later_hyper_parameters_of_another_kind_are_refused(change, match):
    """The names and kinds of the start stay."""
    with pytest.raises(PayloadMismatch, match=match):
        check_hyperparameters("Adam", START, (group(**{**dict(START[0]), **change}),))


def test_later_hyper_parameters_may_have_other_values():
    """A whole number is a number."""
    now = group(lr=1, betas=(0.5, 0.6), amsgrad=False, name="y", limit=None)
    check_hyperparameters("Adam", START, (now,))
    for other in ((), (now, now)):
        with pytest.raises(PayloadMismatch, match=f"{len(other)} param-groups; the table has 1"):
            check_hyperparameters("Adam", START, other)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Adam", {"amsgrad": False}, {"amsgrad": True}),
        ("RMSprop", {"centered": False, "momentum": 0.0}, {"centered": True, "momentum": 0.0}),
        ("RMSprop", {"centered": False, "momentum": 0.0}, {"centered": False, "momentum": 0.9}),
        ("SGD", {"momentum": 0.0}, {"momentum": 0.9}),
    ],
    ids=str,
)
def test_later_hyper_parameters_never_need_more_state(name, before, after):
    """State that the memory limit has not counted, and that torch does not have, is refused."""
    with pytest.raises(PayloadMismatch, match=r"more optimizer state .* before wrap"):
        check_hyperparameters(name, (group(**before),), (group(**after),))
    check_hyperparameters(name, (group(**after),), (group(**before),))
