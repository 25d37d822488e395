"""Models with buffers and parameters of unusual kinds: kept as they are, or refused by name at wrap."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_worker.data.index_share import Share, ShareSampler
from tests.component.loaders import pieces_of
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, seeded
from tests.component.service import Cluster, run_workers

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:torch.quantize_per_tensor")


def adam(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1, **kind)


def train(rank: int, model: nn.Module, optimizer: Any) -> None:
    for step in range(2):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def made_in_inference_mode(value: float) -> torch.Tensor:
    with torch.inference_mode():
        return torch.full((3,), value)


KEPT = {
    "complex64": lambda value: torch.full((3,), complex(value, 1), dtype=torch.complex64),
    "complex128, conjugated": lambda value: torch.full(
        (3,), complex(value, 1), dtype=torch.complex128
    ).conj(),
    "expanded": lambda value: torch.full((1, 4), value).expand(3, 4),
    "scalar": torch.tensor,
    "made in inference mode": made_in_inference_mode,
}


@pytest.mark.parametrize("name", KEPT)
def test_a_buffer_is_worker_0s_at_the_start_and_of_one_worker_after_finish(cluster: Cluster, name: str):
    models: list[Any] = [seeded(Mlp), seeded(Mlp)]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        model.register_buffer("odd", KEPT[name](3.0 + worker.rank))
        optimizer = worker.wrap(adam(model), model)
        assert torch.equal(model.odd, KEPT[name](3.0))
        model.odd = KEPT[name](7.0 + worker.rank)
        train(worker.rank, model, optimizer)
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    for model in models:
        assert torch.equal(model.odd, KEPT[name](7.0))
        assert model.odd.dtype == KEPT[name](7.0).dtype


REFUSED = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.zeros(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sparse", "'odd' is torch.sparse_coo, and a job keeps dense ones: keep it in a plain attribute"),
        ("meta", "'odd' is on the meta device and has no values: give the model some before wrap"),
        ("quantized", "'odd' is torch.qint8, which a job cannot keep: keep it in a plain attribute"),
    ],
)
def test_a_buffer_that_cannot_be_kept_is_refused_by_name(cluster: Cluster, name: str, said: str):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        model.register_buffer("odd", REFUSED[name]())
        with pytest.raises(ps.ConfigurationRefused, match=re.escape(said)):
            worker.wrap(adam(model), model)

    run_workers(cluster, body)


def test_one_that_became_such_after_wrap_stays_and_finish_goes_on(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        model.register_buffer("odd", torch.zeros(3, 3))
        optimizer = worker.wrap(adam(model), model)
        train(worker.rank, model, optimizer)
        model.odd = REFUSED["sparse"]()
        worker.finish()
        assert model.odd.is_sparse

    run_workers(cluster, body)


def test_a_model_without_values_is_refused(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with torch.device("meta"):
            model = Mlp()
        with pytest.raises(
            ps.ConfigurationRefused, match=r"'first.weight' is on the meta device.* before wrap"
        ):
            worker.wrap(adam(model), model)

    run_workers(cluster, body)


def test_a_model_made_in_inference_mode_is_refused(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with torch.inference_mode():
            model = Mlp()
        with pytest.raises(
            ps.ConfigurationRefused, match=r"'first.weight' was made under torch.inference_mode"
        ):
            worker.wrap(adam(model), model)

    run_workers(cluster, body)


def test_an_array_in_a_table_is_refused_by_name(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(ps.UsageError, match=r"'w' is a numpy.ndarray: give a tensor"):
            worker.table({"w": np.zeros(3)}, optimizer=ps.SGD(lr=1.0))

    run_workers(cluster, body)


@pytest.fixture
def _another_default_device() -> Iterator[None]:
    """A CPU has no other device; what is made on this one without being asked for has no values."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("_another_default_device")
@pytest.mark.parametrize(("consistency", "more"), [("bsp", {}), ("asp", {"clip_grad_norm": 1e9})])
def test_under_a_default_device_what_is_ours_lies_on_the_cpu(consistency: str, more: dict[str, float]):
    """Tables and states."""
    with torch.device("cpu"):
        model, expected = seeded(Mlp), seeded(Mlp)
    expected = alone(train, expected, adam)  # in a thread, which has not this default
    with ps.connect(servers="none", consistency=consistency) as worker:
        optimizer = worker.wrap(adam(model), model, **more)
        with torch.device("cpu"):
            loss_of(model, 0, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
        with torch.device("cpu"):
            loss_of(model, 0, 1).backward()
        optimizer.step()
        worker.finish()
    assert_same(model, expected)


@pytest.mark.usefixtures("_another_default_device")
def test_under_a_default_device_the_order_of_samples_is_the_same():
    share = Share(num_samples=5, batch_size=2, even=False, drop_last=False)
    sampler = ShareSampler(share, *pieces_of([1]), shuffle=True, seed=3)
    order = list(sampler)
    with torch.device("cpu"):
        assert order == list(sampler)
