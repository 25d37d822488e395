"""The data side of a worker: its loaders, the epochs of its script, the samples it has taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.utils.data import DataLoader, Dataset

from ps_wire.consistency import BSP, Consistency
from ps_wire.errors import UsageError
from ps_worker import torch_loader
from ps_worker.dealing import Dealing, Deals
from ps_worker.loader import Loader
from ps_worker.position import Position, Positions


class Counts:
    """How far a worker has come with its data, as something that can be registered."""

    def __init__(self, worker: WorkerData) -> None:
        self._worker = worker

    def state_dict(self) -> dict[str, Any]:
        """Samples that were handed out."""
        return {"samples": self._worker._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Counts on from there."""
        self._worker._samples = state["samples"]


class WorkerData:
    """Base of `Worker`.

    Attributes:
        rank: this worker's number in the job, from 0.
        num_workers: that the job was made for.
        ended: the job had already ended: loaders are empty.
    """

    rank: int
    num_workers: int
    ended: bool
    _link: Deals

    def __init__(self, consistency: Consistency) -> None:
        self._even = isinstance(consistency, BSP)
        self._samples = 0
        self._unweighed: list[dict[object, int]] = []  # for each who weighs: samples by loader, latest last
        self._epoch: int | None = None
        self._loaders: WeakSet[Loader] = WeakSet()
        self._numbers: WeakKeyDictionary[Loader, int] = WeakKeyDictionary()
        self._num_loaders = 0
        self._dealings: list[Dealing] = []
        self._counts = Counts(self)
        self._saved_positions: list[Position] = []  # at a snapshot, by number of the loader
        self._back_to: int | None = None  # an epoch that the script's loop is to go to

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int = 1,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """This worker's share of a dataset; each iteration over it is one epoch.

        An epoch is shared by the workers who are in the job when the first of them asks for a batch of it;
        over these every sample comes once. What a worker has not used that leaves, or is evicted, in the
        middle of an epoch, goes to whoever next comes to the end of its share; so an iteration may give more
        batches than `len`. Used is a batch whose step is committed; see `Stats.epochs`. Who joins later has a
        part of the next epoch, and before that what is left over: its `worker.epochs` passes quickly over
        epochs that have begun. Under BSP all get equally many batches in their shares; those of a
        map-style dataset differ in size by at most one. An iterable dataset is read whole by every worker,
        and by every process of its DataLoader: it must give the same stream everywhere, and is not to deal
        itself. If it has `set_epoch(epoch)`, that is called before each epoch. Its batches are full but for
        the last (under BSP one may have `batch_size + 1`).

        Never waits for another worker. All workers make their loaders in the same order.

        Args:
            dataset: with a length and an index (map-style), or a `torch.utils.data.IterableDataset`.
            batch_size: per worker.
            shuffle: another order each epoch, the same on all workers. Default: for map-style datasets;
                an iterable one shuffles inside.
            seed: of that order; must be the same on all workers.
            drop_last: full batches only.
            options: of `torch.utils.data.DataLoader`: `collate_fn`, `num_workers`, `pin_memory`...

        Raises:
            UsageError: the dataset has fewer samples than the job workers (of an iterable dataset without a
                length this is known, and raised, when it ends), or an option makes no sense.
        """
        return self._make_loader(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            options=options,
        )

    def shard(self, loader: DataLoader[Any], *, seed: int | None = None) -> Loader:
        """This worker's share of a loader that exists; see `loader` for what that is.

        The dataset is shuffled if the loader shuffles. Everything else of it is kept: `batch_size` (now per
        worker), `drop_last`, `collate_fn`, and the options for its processes.

        Args:
            loader: made by torch with `batch_size` and, if at all, `shuffle`.
            seed: of the order, the same on all workers; default: of the loader's generator, else 0.

        Raises:
            UsageError: the loader has a sampler or batches of its own, or what `loader` raises.
        """
        return self._make_loader(**torch_loader.read(loader, seed=seed))

    def _make_loader(self, **given: Any) -> Loader:
        dataset = given["dataset"]
        dealing = Dealing(self._num_loaders, self._link, len(dataset) if isinstance(dataset, Sized) else 0)
        made = Loader(
            **given,
            rank=self.rank,
            num_workers=self.num_workers,
            even=self._even,
            ended=self.ended,
            on_batch=partial(self._count_samples, dealing),
            current_epoch=lambda: self._epoch,
            dealer=dealing,
            on_read=self._begin_batch,
        )
        if self._num_loaders < len(self._saved_positions):
            made.position = self._saved_positions[self._num_loaders]
        self._numbers[made] = self._num_loaders
        self._dealings.append(dealing)
        self._num_loaders += 1
        self._loaders.add(made)
        return made

    def _take_step(self, step: int) -> None:
        """What loaders have handed out goes into the first `step` steps of this worker."""
        for dealing in self._dealings:
            dealing.take_step(step)

    def _begin_batch(self) -> None:
        """A batch is about to be read in this process, or is handed out."""
        raise NotImplementedError

    def _positions(self) -> Positions:
        """Where this script is in its data."""
        at = {self._numbers[loader]: loader.position for loader in self._loaders}
        known = [at.get(number, Position(epoch=0)) for number in range(self._num_loaders)]
        return Positions(epoch=self._epoch, loaders=tuple(known))

    def _rewind(self, saved: Positions) -> None:
        """The script goes on where it was at a snapshot: loaders, and the loop over epochs."""
        self._drop_batch()
        self._saved_positions = list(saved.loaders)
        self._back_to = saved.epoch
        for loader in self._loaders:
            if self._numbers[loader] < len(saved.loaders):
                loader.position = saved.loaders[self._numbers[loader]]

    def _drop_batch(self) -> None:
        """What loaders have handed out is part of no step of this incarnation."""
        for counts in self._unweighed:
            counts.clear()

    def _end_loaders(self) -> None:
        for loader in self._loaders:
            loader.end()

    def _has_batches(self) -> bool:
        """Whether the script has a batch that no step was made of yet, as far as is known."""
        used = [dealing for dealing in self._dealings if dealing.under_way]
        return any(dealing.pending for dealing in used) if used else True

    def epochs(self, count: int, *, start: int = 0) -> Iterator[int]:
        """The numbers of the epochs of a run; inside the loop, loaders give the order of that epoch.

        So a run that goes on at `start` sees the orders that an uninterrupted one would. Where the job goes
        on from a snapshot, so does this: it begins at the epoch of then, or goes back to it once the body of
        the loop is left, by `continue`, too.

        Args:
            count: of the whole run.
            start: the first one that is left to do.

        Returns:
            An iterator over `start`, ..., `count - 1`.

        Raises:
            UsageError: one is negative.
        """
        if count < 0 or start < 0:
            raise UsageError(f"epochs({count}, start={start}): both must be >= 0")
        return self._count_epochs(range(start, count))

    def _count_epochs(self, numbers: range) -> Iterator[int]:
        epoch = numbers.start
        try:
            while True:
                epoch, self._back_to = epoch if self._back_to is None else self._back_to, None
                if epoch >= numbers.stop:
                    return
                self._epoch = epoch
                yield epoch
                epoch += 1
        finally:
            self._epoch = None

    def _count_samples(self, loader: Dealing, samples: int) -> None:
        self._begin_batch()
        self._samples += samples
        loader.hand_out(samples)
        if self._back_to == self._epoch:  # a loader goes on inside this epoch: its loop need not begin again
            self._back_to = None
        for counts in self._unweighed:
            counts[loader] = counts.pop(loader, 0) + samples

    def _sample_weight(self) -> Callable[[], float]:
        """A function that gives the samples handed out since it was last called.

        Of the loader of the latest batch alone: what others handed out before were batches to validate on.
        """
        counts: dict[object, int] = {}
        self._unweighed.append(counts)

        def weight() -> float:
            samples = counts.popitem()[1] if counts else 1
            counts.clear()
            return float(max(samples, 1))

        return weight
