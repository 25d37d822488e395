"""A stream is dealt sample by sample: every one once, and under BSP equally many batches for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

import ps_worker as ps
from ps_wire.errors import UsageError
from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.stream_share import StreamShare
from tests.component.loaders import Counting, Sized, Stream, epoch_of, made, pieces_of
from tests.component.service import Cluster, run_workers

Dealt = tuple[int, list[tuple[StreamShare, EpochPiece]]]


@st.composite
def streams(draw: st.DrawFn) -> Dealt:
    """A length, and of each worker how it cuts its share, and that share."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    common = {
        "batch_size": draw(st.integers(1, 9)),
        "even": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
    }
    shares = [(StreamShare(ranks=piece.ranks, **common), piece) for piece in pieces_of(sizes)]
    return draw(st.integers(sum(sizes), 200)), shares


def of_share(piece: EpochPiece, length: int) -> list[int]:
    """The samples of a share, of a stream of the numbers below `length`."""
    ranks = range(piece.place, piece.place + piece.ranks)
    return [sample for sample in range(length) if sample % piece.count in ranks]


@given(streams())
def test_every_sample_comes_once_and_to_the_worker_that_it_belongs_to(case: Dealt):
    length, shares = case
    for share, piece in shares:
        own = [sample for batch in share.batches(piece, range(length)) for sample in batch]
        expected = of_share(piece, length)
        assert len(expected) == piece.length(length)
        if share.drop_last:
            block = piece.count * share.batch_size
            full = length // block if share.even else len(expected) // share.full
            expected = expected[: full * share.full]
        assert own == expected


@given(streams())
def test_even_shares_have_equally_many_batches_and_others_full_ones_of_a_stream(
    case: Dealt,
):
    length, shares = case
    counts = set()
    for share, piece in shares:
        sizes = [len(batch) for batch in share.batches(piece, range(length))]
        counts.add(len(sizes))
        assert share.count(piece, length) == len(sizes)
        assert all(size >= share.ranks for size in sizes)
        if share.drop_last:
            assert set(sizes) <= {share.full}
        else:
            assert set(sizes[:-1]) <= {share.full}
            assert sizes[-1] <= share.full + (share.ranks if share.even else share.ranks - 1)
    assert len(counts) == 1 or not shares[0][0].even


@given(streams(), st.data())
def test_from_the_end_of_each_batch_the_rest_of_a_stream_is_the_batches_that_follow(
    case: Dealt, data: st.DataObject
):
    length, shares = case
    share, piece = data.draw(st.sampled_from(shares))
    batches = list(share.batches(piece, range(length)))
    done = data.draw(st.integers(0, len(batches)))
    rest = replace(piece, first=sum(map(len, batches[:done])))
    assert list(share.batches(rest, range(length))) == batches[done:]


@given(streams(), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.data())
def test_what_one_of_another_size_or_with_other_batches_has_left_of_a_stream_comes_once(
    case: Dealt, batch_size: int, ranks: int, even: bool, data: st.DataObject
):
    """In full batches but for the last; but for what is less than the ranks of who takes it."""
    length, shares = case
    _, piece = data.draw(st.sampled_from(shares))
    first = data.draw(st.integers(0, piece.length(length)))
    takes = StreamShare(
        batch_size=batch_size, even=even and ranks != piece.ranks, drop_last=False, ranks=ranks
    )
    batches = list(takes.batches(replace(piece, first=first), range(length)))
    expected = of_share(piece, length)[first:]
    assert [sample for batch in batches for sample in batch] == expected * (len(expected) >= ranks)
    assert {len(batch) for batch in batches[:-1]} <= {takes.full}
    assert all(ranks <= len(batch) < takes.full + ranks for batch in batches)


