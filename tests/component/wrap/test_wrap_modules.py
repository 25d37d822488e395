"""Modules whose weights or buffers are not the usual ones: BSP against plain torch, bit for bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

import ps_worker as ps
from tests.component.models import Mlp, Normed, loss_of
from tests.component.reference import alone, assert_same, batch, check, seeded
from tests.component.scripts import STEPS, train
from tests.component.service import Cluster, run_workers

workers = pytest.mark.parametrize("num_workers", [1, 2])
overlaps = pytest.mark.parametrize("overlap", ["auto", True, False])


def adamw(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


# -- weights -------------------------------------------------------------------------------------------


PARAMETRIZATIONS: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral_norm of torch 1": nn.utils.spectral_norm,
}


@overlaps
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_a_parametrized_weight(cluster: Cluster, name: str, overlap: Any):
    """Its originals are the parameters; what forward uses is computed from them. Buffers are per worker."""

    def make() -> nn.Module:
        model = Mlp()
        PARAMETRIZATIONS[name](model.first)
        return model

    got = check(cluster, train, seeded(make), adamw, num_workers=2, overlap=overlap)
    assert is_parametrized(got.first) or hasattr(got.first, "weight_orig")


class OddlyLaid(nn.Module):
    """A transposed weight, every second row of a larger one, and one whose elements share a place."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed = nn.Parameter(torch.randn(5, 13).t())
        self.rows = nn.Parameter(torch.randn(10, 6)[::2, ::3])
        self.shared = nn.Parameter(torch.randn(1, 1).expand(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.transposed) @ (self.rows * self.shared)


@overlaps
@workers
def test_weights_that_are_not_contiguous(cluster: Cluster, num_workers: int, overlap: Any):
    """A dense layout stays; one with gaps, or with elements that share memory, becomes contiguous."""
    plain = seeded(OddlyLaid)
    model = copy.deepcopy(plain)
    for name in ("rows", "shared"):  # torch itself cannot step in place where elements share memory
        plain.register_parameter(name, nn.Parameter(getattr(plain, name).detach().contiguous()))

    def script(rank: int, mine: nn.Module, optimizer: Any) -> None:
        if isinstance(optimizer, ps.WrappedOptimizer):
            assert mine.transposed.stride() == (1, 13)
            assert mine.rows.is_contiguous()
            assert mine.shared.is_contiguous()
        train(rank, mine, optimizer)

    expected = alone(script, plain, adamw, num_workers=num_workers)
    models = [copy.deepcopy(model) for _ in range(num_workers)]

    def body(worker: ps.Worker) -> None:
        mine = models[worker.rank]
        script(worker.rank, mine, worker.wrap(adamw(mine), mine, overlap=overlap))
        worker.finish()

    run_workers(cluster, body, num_workers=num_workers)
    for mine in models:
        assert_same(mine, expected)


class Attention(nn.Module):
    """`nn.MultiheadAttention` reads the weights of its `out_proj` and never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@overlaps
@workers
def test_a_module_whose_forward_is_never_called(cluster: Cluster, num_workers: int, overlap: Any):
    def script(rank: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        called: list[int] = []
        model.layer.self_attn.out_proj.register_forward_hook(lambda *_: called.append(1))
        for step in range(STEPS):
            model(batch(rank, step, 2, 5, 12)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not called

    buckets = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)
    more = {"num_workers": num_workers, "overlap": overlap, "buckets": buckets}
    check(cluster, script, seeded(Attention), adamw, **more)


def test_a_lazy_module_that_has_run_once(cluster: Cluster):
    def make() -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
        model(torch.ones(2, 13))
        return model

    check(cluster, train, seeded(make), adamw, num_workers=2)


def test_lazy_buffers_are_named(cluster: Cluster):
    """All parameters are there, and the statistics of BatchNorm are not."""

    def body(worker: ps.Worker) -> None:
        model = nn.Sequential(nn.Linear(13, 4), nn.LazyBatchNorm1d(affine=False))
        with pytest.raises(ps.ConfigurationRefused, match=r"'1\.running_mean' is lazy: run the model once"):
            worker.wrap(adamw(model), model)

    run_workers(cluster, body)


class Mixed(nn.Module):
    """Two dtypes, a scalar and a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 7)
        self.second = nn.Linear(7, 3).double()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)).double()) * self.scale + self.empty.sum()


@overlaps
def test_several_dtypes_scalars_and_empty_parameters(cluster: Cluster, overlap: Any):
    def make(model: Any, **kind: Any) -> torch.optim.Optimizer:
        single = [*model.first.parameters(), model.scale, model.empty]
        groups = [{"params": single}, {"params": list(model.second.parameters())}]  # as fused kernels want it
        return torch.optim.AdamW(groups, lr=0.01, **kind)

    check(cluster, train, seeded(Mixed), make, num_workers=2, overlap=overlap)


