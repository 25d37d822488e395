"""An epoch of a loader, as a snapshot has it: who shares it, and where each goes on. Values.

It must not know how an epoch is dealt (`ps_server/coordinator/epochs/epoch_book.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ps_wire.process.ranks import MAX_SIZE
from ps_wire.snapshot.json_fields import MAX_SAMPLES, Field, Json

MAX_LOADERS = 1000  # of a job
MAX_EPOCHS = 10_000  # that are remembered, over all loaders; the oldest are forgotten
MAX_PLACES = 1 << 18  # shares of all these epochs; likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpoch:
    """An epoch of a loader in a snapshot: its workers, their positions, and the shares that are left.

    A share is named by the worker that it was dealt to.

    Attributes:
        loader: its number.
        epoch: of the loader.
        workers: who share it, in the order of their numbers.
        ranks: of each of these, when it was dealt.
        samples: of the epoch; 0: not known.
        used: of these.
        handed_on: of these, by another worker than the one whose share they were in.
        starts: worker -> samples of its share that were used; who is not in it has used its share up.
        left: worker and first sample of the shares that nobody has.
        trains: steps were made of its loader's batches.
    """

    loader: int
    epoch: int
    workers: tuple[int, ...]
    ranks: tuple[int, ...]
    samples: int
    used: int
    handed_on: int
    starts: Mapping[int, int]
    left: tuple[tuple[int, int], ...]
    trains: bool

    def to_json(self) -> Json:
        """For a manifest."""
        return {
            "loader": self.loader,
            "epoch": self.epoch,
            "workers": list(self.workers),
            "ranks": list(self.ranks),
            "samples": self.samples,
            "used": self.used,
            "handed_on": self.handed_on,
            "starts": {str(worker): first for worker, first in sorted(self.starts.items())},
            "left": [list(item) for item in self.left],
            "trains": self.trains,
        }


_FORM = ("loader", "epoch", "workers", "ranks", "samples", "used", "handed_on", "starts", "left", "trains")


def epochs_from_json(given: Field, num_workers: int) -> tuple[SavedEpoch, ...]:
    """The epochs that a manifest has, of a job of so many workers. Raises `FieldInvalid`."""
    epochs: dict[tuple[int, int], SavedEpoch] = {}
    places = 0
    for entry in given.entries(MAX_EPOCHS):
        epoch = _epoch(entry, num_workers)
        places += len(epoch.workers) + len(epoch.left)
        if places > 2 * MAX_PLACES:
            raise given.refuse(f"at most {2 * MAX_PLACES} shares")
        if (epoch.loader, epoch.epoch) in epochs:
            raise entry.refuse("an epoch that comes once")
        epochs[epoch.loader, epoch.epoch] = epoch
    return tuple(epochs.values())


def _epoch(given: Field, num_workers: int) -> SavedEpoch:
    parts = given.form(_FORM)
    workers = tuple(it.whole(num_workers - 1) for it in parts["workers"].entries(num_workers))
    if list(workers) != sorted(set(workers)):
        raise parts["workers"].refuse("numbers of workers, each once, in order")
    sharing = frozenset(workers)
    ranks = tuple(it.whole(MAX_SIZE, least=1) for it in parts["ranks"].entries(num_workers))
    if len(ranks) != len(workers):
        raise parts["ranks"].refuse("a number of ranks for each worker")
    starts = {
        worker: first.whole(MAX_SAMPLES)
        for worker, first in parts["starts"].numbered(num_workers - 1, num_workers).items()
    }
    if not starts.keys() <= sharing:
        raise parts["starts"].refuse("workers that share the epoch")
    return SavedEpoch(
        loader=parts["loader"].whole(MAX_LOADERS - 1),
        epoch=parts["epoch"].whole(),
        workers=workers,
        ranks=ranks,
        samples=parts["samples"].whole(MAX_SAMPLES),
        used=parts["used"].whole(MAX_SAMPLES),
        handed_on=parts["handed_on"].whole(MAX_SAMPLES),
        starts=starts,
        left=tuple(_left(item, sharing) for item in parts["left"].entries(MAX_PLACES)),
        trains=parts["trains"].flag(),
    )


def _left(given: Field, workers: Collection[int]) -> tuple[int, int]:
    share, first = given.tuple(2)
    if (worker := share.whole()) not in workers:
        raise share.refuse("the number of a worker that shares the epoch")
    return worker, first.whole(MAX_SAMPLES)
