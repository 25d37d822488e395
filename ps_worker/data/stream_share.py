"""A worker's pieces of an iterable dataset, which everybody reads whole: the samples of its ranks.

Legend: R = ranks of all who share an epoch, G = ranks of this worker, b = batch size of a rank, a block = R*b
samples, one batch for every worker.

The stream must be the same, in the same order, in every rank and in every process of a DataLoader. Sample p
is one of rank p % R; the ranks of a worker deal its samples out in turn. Under BSP a tail of at least R
samples is one more batch for each, of sizes that differ by at most one for a rank; what is left of a
shorter one goes into the batches before it, which then hold up to b+1 for a rank. So all get equally many
batches, and nobody asks another worker how long the stream is: that is known R samples later. Else batches
are full but for the last. So they are in what a worker of another size, or with other batches, has left
over.

In a DataLoader with L processes each reads the whole stream; process l gives batches l, l+L, ..., which is
the order in which a DataLoader asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ps_wire.errors import UsageError
from ps_wire.spec.epochs import EpochPiece


class RankPart(NamedTuple):
    """One rank's samples of a batch, and how many all ranks of the worker have."""

    total: int
    samples: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShare:
    """The rule by which a worker cuts its pieces of a stream into batches.

    Attributes:
        batch_size: b.
        even: equally many batches for every worker (BSP).
        drop_last: full batches only; when `even`, full blocks.
        ranks: G; no batch is smaller.
    """

    batch_size: int
    even: bool
    drop_last: bool
    ranks: int = 1

    @property
    def full(self) -> int:
        """Samples of a full batch."""
        return self.batch_size * self.ranks

    def batches(self, piece: EpochPiece, stream: Iterable[Any]) -> Iterator[list[Any]]:
        """The batches of samples of a piece, each of all ranks of the worker together.

        Raises:
            UsageError: the stream ends with fewer samples than there are ranks.
        """
        complete: list[Any] = []  # waits for what may still come into it
        growing: list[Any] = []
        even = self._in_blocks(piece)
        block = piece.count * self.batch_size
        count = skipped = 0
        for count, sample in enumerate(stream, start=1):
            place = (count - 1) % block
            if 0 <= place % piece.count - piece.place < piece.ranks:
                if skipped < piece.first:
                    skipped += 1
                else:
                    growing.append(sample)
            more = place == piece.count - 1 if even else self.ranks in (1, len(growing))
            if complete and (more or self.drop_last):  # nothing can come into it any more
                yield complete
                complete = []
            if growing and (place == block - 1 if even else len(growing) == self.full):
                complete, growing = growing, []
        check_length(count, piece.count)
        if not self.drop_last and (count % block < piece.count if even else len(growing) < self.ranks):
            complete, growing = complete + growing, []
        for batch in (complete, growing):
            if len(batch) >= self.ranks and not (self.drop_last and batch is growing):
                yield batch

    def count(self, piece: EpochPiece, num_samples: int) -> int:
        """How many batches a share has, up to the end of a piece, of a stream of this length."""
        if self._in_blocks(piece):
            blocks, rest = divmod(num_samples, piece.count * self.batch_size)
            return blocks + (rest >= piece.count and not self.drop_last)
        full, rest = divmod(piece.length(num_samples), self.full)
        return self.before(piece) + full + (rest >= self.ranks and not self.drop_last)

    def before(self, piece: EpochPiece) -> int:
        """Batches of its share that come before a piece."""
        return -(-piece.first // self.full)

    def _in_blocks(self, piece: EpochPiece) -> bool:
        """Whether its batches are those of blocks; else they are full ones."""
        return self.even and piece.ranks == self.ranks and piece.first % self.full == 0


class StreamBatches(IterableDataset[RankPart]):
    """Parts of one rank in batches of its worker, in whichever process reads them.

    Attributes:
        before: batches of its share that come before the piece.
        length: batches of the share up to the end of the piece; None: not known.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        share: StreamShare,
        piece: EpochPiece,
        *,
        num_samples: int | None,
        rank: int = 0,
        shared: bool,
    ) -> None:
        """Takes over `dataset`; the piece to begin with; `shared` where other processes read it."""
        self._rank = rank
        self._num_samples = num_samples
        self._dataset = dataset
        self._share = share
        self._process: tuple[int, int] | None = None
        self._piece = torch.zeros(6, dtype=torch.int64, device="cpu")
        if shared:  # seen by processes that live on from epoch to epoch
            self._piece.share_memory_()  # type: ignore[no-untyped-call]
        self.begin(piece)

    def begin(self, piece: EpochPiece, passed: int = 0) -> None:
        """Sets what the next iteration gives.

        Args:
            piece: that it gives.
            passed: if any, it begins behind so many batches of the share, however large the last of them is.
        """
        self.before = passed or self._share.before(piece)
        self.length = self.count(piece)
        numbers = piece.epoch, piece.place, piece.ranks, piece.count, 0 if passed else piece.first, passed
        for index, number in enumerate(numbers):
            self._piece[index] = number

    def samples(self, piece: EpochPiece, batches: int) -> int:
        """Of the first batches of the share of a piece, as if all were full; see `begin`."""
        samples = batches * self._share.full
        known = self._num_samples
        return samples if known is None else min(samples, replace(piece, first=0).length(known))

    def count(self, piece: EpochPiece) -> int | None:
        """Batches of its share up to the end of a piece; None: not known."""
        return None if self._num_samples is None else self._share.count(piece, self._num_samples)

    def __iter__(self) -> Iterator[RankPart]:
        epoch, place, ranks, count, first, passed = self._piece.tolist()
        process, num_processes = self._find_process()
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        piece = EpochPiece(epoch=epoch, place=place, ranks=ranks, count=count, first=first)
        for number, batch in enumerate(self._share.batches(piece, self._dataset)):
            if number >= passed and (number - passed) % num_processes == process:
                yield RankPart(len(batch), batch[self._rank :: self._share.ranks])

    def _find_process(self) -> tuple[int, int]:
        """Which process of a DataLoader this is, and of how many.

        A dataset that deals itself to the processes would be dealt twice and lose samples: from here on it
        sees one process.
        """
        info = get_worker_info()
        if info is None:
            return 0, 1
        if self._process is None:
            self._process = info.id, info.num_workers
            object.__setattr__(info, "id", 0)
            object.__setattr__(info, "num_workers", 1)
        return self._process


@dataclass(frozen=True, slots=True)
class SizedCollate:
    """Collates a rank's part of a batch and says how many samples the batch has."""

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, part: RankPart) -> tuple[int, Any]:
        """The number of samples of all ranks, and what `collate_fn` makes of this one's."""
        return part.total, self.collate_fn(part.samples)


def check_length(num_samples: int, shares: int, whose: str = "workers") -> None:
    """Raises UsageError where a worker, or a rank of one, would get no sample at all."""
    if num_samples < shares:
        samples = "1 sample" if num_samples == 1 else f"{num_samples} samples"
        raise UsageError(
            f"the dataset has {samples} for {shares} {whose}: each needs one at least; take fewer {whose}"
        )
