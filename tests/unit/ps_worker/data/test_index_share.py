"""How N samples are dealt to W workers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from torch.utils.data import DataLoader

from ps_worker.data.index_share import Share, ShareSampler
from tests.component.loaders import shares


@given(shares())
def test_parts_of_all_workers_are_a_partition(share: Share):
    at = 0
    for worker in range(share.num_workers):
        start, end = share.bounds(worker)
        assert start == at
        assert end - start in (
            share.num_samples // share.num_workers,
            -(-share.num_samples // share.num_workers),
        )
        at = end
    assert at == share.num_samples


@given(shares())
def test_batches_cover_the_part_unless_the_last_is_dropped(share: Share):
    for worker in range(share.num_workers):
        start, end = share.bounds(worker)
        sizes = share.sizes(worker)
        assert all(size >= 1 for size in sizes)
        if share.drop_last:
            assert set(sizes) <= {share.batch_size}
            assert sum(sizes) <= end - start
            if not share.even:
                assert end - start - sum(sizes) < share.batch_size
        else:
            assert sum(sizes) == end - start


# One worker has a full batch and a sample more, the other a full batch: both need two batches.
@example(Share(num_samples=9, num_workers=2, batch_size=4, even=True, drop_last=False))
@given(shares())
def test_even_shares_have_equally_many_batches_and_others_full_ones(share: Share):
    sizes = [share.sizes(worker) for worker in range(share.num_workers)]
    if share.even and share.num_workers > 1:
        assert len({len(of_one) for of_one in sizes}) == 1
        flat = [size for of_one in sizes for size in of_one]
        assert not flat or max(flat) - min(flat) <= 1
        assert not flat or max(flat) <= max(share.batch_size, 2)
    else:
        for of_one in sizes:
            assert set(of_one[:-1]) <= {share.batch_size}
            assert not of_one or of_one[-1] <= share.batch_size


@given(shares())
def test_even_shares_need_no_more_batches_than_full_ones(share: Share):
    if share.even and not share.drop_last:
        largest = -(-share.num_samples // share.num_workers)
        assert len(share.sizes(0)) <= -(-largest // share.batch_size)


@pytest.mark.parametrize("drop_last", [False, True])
def test_one_worker_has_the_batches_of_torch_in_every_model(drop_last: bool):
    """62, 62, ..., 61 for a batch size of 64 would be another training than the script's alone."""
    batches = DataLoader(range(1437), batch_size=64, drop_last=drop_last)
    for even in (True, False):
        share = Share(num_samples=1437, num_workers=1, batch_size=64, even=even, drop_last=drop_last)
        assert share.sizes(0) == [len(batch) for batch in batches]


@pytest.mark.parametrize("samples", range(3, 60))
@pytest.mark.parametrize("even", [True, False])
def test_every_rank_of_a_group_gets_a_part_of_every_batch(samples: int, even: bool) -> None:
    share = Share(num_samples=samples, num_workers=1, batch_size=6, even=even, drop_last=False, least=3)
    parts = []
    for rank in range(3):
        sampler = ShareSampler(share, 0, shuffle=False, seed=0, part=(rank, 3))
        parts.append(list(sampler))

    assert sorted(index for part in parts for batch in part for index in batch) == list(range(samples))
    assert all(batch for part in parts for batch in part)
    for batches in zip(*parts, strict=True):
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
