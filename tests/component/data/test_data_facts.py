"""Workers whose loaders differ in what they must not are refused by name, before a step is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import ps_worker as ps
from ps_wire.errors import JobMismatch
from ps_worker.data.data_facts import MAX_SUMS, facts_of, fingerprint, sums_of
from tests.component.loaders import Stream
from tests.component.service import fresh_name, together
from tests.until import LIMIT_S, until

LABELS = torch.arange(100)


def refused(one_shard: Any, make: Callable[[ps.Worker], ps.Loader], consistency: str = "asp") -> list[str]:
    """What two workers that make their loaders so are told."""
    job = fresh_name()

    def body(rank: int) -> str:
        with ps.connect(
            servers=one_shard.servers, job=job, num_workers=2, worker=rank, consistency=consistency
        ) as worker:
            worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
            try:
                next(iter(make(worker)))
            except JobMismatch as error:
                return str(error)
            return ""

    said = together([lambda: body(0), lambda: body(1)], LIMIT_S)
    return [text for text in said if text]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda it: it.loader(range(100), batch_size=4, seed=it.rank), "seed [01] on worker [01]"),
        (lambda it: it.loader(range(100 - it.rank), batch_size=4), "samples (99|100) on worker [01]"),
        (lambda it: it.loader(range(100), batch_size=4, shuffle=it.rank == 0), "shuffle "),
        (lambda it: it.loader(Subset(range(100), range(it.rank, 100, 2)), batch_size=4), "data "),
        (lambda it: it.loader(TensorDataset(LABELS[it.rank :: 2]), batch_size=4), "data "),
        (
            lambda it: it.shard(
                DataLoader(range(100), shuffle=True, generator=torch.Generator().manual_seed(it.rank))
            ),
            "seed [01] on worker [01]",
        ),
    ],
    ids=["seed", "length", "shuffle", "subset", "tensors", "generator"],
)
def test_loaders_that_differ_are_refused_by_the_workers_and_the_values(
    one_shard: Any, make: Callable[[ps.Worker], ps.Loader], name: str
):
    (text,) = refused(one_shard, make)
    assert re.search(f"loader 0 .*{name}.*: ", text), text


def test_loaders_that_are_alike_are_not_refused(one_shard: Any):
    """A seed where nothing is shuffled, and numbers that each worker computes, may differ."""
    assert not refused(one_shard, lambda it: it.loader(range(100), shuffle=False, seed=it.rank))
    assert not refused(one_shard, lambda it: it.loader(TensorDataset(torch.randn(100, 2), LABELS), seed=7))
    assert not refused(one_shard, lambda it: it.loader(Stream(50), seed=it.rank))


def test_a_fingerprint_is_of_what_a_dataset_says_without_being_read():
    first, second = (TensorDataset(LABELS[start::2]) for start in (0, 1))
    assert fingerprint(range(3)) == ""
    assert fingerprint(Subset(first, [0, 1])) == fingerprint(Subset(first, (0, 1)))
    assert fingerprint(Subset(first, [0, 1])) != fingerprint(Subset(second, [0, 1]))
    assert fingerprint(ConcatDataset([first, second])) != fingerprint(ConcatDataset([second, first]))
    assert len(facts_of(range(3), seed=1 << 1000, shuffle=None)["seed"]) == 16


def test_data_that_is_no_whole_numbers_and_differs_is_said_to_the_workers_and_not_refused(one_shard, caplog):
    """Each computed, or drew, its own; a part of the data in place of all of it looks like that, too."""
    whole = torch.arange(200.0).reshape(100, 2)
    with caplog.at_level("INFO"):
        assert not refused(one_shard, lambda it: it.loader(TensorDataset(whole * (1 + 1e-6 * it.rank))))
        assert "other numbers in its data" not in caplog.text
        assert not refused(one_shard, lambda it: it.loader(TensorDataset(whole[it.rank * 50 :][:50])))
        until(lambda: "loader 0 (the first is 0) has other numbers in its data" in caplog.text, "it is said")


@pytest.mark.parametrize("more", [0, 1])
def test_loops_with_other_numbers_of_epochs_are_said_to_the_workers(one_shard, caplog, more: int):
    """One may end before the others, so it is no error."""
    job = fresh_name()

    def body(rank: int) -> list[int]:
        with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
            worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
            epochs = [*worker.epochs(2), *worker.epochs(3 + more * rank)]
            if more:  # while both are there
                until(lambda: "loop 1 over worker.epochs (the first is 0) ends with" in caplog.text)
            worker.barrier()
            return epochs

    with caplog.at_level("INFO"):
        counts = together([lambda: body(0), lambda: body(1)], LIMIT_S)
        assert [len(epochs) for epochs in counts] == [5, 5 + more]
        assert ("over worker.epochs (the first is 0)" in caplog.text) == bool(more)


def test_sums_are_of_rows_over_the_whole_length_and_few():
    data = TensorDataset(torch.arange(100.0), torch.ones(100, 3, dtype=torch.bfloat16), LABELS)
    assert sums_of(data) == [0.0, 33.0, 66.0, 99.0, 3.0, 3.0, 3.0, 3.0]
    assert sums_of(Subset(data, [0])) == sums_of(data)
    for dataset in (TensorDataset(LABELS), range(3), TensorDataset(torch.ones(0, 2))):
        assert sums_of(dataset) == []
    assert len(sums_of(ConcatDataset([data] * 5))) == MAX_SUMS


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda it: it.loader(range(100), batch_size=4 + it.rank), "batch_size [45] on worker [01]"),
        (lambda it: it.loader(range(100), batch_size=8, drop_last=it.rank == 0), "drop_last "),
    ],
    ids=["batch_size", "drop_last"],
)
def test_under_bsp_batches_of_other_sizes_are_refused_and_under_asp_they_are_a_choice(one_shard, make, name):
    """A worker with smaller batches has more steps in an epoch: the others would be in their next one."""
    (said,) = refused(one_shard, make, "bsp")
    assert re.search(f"has {name}", said)
    assert "equally many batches" in said
    assert refused(one_shard, make, "asp") == []
