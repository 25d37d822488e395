"""The batches of one worker, epoch after epoch, over a `DataLoader` of torch that reads this worker's share.

It counts epochs and batches, so that it can say where it is and go on there. What goes to whom is `share`'s
(datasets with a length) and `stream_share`'s affair (without): it must not know.

Invariants: a batch is counted when it is handed out, not when it was read ahead. Nothing here waits for
another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, TypeAlias

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ps_wire.errors import UsageError
from ps_worker.share import Share, ShareSampler
from ps_worker.stream_share import SizedCollate, StreamBatches, StreamShare, check_length

LoaderState: TypeAlias = dict[str, int | bool | None]

OURS = ("batch_sampler", "sampler", "in_order")


class Loader:
    """Made by `Worker.loader` and `Worker.shard`: an iterable of batches; each iteration is the next epoch.

    One iteration at a time: a new one ends the one before.

    Attributes:
        dataset: what it draws from.
        batch_size: samples of this worker's batches.
        drop_last: full batches only.
        num_workers: processes that read, as in a `DataLoader` of torch.
        collate_fn: makes a batch of samples.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        shuffle: bool | None,
        seed: int,
        drop_last: bool,
        rank: int,
        num_workers: int,
        even: bool,
        ended: bool,
        on_batch: Callable[[int], None],
        options: Mapping[str, Any],
        current_epoch: Callable[[], int | None],
        deal: Callable[[int], tuple[int, int] | None] | None = None,
        on_read: Callable[[], None] | None = None,
    ) -> None:
        """See `Worker.loader`.

        Args:
            dataset: with a length and an index, or iterable.
            batch_size: per worker.
            shuffle: another order each epoch; None is for map-style datasets.
            seed: of that order.
            drop_last: full batches only.
            options: of torch's `DataLoader`.
            rank: of this worker.
            num_workers: of the job, which share the dataset.
            even: all get equally many batches.
            ended: the job has: nothing is handed out.
            on_batch: called with the number of samples of each batch that is handed out.
            current_epoch: the one that the script is in, or None where it does not say.
            deal: epoch -> this worker's place among those that share it, and how many they are; None where
                it has no part of it. Default: `rank` of `num_workers`, always.
            on_read: called before a batch is read in this process.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size must be a whole number >= 1, got {batch_size!r}")
        for name in OURS:
            if name in options:
                raise UsageError(f"worker.loader draws the samples itself, in its order: leave {name} out")
        streamed = isinstance(dataset, IterableDataset)
        num_samples = len(dataset) if isinstance(dataset, Sized) else None
        if num_samples is not None:
            check_length(num_samples, num_workers)
        elif not streamed:
            raise UsageError(
                "worker.loader takes a dataset with a length and an index (map-style) "
                "or a torch.utils.data.IterableDataset"
            )
        if streamed and shuffle:
            raise UsageError(
                "an iterable dataset has an order of its own: leave shuffle out, and shuffle inside the "
                "dataset, the same in every worker (its set_epoch(epoch) is called before each epoch)"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_workers: int = options.get("num_workers", 0)
        self.collate_fn: Callable[[Any], Any] = options.get("collate_fn") or default_collate
        self._ended = ended
        self._on_batch = on_batch
        self._current_epoch = current_epoch
        self._deal = deal or (lambda _: (rank, num_workers))
        self._epoch = 0
        self._skipped = 0  # batches that the next iteration leaves out
        self._handed_out: int | None = None  # in the iteration that is under way, if one is
        self._iteration = 0
        self._made_with: LoaderState = {
            "seed": seed,
            "shuffle": not streamed if shuffle is None else shuffle,
            "num_samples": num_samples,
            "num_workers": num_workers,
            "batch_size": batch_size,
            "drop_last": drop_last,
            "even": even,
        }
        self._share: ShareSampler | StreamBatches
        self._sizes: list[int] | None = None
        self._length: int | None = None
        if isinstance(dataset, IterableDataset):
            stream = StreamShare(
                worker=rank,
                num_workers=num_workers,
                batch_size=batch_size,
                even=even,
                drop_last=drop_last,
            )
            self._length = None if num_samples is None else stream.count(num_samples)
            self._share = StreamBatches(dataset, stream, shared=bool(options.get("num_workers")))
            collate = SizedCollate(self.collate_fn)
            self._loader: DataLoader[Any] = DataLoader(
                self._share, batch_size=None, **{**options, "collate_fn": collate}
            )
        else:
            assert num_samples is not None
            share = Share(
                num_samples=num_samples,
                num_workers=num_workers,
                batch_size=batch_size,
                even=even,
                drop_last=drop_last,
            )
            in_process = not options.get("num_workers")  # else batches are read ahead
            self._share = ShareSampler(
                share,
                rank,
                shuffle=bool(self._made_with["shuffle"]),
                seed=seed,
                on_read=on_read if in_process else None,
            )
            self._sizes = self._share.sizes
            self._length = len(self._sizes)
            self._loader = DataLoader(dataset, batch_sampler=self._share, **options)

    def __len__(self) -> int:
        """Batches of this worker in an epoch, for schedulers; those of an ended job are never handed out.

        Raises:
            TypeError: the dataset has no length.
        """
        if self._length is None:
            raise TypeError("the batches of an iterable dataset without a length cannot be counted")
        return self._length

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is, unless `worker.epochs` says another.

        Setting it begins that epoch anew, whatever `load_state_dict` has said.
        """
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch, self._skipped, self._handed_out = epoch, 0, None

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch begins, as frameworks do. A position inside it, of `load_state_dict`, stays."""
        if epoch != self._epoch:
            self.epoch = epoch

    def end(self) -> None:
        """The job has ended: nothing more is handed out."""
        self._ended = True

    def __iter__(self) -> Iterator[Any]:
        if self._ended:
            return
        epoch, skipped = self._find_start()
        self._epoch, self._skipped, self._handed_out = epoch + 1, 0, skipped
        self._iteration += 1
        mine = self._iteration
        dealt = self._deal(epoch)
        if dealt is None or self._ended:
            self._handed_out = None
            return
        self._share.begin(epoch, skipped, *dealt)
        if isinstance(self._share, ShareSampler):
            self._sizes = self._share.sizes
            self._length = len(self._sizes)
        for size, batch in self._sized(skipped):
            if self._ended:
                return
            if mine != self._iteration:
                raise UsageError(
                    "this iteration ended when the loader was iterated again: make a second loader"
                )
            self._on_batch(size)
            assert self._handed_out is not None
            self._handed_out += 1
            yield batch
        self._handed_out = None

    def _sized(self, skipped: int) -> Iterator[tuple[int, Any]]:
        """The batches with their numbers of samples."""
        if self._sizes is None:
            return iter(self._loader)
        return zip(self._sizes[skipped:], self._loader, strict=True)

    def _find_start(self) -> tuple[int, int]:
        """Epoch and first batch of the iteration that begins."""
        current = self._current_epoch()
        if current is None or current == self._epoch:
            return self._epoch, self._skipped
        if self._skipped:
            raise UsageError(
                f"the loader's state is inside epoch {self._epoch}, worker.epochs is at {current}: "
                f"iterate worker.epochs(n, start={self._epoch}) to go on there, "
                "or set loader.epoch to begin an epoch anew"
            )
        return current, 0

    # -- position --------------------------------------------------------------------------------------

    def state_dict(self) -> LoaderState:
        """Where this loader is: after the last batch that it has handed out.

        Returns:
            Numbers only: "epoch", "batches" (handed out in that epoch), and what the order depends on.
        """
        if self._handed_out is None:
            return {"epoch": self._epoch, "batches": self._skipped, **self._made_with}
        if self._handed_out == self._length:  # whether or not the iterator was asked for one more
            return {"epoch": self._epoch, "batches": 0, **self._made_with}
        return {"epoch": self._epoch - 1, "batches": self._handed_out, **self._made_with}

    def load_state_dict(self, state: Mapping[str, int | bool | None]) -> None:
        """Makes the next iteration go on after the last batch before `state_dict()`, in the same order.

        Samples before it are not read again, but by an iterable dataset, which has to pass over them. Under
        BSP the state of any worker serves all; otherwise each needs its own.

        Args:
            state: of a loader that was made with the same arguments over a dataset of the same length.

        Raises:
            UsageError: it is not; what differs is named.
        """
        missing = [name for name in ("epoch", "batches", *self._made_with) if name not in state]
        if missing:
            raise UsageError(f"this is no state of a loader: it has no {missing[0]!r}")
        for name, value in self._made_with.items():
            if state[name] != value:
                raise UsageError(
                    f"the state is of a loader with {name}={state[name]}, this one has {name}={value}"
                    + (" (BSP deals evenly, ssp and asp do not)" if name == "even" else "")
                )
        epoch, batches = state["epoch"], state["batches"]
        if not (isinstance(epoch, int) and isinstance(batches, int) and epoch >= 0 and batches >= 0):
            raise UsageError(f"a loader cannot be at epoch {epoch}, batch {batches}")
        if self._length is not None and batches > self._length:
            raise UsageError(f"the state is {batches} batches into an epoch of {self._length}")
        self._epoch, self._skipped, self._handed_out = epoch, batches, None
