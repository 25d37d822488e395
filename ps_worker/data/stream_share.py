"""A worker's pieces of an iterable dataset: every W-th sample of a stream that everybody reads.

Legend: W = workers, B = batch size, a block = W*B samples, one batch for every worker. No worker is a group.

The stream must be the same, in the same order, in every worker and in every process of a DataLoader. Sample p
goes to worker p % W. Under BSP a tail of at least W samples is one more batch for each, of sizes that differ
by at most one; what is left of a shorter one goes into the batches before it, which then hold B+1. So all get
equally many batches, and nobody asks another worker how long the stream is: that is known W samples later.
Where a piece begins inside a batch (another worker had it, with other batches; not so under BSP), batches are
full from there on.

In a DataLoader with L processes each reads the whole stream; process l gives batches l, l+L, ..., which is
the order in which a DataLoader asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ps_wire.errors import UsageError
from ps_wire.spec.epochs import EpochPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShare:
    """The rule by which a worker cuts its pieces of a stream into batches.

    Attributes:
        batch_size: B.
        even: equally many batches for every worker (BSP).
        drop_last: full batches only; when `even`, full blocks.
    """

    batch_size: int
    even: bool
    drop_last: bool

    def batches(self, piece: EpochPiece, stream: Iterable[Any]) -> Iterator[list[Any]]:
        """The batches of samples of a piece.

        Raises:
            UsageError: the stream ends with fewer samples than there are workers.
        """
        complete: list[Any] = []  # waits for what may still come into it
        growing: list[Any] = []
        workers = piece.count
        block = workers * self.batch_size
        count = skipped = 0
        for count, sample in enumerate(stream, start=1):
            place = (count - 1) % block
            if place % workers == piece.place:
                if skipped < piece.first:
                    skipped += 1
                else:
                    growing.append(sample)
            if complete and (not self.even or self.drop_last or place == workers - 1):
                yield complete  # nothing can come into it any more
                complete = []
            if growing and (place == block - 1 if self.even else len(growing) == self.batch_size):
                complete, growing = growing, []
        check_length(count, workers)
        if self.even and not self.drop_last and count % block < workers:
            complete, growing = complete + growing, []
        if complete:
            yield complete
        if growing and not self.drop_last:
            yield growing

    def count(self, piece: EpochPiece, num_samples: int) -> int:
        """How many batches a share of a stream of this length gives."""
        if self.even:
            blocks, rest = divmod(num_samples, piece.count * self.batch_size)
            return blocks + (rest >= piece.count and not self.drop_last)
        share = replace(piece, first=0).length(num_samples)
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)


class StreamBatches(IterableDataset[list[Any]]):
    """Batches of samples of one worker, in whichever process reads them."""

    def __init__(
        self, dataset: IterableDataset[Any], share: StreamShare, piece: EpochPiece, *, shared: bool
    ) -> None:
        """Takes over `dataset`; the piece to begin with; `shared` where other processes read it."""
        self._dataset = dataset
        self._share = share
        self._process: tuple[int, int] | None = None
        self._piece = torch.zeros(4, dtype=torch.int64, device="cpu")
        if shared:  # seen by processes that live on from epoch to epoch
            self._piece.share_memory_()  # type: ignore[no-untyped-call]
        self.begin(piece)

    def begin(self, piece: EpochPiece) -> int:
        """See `ShareSampler.begin`."""
        for index, value in enumerate((piece.epoch, piece.place, piece.count, piece.first)):
            self._piece[index] = value
        return -(-piece.first // self._share.batch_size)

    def samples(self, piece: EpochPiece, batches: int) -> int:
        """See `ShareSampler.samples`; as if the last were full."""
        del piece
        return batches * self._share.batch_size

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, place, count, first = self._piece.tolist()
        process, num_processes = self._find_process()
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        piece = EpochPiece(epoch=epoch, place=place, count=count, first=first)
        for number, batch in enumerate(self._share.batches(piece, self._dataset)):
            if number % num_processes == process:
                yield batch

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
    """Collates a batch and says how many samples it has."""

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> tuple[int, Any]:
        """The number of samples, and what `collate_fn` makes of them."""
        return len(samples), self.collate_fn(samples)


def check_length(num_samples: int, shares: int, whose: str = "workers") -> None:
    """Raises UsageError where a worker, or a rank of one, would get no sample at all."""
    if num_samples < shares:
        samples = "1 sample" if num_samples == 1 else f"{num_samples} samples"
        raise UsageError(
            f"the dataset has {samples} for {shares} {whose}: each needs one at least; take fewer {whose}"
        )
