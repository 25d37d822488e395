"""The loader deals every sample once per epoch, in an order that all workers draw alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset, default_collate

import ps_worker as ps
from ps_wire.errors import UsageError
from ps_wire.process.ranks import Ranks
from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.index_share import Share
from tests.component.loaders import Alone, Counting, dealt, epoch_of, made
from tests.component.service import Cluster, run_workers


@given(dealt(most_ranks=3), st.integers(0, 1000), st.integers(0, 3))
def test_every_sample_comes_once_per_epoch(shares: list[tuple[Share, EpochPiece]], seed: int, epoch: int):
    """On one rank of one worker, whatever the sizes of their groups."""
    seen: Counter[int] = Counter()
    for worker, (share, piece) in enumerate(shares):
        parts = []
        for rank in range(share.ranks):
            loader = made(
                share.num_samples,
                worker,
                len(shares),
                batch_size=share.batch_size,
                even=share.even,
                drop_last=share.drop_last,
                seed=seed,
                ranks=Ranks(rank=rank, size=share.ranks),
                dealer=Alone(piece),
            )
            loader.epoch = epoch
            parts.append(epoch_of(loader))
            assert len(loader) == len(parts[-1])
        sizes = [sum(map(len, batches)) for batches in zip(*parts, strict=True)]
        assert sizes == share.sizes(piece)
        assert all(batch for part in parts for batch in part)
        seen.update(index for part in parts for batch in part for index in batch)
    assert max(seen.values(), default=1) == 1
    if not shares[0][0].drop_last:
        assert set(seen) == set(range(shares[0][0].num_samples))


def test_128_samples_in_batches_of_16():
    assert [len(batch) for batch in epoch_of(made(128))] == [16] * 8
    for worker in range(4):
        assert [len(batch) for batch in epoch_of(made(128, worker, 4))] == [16] * 2


def test_129_samples_over_four_workers():
    even = [[len(batch) for batch in epoch_of(made(129, worker, 4))] for worker in range(4)]
    assert even == [[11, 11, 11], [11, 11, 10], [11, 11, 10], [11, 11, 10]]
    full = [[len(batch) for batch in epoch_of(made(129, worker, 4, even=False))] for worker in range(4)]
    assert full == [[16, 16, 1], [16, 16], [16, 16], [16, 16]]


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_bsp_is_even_and_the_others_are_full(cluster: Cluster, consistency: str):
    def body(worker: ps.Worker) -> list[list[int]]:
        loader = worker.loader(list(range(129)), batch_size=16)
        batches = epoch_of(loader)
        assert worker.stats().samples == sum(len(batch) for batch in batches)
        return batches

    dealt = run_workers(cluster, body, num_workers=4, consistency=consistency)
    assert sorted(index for batches in dealt for batch in batches for index in batch) == list(range(129))
    sizes = [[len(batch) for batch in batches] for batches in dealt]
    if consistency == "bsp":
        assert {len(of_one) for of_one in sizes} == {3}
    else:
        assert sizes[0] == [16, 16, 1]


def test_each_epoch_has_another_order_and_the_same_on_all_workers():
    loaders = [made(40, worker, 2) for worker in range(2)]
    again = [made(40, worker, 2) for worker in range(2)]
    orders = []
    for _ in range(3):
        dealt = [epoch_of(loader) for loader in loaders]
        assert [epoch_of(loader) for loader in again] == dealt
        flat = [index for batches in dealt for batch in batches for index in batch]
        assert sorted(flat) == list(range(40))
        orders.append(flat)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    other = epoch_of(made(40, 0, 1, seed=1))
    assert other != epoch_of(made(40, 0, 1, seed=2))


def test_the_global_generator_has_no_say():
    torch.manual_seed(1)
    first = epoch_of(made(40))
    torch.manual_seed(2)
    assert epoch_of(made(40)) == first


def test_without_shuffle_the_order_is_the_datasets():
    parts = [
        [index for batch in epoch_of(made(10, w, 3, shuffle=False)) for index in batch] for w in range(3)
    ]
    assert parts == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_an_epoch_that_was_left_early_is_over():
    loader = made(64)
    first = next(iter(loader)).tolist()
    assert loader.epoch == 1
    assert epoch_of(loader)[0] != first
    fresh = made(64)
    fresh.epoch = 1
    assert epoch_of(loader) != epoch_of(fresh)  # loader is at its third


def test_batches_are_counted_when_they_are_handed_out():
    counting = Counting()
    counted = counting.sizes
    loader = made(40, listener=counting)
    for number, batch in enumerate(loader, start=1):
        assert len(counted) == number
        assert counted[-1] == len(batch)


class Unsized(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"batch_size": -3}, "batch_size must be a whole number >= 1, got -3"),
        ({"batch_size": 2.5}, "batch_size must be a whole number >= 1, got 2.5"),
        ({"batch_size": None}, "batch_size must be a whole number >= 1, got None"),
        ({"options": {"sampler": None}}, "leave sampler out"),
        ({"options": {"batch_sampler": None}}, "leave batch_sampler out"),
        ({"options": {"in_order": False}}, "leave in_order out"),
        ({"num_workers": 41}, "40 samples for 41 workers"),
    ],
)
def test_what_makes_no_sense_is_a_named_error(change: dict[str, Any], text: str):
    with pytest.raises(UsageError, match=text):
        made(40, **change)


def test_a_dataset_without_a_length_that_is_not_iterable_is_a_named_error(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(UsageError, match=r"map-style.* or a torch.utils.data.IterableDataset"):
            worker.loader(Unsized())

    run_workers(cluster, body)


def test_a_loader_says_what_it_was_made_with_as_torchs_does():
    """But for `sampler`: it deals the samples itself."""
    plain = made(40)
    assert (plain.batch_size, plain.drop_last, plain.num_workers) == (16, False, 0)
    assert plain.collate_fn is default_collate
    other = made(40, batch_size=4, drop_last=True, options={"num_workers": 2, "collate_fn": list})
    assert (other.batch_size, other.drop_last, other.num_workers) == (4, True, 2)
    assert other.collate_fn is list
    assert not hasattr(other, "sampler")


def test_options_of_a_dataloader_pass_through():
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    seen: list[Any] = []

    def collate(samples: list[Any]) -> int:
        seen.append(samples)
        return len(samples)

    loader = made(data, batch_size=4, shuffle=False, options={"collate_fn": collate})
    assert list(loader) == [4, 4]
    assert [int(y) for _, y in seen[0]] == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="colour"):
        made(40, options={"colour": "red"})


def test_loader_processes_give_the_same_batches():
    """Children are spawned: this process has threads of gRPC's."""
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    loader, plain = made(40, options=options), made(40)
    for _ in range(2):
        assert epoch_of(loader) == epoch_of(plain)


def test_a_loader_of_an_ended_job_hands_out_nothing_and_knows_its_length():
    """Who comes late makes its scheduler as everybody did: OneCycleLR refuses an epoch of 0 batches."""
    loader = made(40, ended=True)
    assert len(loader) == len(made(40)) > 0
    assert list(loader) == []
