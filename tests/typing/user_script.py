"""What a user may write, under `mypy --strict`: read by `test_user_script`, never run."""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, assert_type

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import ps_worker as ps


def train(worker: ps.Worker, model: nn.Module, dataset: TensorDataset) -> float:
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = worker.wrap(inner, model, overlap="auto", weight="samples", strict_hyperparameters=True)
    assert_type(optimizer, ps.WrappedOptimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu")
    loader = worker.loader(dataset, batch_size=64, shuffle=True, seed=1, drop_last=True, num_workers=2)
    assert_type(loader, ps.Loader)
    total = torch.zeros(())
    for epoch in worker.epochs(3, start=1):
        assert_type(epoch, int)
        for x, y in loader:
            with optimizer.no_sync():
                F.cross_entropy(model(x), y).backward()
            loss = F.cross_entropy(model(x), y)
            assert_type(loss, Tensor)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            worker.log(loss=loss, epoch=epoch, rate=0.5)
            total += loss.detach()
        scheduler.step()
    worker.synchronize()
    torch.save({"optimizer": optimizer.state_dict(), "loader": loader.state_dict()}, "checkpoint")
    worker.finish()
    return total.item()


def with_a_closure(worker: ps.Worker, model: nn.Module, x: Tensor) -> None:
    optimizer = worker.wrap(
        torch.optim.SGD(model.parameters(), lr=0.1), model, overlap=False, clip_grad_norm=1.0
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))], "lr": 0.5})
    optimizer.load_state_dict(optimizer.state_dict())
    assert_type(optimizer.overlaps, bool)
    assert_type(optimizer.step_number, int)
    assert_type(optimizer.abstained, int)
    assert_type(optimizer.waited_s, float)
    accumulating: AbstractContextManager[None] = optimizer.no_sync()
    assert_type(optimizer.state_dict(), dict[str, Any])
    as_torchs: torch.optim.Optimizer = optimizer
    with accumulating:
        print(as_torchs.param_groups)


def without_autograd(worker: ps.Worker) -> Tensor:
    buckets = ps.BucketOptions(partition_bytes=1 << 20)
    choice = ps.SGD(lr=1.0, momentum=0.9)
    assert_type(choice, ps.OptimizerChoice)
    table = worker.table({"w": torch.zeros(4)}, optimizer=choice, buckets=buckets)
    assert_type(table, ps.Table)
    assert_type(table.push({"w": torch.ones(4)}, weight=2.0), Future[None])
    assert_type(table.abstain(), Future[None])
    assert_type(table.pull(), Future[ps.Pulled])
    pulled = table.pull(out={"w": torch.empty(4)}).result()
    assert_type(pulled.values, Mapping[str, Tensor])
    assert_type((pulled.version, pulled.spread), tuple[int, int])
    assert_type(pulled.clocks, Mapping[int, int])
    return pulled.values["w"]


def figures(worker: ps.Worker) -> str:
    assert_type((worker.rank, worker.num_workers, worker.step, worker.ended), tuple[int, int, int, bool])
    worker.register_state("generator", torch.Generator())
    stats = worker.stats()
    assert_type(stats, ps.Stats)
    assert_type((stats.step, stats.abstained, stats.samples), tuple[int, int, int])
    assert_type((stats.waited_s, stats.gate_wait_s), tuple[float, float])
    assert_type((stats.staleness.mean, stats.staleness.p99), tuple[float, int])
    return f"{stats.max_gap} {stats.spread}"


def shard(worker: ps.Worker, plain: DataLoader[list[Tensor]]) -> None:
    loader = worker.shard(plain, seed=3)
    assert_type((len(loader), loader.epoch), tuple[int, int])
    loader.set_epoch(2)
    loader.epoch = 1
    loader.load_state_dict(loader.state_dict())


def main() -> None:
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.zeros(10, 4), torch.zeros(10, dtype=torch.long))
    try:
        with ps.connect(servers="none", consistency="ssp:2", num_workers=1, start_limit=5.0) as worker:
            assert_type(worker, ps.Worker)
            train(worker, model, data)
            worker.leave("done")
    except ps.GradientChanged as error:
        assert_type((error.message, error.exit_code, error.retryable), tuple[str, int, bool])
        raise
    except ps.PsError as error:
        assert_type(error.facts, dict[str, str | int | float | None])


if __name__ == "__main__":
    main()
