"""Loss scales, overflows, and parameters of small dtypes, against plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.models import Mlp, loss_of
from tests.component.reference import assert_same, batch, check, seeded
from tests.component.scripts import sgd
from tests.component.service import Cluster, figures, fresh_name, partitions, run_workers

STEPS = 5


def adam(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


def rmsprop(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    kind.pop("fused", None)  # it has no such kernel
    return torch.optim.RMSprop(model.parameters(), lr=0.01, **kind)


def scaled_steps(
    rank: int, model: torch.nn.Module, optimizer: Any, *, unscale: bool, clip: bool, scale: float = 2.0**8
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, rank, step)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize(("unscale", "clip"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("make", [sgd, adam])
def test_a_grad_scaler_gives_the_bytes_of_torch(cluster: Cluster, make: Any, unscale: bool, clip: bool):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        scaled_steps(rank, model, optimizer, unscale=unscale, clip=clip)

    check(cluster, script, seeded(Mlp), make)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("make", [sgd, adam, rmsprop])
def test_a_scale_that_is_no_power_of_two_gives_the_bytes_of_torch(cluster: Cluster, make: Any, unscale: bool):
    """Torch divides in its fused kernels, and elsewhere multiplies by the reciprocal."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        scaled_steps(rank, model, optimizer, unscale=unscale, clip=False, scale=3.0)

    check(cluster, script, seeded(Mlp), make)


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_worker_that_overflows_abstains_and_the_others_go_on(cluster: Cluster, consistency: str):
    job = fresh_name()
    models = [seeded(Mlp) for _ in range(2)]
    counts: list[tuple[int, int]] = [(0, 0)] * 2

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(STEPS):
            loss = loss_of(model, worker.rank, step)
            if worker.rank == 1 and step == 2:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        counts[worker.rank] = (optimizer.step_number, optimizer.abstained)
        assert scaler.get_scale() == (4.0 if worker.rank == 0 else 2.0)
        worker.finish()

    run_workers(cluster, body, num_workers=2, consistency=consistency, job=job)
    assert counts == [(STEPS, 0), (STEPS, 1)]
    assert figures(cluster, job, 1)["abstained"] == partitions(cluster, job)
    assert figures(cluster, job, 0)["abstained"] == 0
    assert all(bool(parameter.isfinite().all()) for parameter in models[0].parameters())
    assert_same(models[1], models[0])


def test_in_bsp_an_overflow_leaves_the_step_to_the_others(cluster: Cluster):
    """The bytes are those of a step on the other worker's gradient alone."""
    models = [seeded(Mlp) for _ in range(2)]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(model, 0, 0) * (float("inf") if worker.rank else 1.0)).backward()
        scaler.step(optimizer)
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    plain = seeded(Mlp)
    optimizer = sgd(plain, fused=True)
    loss_of(plain, 0, 0).backward()
    optimizer.step()
    assert_same(models[0], plain)


def test_a_scaler_that_comes_after_overlap_began_is_an_error(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(model, 0, 0)).backward()
        with pytest.raises(ps.GradientChanged, match=r"GradScaler.*overlap=False"):
            scaler.step(optimizer)

    run_workers(cluster, body)


def test_a_scaler_keeps_auto_from_overlapping(cluster: Cluster):
    def body(worker: ps.Worker) -> bool:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        scaled_steps(0, model, optimizer, unscale=False, clip=False)
        return optimizer.overlaps

    assert run_workers(cluster, body) == [False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [sgd, adam])
def test_small_dtypes_train_on_masters_of_float32(cluster: Cluster, make: Any, dtype: torch.dtype):
    """Plain torch: the same optimizer on a float32 copy, whose values are rounded into the model."""
    model = seeded(Mlp).to(dtype)
    masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    expected = seeded(Mlp).to(dtype)
    plain = make(torch.nn.ParameterList(masters), fused=True)

    def loss(mine: torch.nn.Module, step: int) -> torch.Tensor:
        return mine(batch(0, step, 4, 13).to(dtype)).float().square().mean()

    for step in range(STEPS):
        loss(expected, step).backward()
        for parameter, master in zip(expected.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        plain.step()
        expected.zero_grad()
        with torch.no_grad():
            for parameter, master in zip(expected.parameters(), masters, strict=True):
                parameter.copy_(master)

    def body(worker: ps.Worker) -> dict[str, Any]:
        optimizer = worker.wrap(make(model), model)
        for step in range(STEPS):
            loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        state = optimizer.state_dict()
        worker.finish()
        return state

    (state,) = run_workers(cluster, body)
    assert_same(model, expected)
    for index, entry in plain.state_dict()["state"].items():
        for name, value in entry.items():
            assert torch.equal(state["state"][index][name], value)


def test_float64_gives_the_bytes_of_torch(cluster: Cluster):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            model(batch(rank, step, 4, 13).double()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp).double(), adam, num_workers=2)
