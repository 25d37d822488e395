"""How N samples are dealt to the ranks of workers, and cut into batches."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.index_share import Share, ShareSampler
from tests.component.loaders import dealt, pieces_of

Dealt = list[tuple[Share, EpochPiece]]


@given(dealt())
def test_shares_of_all_workers_are_a_partition_in_which_ranks_differ_by_one_sample(shares: Dealt):
    at = 0
    for share, piece in shares:
        start, end = piece.bounds(share.num_samples)
        assert start == at
        least = share.num_samples // piece.count
        assert 0 <= end - start - least * piece.ranks <= piece.ranks
        at = end
    assert at == share.num_samples


@given(dealt())
def test_batches_cover_the_share_unless_the_last_is_dropped(shares: Dealt):
    for share, piece in shares:
        samples = piece.length(share.num_samples)
        sizes = share.sizes(piece)
        assert all(size >= share.ranks for size in sizes)
        if share.drop_last:
            assert set(sizes) <= {share.batch_size * share.ranks}
            assert sum(sizes) <= samples
            if not share.even:
                assert samples - sum(sizes) < share.batch_size * share.ranks
        else:
            assert sum(sizes) == samples


# One worker has a full batch and a sample more, the other a full batch: both need two batches.
@example(
    [(Share(num_samples=9, batch_size=4, even=True, drop_last=False), piece) for piece in pieces_of([1, 1])]
)
@given(dealt())
def test_even_shares_have_equally_many_batches_and_others_full_ones(
    shares: Dealt,
):
    for share, piece in shares:
        sizes = share.sizes(piece)
        full = share.batch_size * share.ranks
        if share.even and len(shares) > 1:
            assert len(sizes) == len(shares[0][0].sizes(shares[0][1]))
            assert not sizes or max(sizes) - min(sizes) <= 1
            assert not sizes or max(sizes) <= max(full, 2 * share.ranks)
        elif 0 < sum(sizes) % full < share.ranks:  # a rank would have none of the last batch
            assert max(sizes) - min(sizes) <= 1
        else:
            assert set(sizes[:-1]) <= {full}
            assert max(sizes, default=0) <= full


@given(dealt())
def test_even_shares_need_no_more_batches_than_full_ones(shares: Dealt):
    share, piece = shares[0]
    if share.even and not share.drop_last:
        largest = -(-share.num_samples // piece.count)
        assert len(share.sizes(piece)) <= -(-largest // share.batch_size)


@given(dealt(), st.data())
def test_from_the_end_of_each_batch_the_rest_is_the_batches_that_follow(shares: Dealt, data: st.DataObject):
    """So a worker that goes on in its share has the batches that it would have had."""
    share, piece = data.draw(st.sampled_from(shares))
    sizes = share.sizes(piece)
    done = data.draw(st.integers(0, len(sizes)))
    rest = EpochPiece(
        epoch=0, place=piece.place, ranks=piece.ranks, count=piece.count, first=sum(sizes[:done])
    )
    assert share.cut(rest) == (done, sizes[done:])


@given(dealt(), st.integers(1, 4), st.integers(1, 70), st.booleans(), st.data())
def test_what_another_one_left_over_is_cut_into_batches_of_who_takes_it(
    shares: Dealt, ranks: int, batch_size: int, even: bool, data: st.DataObject
):
    """Every sample once, each batch with one for each rank; but for what is less than its ranks."""
    left, piece = data.draw(st.sampled_from(shares))
    first = data.draw(st.integers(0, piece.length(left.num_samples)))
    rest = EpochPiece(epoch=0, place=piece.place, ranks=piece.ranks, count=piece.count, first=first)
    takes = Share(
        num_samples=left.num_samples, batch_size=batch_size, even=even, drop_last=False, ranks=ranks
    )
    sizes = takes.sizes(rest)
    samples = rest.length(left.num_samples)
    assert sum(sizes) == samples * (samples >= ranks)
    assert all(size >= ranks for size in sizes)


@pytest.mark.parametrize("drop_last", [False, True])
def test_one_worker_has_the_batches_of_torch_in_every_model(drop_last: bool):
    """62, 62, ..., 61 for a batch size of 64 would be another training than the script's alone."""
    batches = DataLoader(range(1437), batch_size=64, drop_last=drop_last)
    (alone,), (group,) = pieces_of([1]), pieces_of([2])
    for even in (True, False):
        share = Share(num_samples=1437, batch_size=64, even=even, drop_last=drop_last)
        assert share.sizes(alone) == [len(batch) for batch in batches]
        share = Share(num_samples=1437, batch_size=32, even=even, drop_last=drop_last, ranks=2)
        assert share.sizes(group) == [len(batch) for batch in batches]


@pytest.mark.parametrize("samples", range(3, 60))
@pytest.mark.parametrize("even", [True, False])
def test_every_rank_of_a_group_gets_a_part_of_every_batch(samples: int, even: bool) -> None:
    share = Share(num_samples=samples, batch_size=2, even=even, drop_last=False, ranks=3)
    (piece,) = pieces_of([3])
    parts = [list(ShareSampler(share, piece, shuffle=False, seed=0, rank=rank)) for rank in range(3)]

    assert sorted(index for part in parts for batch in part for index in batch) == list(range(samples))
    assert all(batch for part in parts for batch in part)
    for batches in zip(*parts, strict=True):
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
