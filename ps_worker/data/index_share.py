"""A worker's pieces of a dataset with a length and an index (map-style), cut into batches.

Legend: N = samples, R = ranks of all who share an epoch, G = ranks of this worker, b = batch size of a rank.

The order of an epoch is a permutation that every worker draws from the same seed; a share is a part of it
(`EpochPiece.bounds`). Under BSP several workers get equally many batches, so that nobody waits at the last
barrier of an epoch; otherwise, and alone, batches are full but for the last, as torch's. What a worker of
another size, or with other batches, has left over of a share is cut anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch.utils.data import Sampler

from ps_wire.spec.epochs import EpochPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The rule by which one worker cuts its pieces of N samples into batches.

    Attributes:
        num_samples: N.
        batch_size: b, the most that a batch holds for each rank (BSP may need one more; see `sizes`).
        even: equally many batches for every worker (BSP).
        drop_last: full batches only.
        ranks: G; no batch is smaller.
    """

    num_samples: int
    batch_size: int
    even: bool
    drop_last: bool
    ranks: int = 1

    @property
    def full(self) -> int:
        """Samples of a full batch."""
        return self.batch_size * self.ranks

    def sizes(self, piece: EpochPiece) -> list[int]:
        """Sizes of the batches of a piece, in order."""
        return self.cut(piece)[1]

    def cut(self, piece: EpochPiece) -> tuple[int, list[int]]:
        """How many batches of its share come before a piece, and the sizes of its own."""
        if piece.ranks == self.ranks:
            sizes = self._whole(piece)
            ends = [0, *accumulate(sizes)]
            if piece.first in ends:
                before = ends.index(piece.first)
                return before, sizes[before:]
        return -(-piece.first // self.full), self._anew(piece.length(self.num_samples))

    def _whole(self, piece: EpochPiece) -> list[int]:
        samples = replace(piece, first=0).length(self.num_samples)
        if not self.even or piece.ranks == piece.count:  # alone it has torch's batches
            return self._anew(samples)
        least, largest = self.num_samples // piece.count, -(-self.num_samples // piece.count)  # of a rank
        if self.drop_last:
            return [self.full] * (least // self.batch_size)
        # A batch may be one over b where b does not divide: the alternative is an empty batch elsewhere.
        return _spread(samples, max(min(-(-largest // self.batch_size), least), 1))

    def _anew(self, samples: int) -> list[int]:
        full, rest = divmod(samples, self.full)
        if self.drop_last or not rest:
            return [self.full] * full
        if rest >= self.ranks:
            return [self.full] * full + [rest]
        if samples < self.ranks:
            return []
        return _spread(samples, min(full + 1, samples // self.ranks))  # else a rank had none of the last


def _spread(samples: int, batches: int) -> list[int]:
    size, more = divmod(samples, batches)
    return [size + 1] * more + [size] * (batches - more)


class ShareSampler(Sampler[list[int]]):
    """Batches of indices of one worker, of one piece after another.

    Attributes:
        sizes: of the worker's batches of the piece, in order.
        before: batches of its share that come before the piece.
    """

    def __init__(
        self,
        share: Share,
        piece: EpochPiece,
        *,
        shuffle: bool,
        seed: int,
        on_read: Callable[[], None] | None = None,
        rank: int = 0,
    ) -> None:
        """Takes the piece to begin with, `on_read`, called before a batch is given, and whose part it is."""
        self._rank = rank
        self._on_read = on_read or (lambda: None)
        self._share = share
        self._shuffle = shuffle
        self._seed = seed
        self.begin(piece)

    def begin(self, piece: EpochPiece) -> None:
        """Sets what the next iteration gives."""
        self._epoch = piece.epoch
        self._start = piece.bounds(self._share.num_samples)[0] + piece.first
        self.before, self.sizes = self._share.cut(piece)

    @property
    def length(self) -> int:
        """Batches of the share up to the end of the piece."""
        return self.before + len(self.sizes)

    def count(self, piece: EpochPiece) -> int:
        """Batches of its share up to the end of a piece."""
        before, sizes = self._share.cut(piece)
        return before + len(sizes)

    def samples(self, piece: EpochPiece, batches: int) -> int:
        """Of the first batches of the share of a piece."""
        return sum(self._share.sizes(replace(piece, first=0))[:batches])

    def __iter__(self) -> Iterator[list[int]]:
        order: list[int] | range = range(self._share.num_samples)
        if self._shuffle:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._epoch) % (1 << 63))
            order = torch.randperm(len(order), generator=generator, device="cpu").tolist()
        at, ranks = self._start, self._share.ranks
        for size in self.sizes:
            self._on_read()
            first, last = (size * rank // ranks for rank in (self._rank, self._rank + 1))
            yield list(order[at + first : at + last])
            at += size

    def __len__(self) -> int:
        return len(self.sizes)
