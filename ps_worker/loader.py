"""This worker's share of a dataset: every sample once per epoch over all workers, in a new order each time.

Legend: N = samples, W = workers, B = batch size.

The order of an epoch is a permutation that every worker draws from the same seed; worker w takes its w-th
part. Under BSP all workers get equally many batches, of sizes that differ by at most one, so that nobody
waits at the last barrier of an epoch; otherwise batches are full but for the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ps_wire.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How N samples are dealt to W workers.

    Attributes:
        num_samples: N.
        num_workers: W.
        batch_size: B, the most that a batch holds (BSP may need one more; see `sizes`).
        even: equally many batches for every worker (BSP).
        drop_last: full batches only.
    """

    num_samples: int
    num_workers: int
    batch_size: int
    even: bool
    drop_last: bool

    def bounds(self, worker: int) -> tuple[int, int]:
        """The worker's part of the permutation: first place, and the one behind the last."""
        least, more = divmod(self.num_samples, self.num_workers)
        start = worker * least + min(worker, more)
        return start, start + least + (worker < more)

    def sizes(self, worker: int) -> list[int]:
        """Sizes of the worker's batches, in order."""
        start, end = self.bounds(worker)
        share = end - start
        if self.drop_last:
            least = self.num_samples // self.num_workers if self.even else share
            return [self.batch_size] * (least // self.batch_size)
        if not self.even:
            full, rest = divmod(share, self.batch_size)
            return [self.batch_size] * full + [rest] * bool(rest)
        least, largest = self.num_samples // self.num_workers, -(-self.num_samples // self.num_workers)
        # A batch may be one over B where B does not divide: the alternative is an empty batch elsewhere.
        batches = min(-(-largest // self.batch_size), least)
        size, more = divmod(share, batches)
        return [size + 1] * more + [size] * (batches - more)


class _Batches(Sampler[list[int]]):
    """Batches of indices of one worker in the epoch that it is told."""

    def __init__(self, share: Share, worker: int, *, shuffle: bool, seed: int) -> None:
        self.epoch = 0
        self.sizes = share.sizes(worker)
        self._start, _ = share.bounds(worker)
        self._num_samples = share.num_samples
        self._shuffle = shuffle
        self._seed = seed

    def __iter__(self) -> Iterator[list[int]]:
        at = self._start
        order: list[int] | range = range(self._num_samples)
        if self._shuffle:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self.epoch) % (1 << 63))
            order = torch.randperm(self._num_samples, generator=generator).tolist()
        for size in self.sizes:
            yield list(order[at : at + size])
            at += size

    def __len__(self) -> int:
        return len(self.sizes)


class Loader:
    """An iterable of this worker's batches; each iteration is the next epoch.

    Attributes:
        dataset: what it draws from.
        epoch: the one that the next iteration is.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        rank: int,
        num_workers: int,
        even: bool,
        ended: bool,
        on_batch: Callable[[int], None],
        options: dict[str, Any],
    ) -> None:
        """See `Worker.loader`."""
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise UsageError("worker.loader takes a dataset with a length and an index (map-style)")
        if batch_size < 1:
            raise UsageError(f"batch_size must be >= 1, got {batch_size}")
        for name in ("batch_sampler", "sampler"):
            if name in options:
                raise UsageError(f"worker.loader draws the samples itself: leave {name} out")
        self.dataset = dataset
        self.epoch = 0
        self._ended = ended
        self._on_batch = on_batch
        share = Share(
            num_samples=len(dataset),
            num_workers=num_workers,
            batch_size=batch_size,
            even=even,
            drop_last=drop_last,
        )
        if len(dataset) < num_workers:
            raise UsageError(f"the dataset has {len(dataset)} samples for {num_workers} workers")
        self._batches = _Batches(share, rank, shuffle=shuffle, seed=seed)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._batches, **options)

    def __len__(self) -> int:
        """Batches of this worker in an epoch."""
        return 0 if self._ended else len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        if self._ended:
            return
        self._batches.epoch = self.epoch
        self.epoch += 1
        for size, batch in zip(self._batches.sizes, self._loader, strict=True):
            self._on_batch(size)
            yield batch