def test_the_ends_of_a_stream_over_four_workers():
    """Blocks are of 8: a tail of 4 is a batch for each, of 3 it goes into the batches before it."""

    def dealt(length: int, **given: Any) -> list[list[list[int]]]:
        return [epoch_of(made(Stream(length), w, 4, batch_size=2, **given)) for w in range(4)]

    assert dealt(12) == [[[0, 4], [8]], [[1, 5], [9]], [[2, 6], [10]], [[3, 7], [11]]]
    assert dealt(11) == [[[0, 4, 8]], [[1, 5, 9]], [[2, 6, 10]], [[3, 7]]]
    assert dealt(11, drop_last=True) == [[[0, 4]], [[1, 5]], [[2, 6]], [[3, 7]]]
    assert dealt(11, even=False) == [[[0, 4], [8]], [[1, 5], [9]], [[2, 6], [10]], [[3, 7]]]
    assert dealt(11, even=False, drop_last=True) == [[[0, 4]], [[1, 5]], [[2, 6]], [[3, 7]]]
    assert dealt(4) == [[[0]], [[1]], [[2]], [[3]]]


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("length", [0, 3])
def test_a_stream_shorter_than_the_number_of_workers_is_a_named_error_for_all(length: int, even: bool):
    for rank in range(4):
        loader = made(Stream(length), rank, 4, even=even, batch_size=8)
        with pytest.raises(UsageError, match=f"has {length} samples for 4 workers"):
            list(loader)


def test_set_epoch_is_called_with_each_epoch():
    loader = made(Stream(4), 1, 2, batch_size=2)
    assert [epoch_of(loader) for _ in range(3)] == [[[1, 3]], [[1001, 1003]], [[2001, 2003]]]


def test_a_length_counts_batches_and_without_one_they_cannot_be_counted():
    assert (
        len(made(Sized(21), 0, 2, batch_size=4)) == len(epoch_of(made(Stream(21), 0, 2, batch_size=4))) == 3
    )
    with pytest.raises(TypeError, match="without a length"):
        len(made(Stream(21)))
    with pytest.raises(UsageError, match="has 1 sample for 2 workers"):
        made(Sized(1), 0, 2)


def test_an_iterable_dataset_is_not_shuffled_from_outside():
    with pytest.raises(UsageError, match=r"leave shuffle out, and shuffle inside the dataset.*set_epoch"):
        made(Stream(4), shuffle=True)
    assert epoch_of(made(Stream(4), shuffle=False)) == [[0, 1, 2, 3]]


def test_true_sizes_are_counted_when_a_batch_is_handed_out():
    counting = Counting()
    counted = counting.sizes
    loader = made(Stream(11), 0, 4, batch_size=2, listener=counting, options={"collate_fn": tuple})
    for number, batch in enumerate(loader, start=1):
        assert len(counted) == number
        assert counted[-1] == len(batch)
    assert counted == [3]


class SelfDealing(IterableDataset[int]):
    """Splits itself over the processes of a DataLoader, as torch's documentation shows it."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 40, step))


@pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore::DeprecationWarning")
@pytest.mark.parametrize("dataset", [Stream(40), SelfDealing()], ids=["plain", "deals itself"])
def test_loader_processes_deal_a_stream_like_none(dataset: Any):
    """Forked ones, which live on: each reads the whole stream; also from a position on."""
    options = {"num_workers": 3, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = made(dataset, 1, 2, batch_size=4, options=options)
    plain = made(dataset, 1, 2, batch_size=4)
    for _ in range(2):
        assert epoch_of(loader) == epoch_of(plain)
    loader.load_state_dict({**loader.state_dict(), "batches": 2})
    assert epoch_of(loader) == epoch_of(plain)[2:]
    assert epoch_of(loader) == epoch_of(plain)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_workers_of_a_job_deal_a_stream(cluster: Cluster, consistency: str):
    def body(worker: ps.Worker) -> list[list[int]]:
        batches = epoch_of(worker.loader(Stream(21), batch_size=5))
        assert worker.stats().samples == sum(len(batch) for batch in batches)
        return batches

    first, second = run_workers(cluster, body, num_workers=2, consistency=consistency)
    assert [sample for batch in first for sample in batch] == list(range(0, 21, 2))
    assert [sample for batch in second for sample in batch] == list(range(1, 21, 2))
    assert [len(batch) for batch in first] == ([5, 6] if consistency == "bsp" else [5, 5, 1])
    assert [len(batch) for batch in second] == [5, 5]


def test_uneven_batches_of_a_stream_are_exact_under_weight_samples(cluster: Cluster):
    """One step of all samples, in uneven parts, is the step on the mean over all of them."""
    data = torch.arange(1.0, 4.0)

    class Numbers(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(data)

    def body(worker: ps.Worker) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, weight="samples")
        for batch in worker.loader(Numbers(), batch_size=1):
            model(batch.unsqueeze(1)).mean().backward()
            optimizer.step()
        worker.finish()
        return model.weight.item()

    assert run_workers(cluster, body, num_workers=2) == [-2.0, -2.0]
