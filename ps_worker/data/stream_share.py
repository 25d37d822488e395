"""This worker's share of an iterable dataset: every W-th sample of a stream that everybody reads.

Legend: W = workers, B = batch size, a block = W*B samples, one batch for every worker.

The stream must be the same, in the same order, in every worker and in every process of a DataLoader. Sample p
goes to worker p % W. Under BSP a tail of at least W samples is one more batch for each, of sizes that differ
by at most one; what is left of a shorter one goes into the batches before it, which then hold B+1. So all get
equally many batches, and nobody asks another worker how long the stream is: that is known W samples later.

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
    """The rule by which a stream is dealt to one worker.

    Attributes:
        worker: whose share it is.
        num_workers: W.
        batch_size: B.
        even: equally many batches for every worker (BSP).
        drop_last: full batches only; when `even`, full blocks.
    """

    worker: int
    num_workers: int
    batch_size: int
    even: bool
    drop_last: bool

    def batches(self, stream: Iterable[Any]) -> Iterator[list[Any]]:
        """The worker's batches of samples.

        Raises:
            UsageError: the stream ends with fewer samples than there are workers.
        """
        complete: list[Any] = []  # waits for what may still come into it
        growing: list[Any] = []
        block = self.num_workers * self.batch_size
        count = 0
        for count, sample in enumerate(stream, start=1):
            place = (count - 1) % block
            if place % self.num_workers == self.worker:
                growing.append(sample)
            if complete and self._is_closed(place):
                yield complete
                complete = []
            if self._is_complete(place, growing):
                complete, growing = growing, []
        check_length(count, self.num_workers)
        if self.even and not self.drop_last and count % block < self.num_workers:
            complete, growing = complete + growing, []
        if complete:
            yield complete
        if growing and not self.drop_last:
            yield growing

    def _is_complete(self, place: int, growing: list[Any]) -> bool:
        if self.even:
            return place == self.num_workers * self.batch_size - 1
        return len(growing) == self.batch_size

    def _is_closed(self, place: int) -> bool:
        """Whether nothing can come into a complete batch any more."""
        return not self.even or self.drop_last or place == self.num_workers - 1

    def count(self, num_samples: int) -> int:
        """How many batches a stream of this length gives."""
        if self.even:
            blocks, rest = divmod(num_samples, self.num_workers * self.batch_size)
            return blocks + (rest >= self.num_workers and not self.drop_last)
        share = len(range(self.worker, num_samples, self.num_workers))
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)


class StreamBatches(IterableDataset[list[Any]]):
    """Batches of samples of one worker, in whichever process reads them."""

    def __init__(self, dataset: IterableDataset[Any], share: StreamShare, *, shared: bool) -> None:
        """Takes over `dataset`; `shared` where other processes read it."""
        self._dataset = dataset
        self._share = share
        self._process: tuple[int, int] | None = None
        # Seen by processes that live on from epoch to epoch: the epoch, batches to leave out, the place of
        # the worker among those who share it, and how many they are.
        self._position = torch.tensor([0, 0, share.worker, share.num_workers], device="cpu")
        if shared:
            self._position.share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, piece: EpochPiece) -> None:
        """See `ShareSampler.begin`."""
        for index, value in enumerate((piece.epoch, piece.first, piece.place, piece.count)):
            self._position[index] = value

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, skipped, place, count = self._position.tolist()
        process, num_processes = self._find_process()
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        share = replace(self._share, worker=place, num_workers=count)
        for number, batch in enumerate(share.batches(self._dataset)):
            if number >= skipped and (number - skipped) % num_processes == process:
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


def check_length(num_samples: int, num_workers: int) -> None:
    """Raises UsageError where a worker would get no sample at all."""
    if num_samples < num_workers:
        samples = "1 sample" if num_samples == 1 else f"{num_samples} samples"
        raise UsageError(
            f"the dataset has {samples} for {num_workers} workers: each needs one at least; "
            "take fewer workers"
        )
