"""`worker.shard`: a DataLoader that exists is dealt to the workers, with all that it was made with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import ps_worker as ps
from ps_wire.errors import UsageError
from ps_worker.data import torch_loader
from tests.component.loaders import Stream, epoch_of, made
from tests.component.service import Cluster, run_workers

DATA: Any = range(129)


def test_workers_deal_an_existing_loader(cluster: Cluster):
    def body(worker: ps.Worker) -> list[list[int]]:
        loader = worker.shard(DataLoader(DATA, batch_size=16, shuffle=True))
        assert len(loader) == 3
        batches = epoch_of(loader)
        assert worker.stats().samples == sum(len(batch) for batch in batches)
        assert batches == epoch_of(worker.loader(DATA, batch_size=16))
        return batches

    dealt = run_workers(cluster, body, num_workers=4)
    assert sorted(index for batches in dealt for batch in batches for index in batch) == list(range(129))


def test_a_loader_in_order_stays_in_order(cluster: Cluster):
    def body(worker: ps.Worker) -> list[list[int]]:
        return epoch_of(worker.shard(DataLoader(range(10), batch_size=4, drop_last=True)))

    assert run_workers(cluster, body, num_workers=2) == [[[0, 1, 2, 3]], [[5, 6, 7, 8]]]


def test_a_loader_of_an_iterable_dataset_is_dealt_sample_by_sample(cluster: Cluster):
    def body(worker: ps.Worker) -> list[Any]:
        return list(worker.shard(DataLoader(Stream(9), batch_size=2, collate_fn=tuple)))

    assert run_workers(cluster, body, num_workers=2) == [[(0, 2), (4, 6, 8)], [(1, 3), (5, 7)]]


def test_everything_that_the_loader_was_made_with_is_kept():
    def nothing(_worker: int) -> None:
        pass

    context = torch.multiprocessing.get_context("spawn")
    given: dict[str, Any] = {
        "collate_fn": tuple,
        "num_workers": 2,
        "pin_memory": True,
        "timeout": 7.5,
        "worker_init_fn": nothing,
        "multiprocessing_context": context,
        "generator": torch.Generator().manual_seed(5),
        "prefetch_factor": 3,
        "persistent_workers": True,
    }
    read = torch_loader.read(DataLoader(DATA, batch_size=8, shuffle=True, drop_last=True, **given), seed=None)
    options = read.pop("options")
    assert {name: options[name] for name in given} == given
    assert read == {"dataset": DATA, "batch_size": 8, "shuffle": True, "seed": 5, "drop_last": True}
    kept = made(DATA, options=options)._loader
    for name, value in given.items():
        assert getattr(kept, name) == value, name


def test_the_seed_is_the_generators_unless_given():
    for loader in (
        DataLoader(DATA, shuffle=True, generator=torch.Generator().manual_seed(9)),
        DataLoader(DATA, sampler=RandomSampler(DATA, generator=torch.Generator().manual_seed(9))),
    ):
        assert torch_loader.read(loader, seed=None)["seed"] == 9
        assert torch_loader.read(loader, seed=4)["seed"] == 4
    assert torch_loader.read(DataLoader(DATA, shuffle=True), seed=None)["seed"] == 0


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (DataLoader(DATA, batch_size=None), "batch_size=None"),
        (DataLoader(Stream(4), batch_size=None), "batch_size=None"),
        (DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)), "batch_sampler"),
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 129, 129)), "WeightedRandomSampler"),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "DistributedSampler"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "replacement"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=5)), "num_samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_dealt_is_a_named_error_with_the_remedy(loader: DataLoader[Any], text: str):
    with pytest.raises(UsageError, match=rf"{text}.*: use worker.loader\(dataset, batch_size="):
        torch_loader.read(loader, seed=None)


def test_only_a_dataloader_is_taken():
    with pytest.raises(UsageError, match=r"takes a torch.utils.data.DataLoader, got Loader"):
        torch_loader.read(made(40), seed=None)  # type: ignore[arg-type]
