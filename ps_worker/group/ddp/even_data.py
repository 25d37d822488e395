"""The data of a script without servers: each worker has its even share of every epoch, as under `bsp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ps_wire.errors import UsageError
from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.loader import Loader


class EvenDealer:
    """One share of each epoch, and nothing of others. A `Dealer`."""

    void = newest = False
    behind = 0

    def __init__(self, worker: int, num_workers: int) -> None:
        """Of this worker among so many."""
        self._worker = worker
        self._num_workers = num_workers

    def replay(self, epoch: int) -> EpochPiece | None:
        """See `Dealer`: nobody is behind."""
        del epoch
        return None

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        """See `Dealer`."""
        if not begins:
            return None
        return EpochPiece(epoch=epoch, place=self._worker, count=self._num_workers)

    def skip(self, first: int) -> None:
        """See `Dealer`: nobody has to know."""


class EvenData:
    """The loaders and epochs of a script. A `LoaderListener`.

    Attributes:
        samples: that loaders have handed out.
        latest: samples of the latest batch.
        current_epoch: that the script's loop is in; None: it is in none.
    """

    def __init__(self, worker: int, num_workers: int, begin_batch: Callable[[], None]) -> None:
        """Has no loaders; `begin_batch` is called where the script begins with a batch."""
        self._worker = worker
        self._num_workers = num_workers
        self._begin_batch = begin_batch
        self._stop = 0
        self.samples = 0
        self.latest = 0
        self.current_epoch: int | None = None

    def make_loader(self, **given: Any) -> Loader:
        """A loader with these arguments of `Loader`."""
        return Loader(
            **given,
            rank=self._worker,
            num_workers=self._num_workers,
            even=True,
            ended=False,
            dealer=EvenDealer(self._worker, self._num_workers),
            listener=self,
        )

    def epochs(self, count: int, start: int) -> Iterator[int]:
        """See `Worker.epochs`; epochs of a later loop come after those of loops before."""
        if count < 0 or start < 0:
            raise UsageError(f"epochs({count}, start={start}): both must be >= 0")
        first = max(start, self._stop)
        self._stop = first + max(count - start, 0)
        try:
            for number in range(start, count):
                self.current_epoch = first + number - start
                yield number
        finally:
            self.current_epoch = None

    def begin_iteration(self, loader: Loader) -> bool:
        """See `LoaderListener`."""
        del loader
        return True

    def begin_iterator(self) -> None:
        """See `LoaderListener`."""

    def end_iterator(self) -> None:
        """See `LoaderListener`."""

    def begin_batch(self) -> None:
        """See `LoaderListener`."""
        self._begin_batch()

    def hand_out(self, loader: Loader, samples: int) -> None:
        """See `LoaderListener`."""
        del loader
        self.samples += samples
        self.latest = samples

    def arrive(self, loader: Loader) -> bool:
        """See `LoaderListener`."""
        del loader
        return True
