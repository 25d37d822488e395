"""This worker's share of a dataset with a length and an index (map-style).

Legend: N = samples, W = workers, B = batch size.

The order of an epoch is a permutation that every worker draws from the same seed; worker w takes its w-th
part. Under BSP several workers get equally many batches, of sizes that differ by at most one, so that nobody
waits at the last barrier of an epoch; otherwise, and alone, batches are full but for the last, as torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils.data import Sampler

from ps_wire.spec.epochs import EpochPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The rule by which N samples are dealt to W workers.

    Attributes:
        num_samples: N.
        num_workers: W.
        batch_size: B, the most that a batch holds (BSP may need one more; see `sizes`).
        even: equally many batches for every worker (BSP).
        drop_last: full batches only.
        least: samples that a batch holds at least: a group deals each batch to so many ranks.
    """

    num_samples: int
    num_workers: int
    batch_size: int
    even: bool
    drop_last: bool
    least: int = 1

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
        if not self.even or self.num_workers == 1:  # alone it has torch's batches
            full, rest = divmod(share, self.batch_size)
            if 0 < rest < self.least:  # a rank would have none of the last batch
                return _spread(share, max(min(full + 1, share // self.least), 1))
            return [self.batch_size] * full + [rest] * bool(rest)
        least, largest = self.num_samples // self.num_workers, -(-self.num_samples // self.num_workers)
        # A batch may be one over B where B does not divide: the alternative is an empty batch elsewhere.
        return _spread(share, min(-(-largest // self.batch_size), least // self.least))


def _spread(samples: int, batches: int) -> list[int]:
    size, more = divmod(samples, batches)
    return [size + 1] * more + [size] * (batches - more)


class ShareSampler(Sampler[list[int]]):
    """Batches of indices of one worker, from a position on.

    Attributes:
        sizes: of the worker's batches in every epoch, in order.
    """

    def __init__(
        self,
        share: Share,
        worker: int,
        *,
        shuffle: bool,
        seed: int,
        on_read: Callable[[], None] | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Takes `on_read`, called before a batch is given; and which part of each, of how many."""
        self._part, self._parts = part
        self._on_read = on_read or (lambda: None)
        self._share = share
        self._deal(worker, share.num_workers)
        self._num_samples = share.num_samples
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        self._skipped = 0

    def begin(self, piece: EpochPiece) -> None:
        """Sets what the next iteration gives."""
        self._epoch, self._skipped = piece.epoch, piece.first
        self._deal(piece.place, piece.count)

    def _deal(self, place: int, count: int) -> None:
        share = replace(self._share, num_workers=count)
        self.sizes = share.sizes(place)
        self._start, _ = share.bounds(place)

    def __iter__(self) -> Iterator[list[int]]:
        order: list[int] | range = range(self._num_samples)
        if self._shuffle:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._epoch) % (1 << 63))
            order = torch.randperm(self._num_samples, generator=generator, device="cpu").tolist()
        at = self._start + sum(self.sizes[: self._skipped])
        for size in self.sizes[self._skipped :]:
            self._on_read()
            first, last = (size * part // self._parts for part in (self._part, self._part + 1))
            yield list(order[at + first : at + last])
            at += size

    def __len__(self) -> int:
        return len(self.sizes)
