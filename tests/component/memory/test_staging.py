"""A worker whose parameters are on an accelerator: copies lag, and the result is that of copies at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_worker.memory.staging import HostStaging, Stagings, StreamStaging
from tests.component.arriving import PAGES, Model, adam, bare, train
from tests.component.reference import alone, assert_same, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of
from tests.lazy_device import LazyDevice

STEPS = 4


def half_model() -> torch.nn.Module:
    return seeded(Model).bfloat16()  # weights are copied to it, and rounded, as to another device


def steps(model: Any, optimizer: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(2, 3, 64, generator=generator).bfloat16()
        model(x).float().square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1}], ids=["plain", "clipped"])
def test_copies_that_lag_give_the_bytes_of_copies_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, overlap: bool, options: Any
):
    def trained(consistency: str) -> torch.nn.Module:
        model = half_model()

        def body(worker: ps.Worker) -> None:
            optimizer = worker.wrap(adam(model), model, overlap=overlap, buckets=PAGES, **options)
            steps(model, optimizer)
            worker.finish()

        run_workers(cluster, body, consistency=consistency)
        assert bare(model)
        return model

    expected = trained("ssp:1")
    lagging: list[LazyDevice] = []

    def of(stagings: Stagings, device: torch.device) -> Any:
        if device not in stagings._of:
            lagging.append(LazyDevice(eager=True))
            stagings._of[device] = StreamStaging(lagging[-1], device)
        return stagings._of[device]

    monkeypatch.setattr(Stagings, "of", of)
    assert_same(trained("ssp:1"), expected)
    assert lagging


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [True, False])
def test_a_model_on_a_gpu_trains_as_one_on_the_host(cluster: Cluster, overlap: bool):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    model = seeded(Model)
    expected = alone(lambda _, plain, optimizer: train(plain, optimizer, range(STEPS)), model, adam)
    model.cuda()

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(adam(model), model, overlap=overlap, buckets=PAGES)
        assert not exchange_of(optimizer).memory.mapped
        train(_OnDevice(model), optimizer, range(STEPS))
        worker.finish()

    run_workers(cluster, body)
    for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-3, atol=1e-4)


class _OnDevice:
    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._model(x.cuda())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_every_size_and_layout_are_copied(dtype: torch.dtype):
    """Large ones go past the caches, where they lie as their views do; others as torch copies them."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(3,), (600, 1000), (1000, 700), (1, 1), (800, 900)]
    gradients = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    gradients[2] = gradients[2].t().contiguous().t()  # lies in another order
    gradients[4] = gradients[4].double()  # rounded on the way, where the views are narrower
    views = [torch.full(shape, 7.0, dtype=dtype) for shape in shapes]
    expected = [view.clone().copy_(gradient) for view, gradient in zip(views, gradients, strict=True)]
    assert HostStaging().out(views, gradients).query()
    assert all(map(torch.equal, views, expected))