def test_dropout_draws_what_it_draws_in_plain_torch(cluster: Cluster):
    def script(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            train(rank, model, optimizer)

    model = seeded(lambda: nn.Sequential(nn.Linear(13, 30), nn.Dropout(), nn.Linear(30, 2)))
    check(cluster, script, model, adamw)


def test_nothing_draws_from_the_generators_of_the_script():
    """Not even a server inside the process."""
    model = seeded(Mlp)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with ps.connect(servers="none") as worker:
        optimizer = worker.wrap(adamw(model), model)
        train(0, model, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        worker.finish()
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(after[0], before[0])
    assert after[1:] == before[1:]


def test_a_models_state_dict_is_saved_and_copied_as_in_torch(cluster: Cluster, tmp_path: Path):
    """A file holds the weights and not the flat memory that they lie in; a copy stays as it was."""
    plain, model = seeded(Mlp), seeded(Mlp)
    torch.save(plain.state_dict(), tmp_path / "plain")

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(adamw(model), model)
        torch.save(model.state_dict(), tmp_path / "wrapped")
        copied = copy.deepcopy(model)
        train(0, model, optimizer)
        assert_same(copied, plain)

    run_workers(cluster, body)
    sizes = [(tmp_path / name).stat().st_size for name in ("plain", "wrapped")]
    assert abs(sizes[0] - sizes[1]) < 100  # names in the archive
    plain.load_state_dict(torch.load(tmp_path / "wrapped", weights_only=True))
    assert_same(plain, seeded(Mlp))
    assert not torch.equal(model.first.weight, plain.first.weight)


# -- models that something else has wrapped ------------------------------------------------------------


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore:.*deprecated")
@pytest.mark.parametrize("kind", ["DataParallel", "DistributedDataParallel", "FSDP", "fully_shard"])
def test_torchs_own_replicas_and_shards_are_refused(cluster: Cluster, kind: str):
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: PLC0415

    bare = nn.Sequential(nn.Linear(13, 4))
    model: nn.Module = {
        "DataParallel": nn.DataParallel,
        "DistributedDataParallel": nn.parallel.DistributedDataParallel,
        "FSDP": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
        "fully_shard": lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (1,))),
    }[kind](bare)

    def body(worker: ps.Worker) -> None:
        with pytest.raises(ps.ConfigurationRefused, match=r"is wrapped by .*Wrap the bare module instead"):
            worker.wrap(adamw(model), model)

    run_workers(cluster, body)


@pytest.mark.usefixtures("process_group")
def test_parameters_that_are_parts_of_one_are_refused(cluster: Cluster):
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    model = nn.Linear(13, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), init_device_mesh("cpu", (1,))))

    def body(worker: ps.Worker) -> None:
        with pytest.raises(ps.ConfigurationRefused, match=r"'weight' is a DTensor.* wrap the bare module"):
            worker.wrap(adamw(model), model)

    run_workers(cluster, body)


# -- buffers and averages ------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_batch_norm_is_evaluated_after_finish_with_one_workers_statistics(cluster: Cluster, consistency: str):
    """In eval mode all workers give the same bytes; under bsp they are those of plain replica 0."""
    models = [seeded(Normed, seed=rank) for rank in range(2)]
    start = copy.deepcopy(models[0])

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        train(worker.rank, model, worker.wrap(adamw(model), model))
        worker.finish()

    run_workers(cluster, body, num_workers=2, consistency=consistency)
    x = batch(9, 9, 6, 13)
    first, second = (model.eval()(x) for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, copy.deepcopy(start).eval()(x))
    if consistency == "bsp":
        expected = alone(train, start, adamw, num_workers=2).eval()
        assert torch.equal(first, expected(x))


@workers
def test_a_moving_average_of_the_weights(cluster: Cluster, num_workers: int):
    """EMA with buffers, then the learning rate of SWA, and BatchNorm's statistics for the average."""
    averages: list[nn.Module] = []

    def script(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        scheduler = SWALR(optimizer, swa_lr=0.005, anneal_epochs=2)
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            scheduler.step()
        update_bn([batch(rank, 50 + step, 4, 13) for step in range(3)], average)
        if rank == 0:
            averages.append(average)

    check(cluster, script, seeded(Normed), adamw, num_workers=num_workers)
    plain, got = averages
    assert_same(got, plain)
    for one, other in zip(got.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)
