"""What a script asks of a worker about its data: loaders, and the numbers of epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from ps_wire.errors import UsageError
from ps_worker.data import torch_loader
from ps_worker.data.epoch_dealer import PieceSource
from ps_worker.data.loader import Loader
from ps_worker.data.script_data import ScriptData


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
    _data: ScriptData
    _link: PieceSource

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
        part of the next epoch, and before that what is left over. Who goes on from a state that is some steps
        older than the job gets the batches of these steps once more, and what it makes of them is not pushed.
        Under BSP several workers get equally many batches in their shares; those of a map-style dataset
        differ in size by at most one, so 500 samples with `batch_size=64` are four batches of 63 and 62 for
        each of two workers. One that has an epoch alone gets torch's batches. An iterable dataset is read
        whole by every worker, and by every process of its DataLoader: it must give the same stream
        everywhere, and is not to deal itself. If it has `set_epoch(epoch)`, that is called before each
        epoch. Its batches are full but for the last (under BSP one may have `batch_size + 1`).

        Never waits for another worker. All workers make their loaders in the same order. The first batch of
        each compares seed, `shuffle`, length and, of torch's `Subset` and `TensorDataset`, what is in it with
        the other workers', under BSP `batch_size` and `drop_last`, too: where they differ, `JobMismatch`
        names both workers and both values. Give every worker the whole dataset, not a part of it.

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
            JobMismatch: when it is iterated; see above.
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
        return self._data.make_loader(
            self._link, rank=self.rank, num_workers=self.num_workers, ended=self.ended, **given
        )

    def epochs(self, count: int, *, start: int = 0) -> Iterator[int]:
        """The numbers of the epochs of a run; inside the loop, loaders give the order of that epoch.

        So a run that goes on at `start` sees the orders that an uninterrupted one would. A script may have
        several such loops, one after the other: a process that comes to the job goes on in the one where the
        job is, and the bodies of those before do not run. The epochs of a later loop come after those of the
        loops before: loaders, `stop_job` and `stats()` count them all. In a job that has
        begun, the loop begins at the job's epoch, whatever `start` is: the body for an earlier one does not
        run. Where the job goes back to a snapshot, or others went on while this worker was evicted, the loop
        goes to their epoch once its body is left, by `continue`, too. It ends early where `stop_job` was
        called, and at once where the job has ended.

        Args:
            count: of the whole run.
            start: the first one that is left to do.

        Returns:
            An iterator over `start`, ..., `count - 1`.

        Raises:
            RolledBack: when it is iterated: the job went back into a loop that the script has left. As
                wherever it is raised, run all loops of the script again, from the first.
            UsageError: one is negative.
        """
        if count < 0 or start < 0:
            raise UsageError(f"epochs({count}, start={start}): both must be >= 0")
        return self._data.epochs(range(start, count))
