"""Loaders and streams without a job around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from ps_worker.data.index_share import Share
from ps_worker.data.loader import Loader


class Stream(IterableDataset[int]):
    """The numbers below `length`, moved on by a thousand each epoch that it is told of."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(1000 * self.epoch, 1000 * self.epoch + self.length))


def made(samples: int | Dataset[Any], rank: int = 0, num_workers: int = 1, **given: Any) -> Loader:
    """A loader as a worker makes it; of the numbers below `samples`, or of a dataset."""
    values: dict[str, Any] = {
        "batch_size": 16,
        "shuffle": None,
        "seed": 0,
        "drop_last": False,
        "even": True,
        "ended": False,
        "on_batch": lambda _size: None,
        "options": {},
        "current_epoch": lambda: None,
    }
    dataset = range(samples) if isinstance(samples, int) else samples
    return Loader(dataset, rank=rank, num_workers=num_workers, **values | given)


def epoch_of(loader: Loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@st.composite
def shares(draw: st.DrawFn) -> Share:
    num_workers = draw(st.integers(1, 9))
    return Share(
        num_samples=draw(st.integers(num_workers, 400)),
        num_workers=num_workers,
        batch_size=draw(st.integers(1, 70)),
        even=draw(st.booleans()),
        drop_last=draw(st.booleans()),
    )
