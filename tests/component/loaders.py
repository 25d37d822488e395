"""Loaders and streams without a job around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.index_share import Share
from ps_worker.data.loader import Loader


class Stream(IterableDataset[int]):
    """The numbers below `length`, moved on by a thousand each epoch that it is told of."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(1000 * self.epoch, 1000 * self.epoch + self.length))


class Sized(Stream):
    """One that says how many samples it has."""

    def __len__(self) -> int:
        return self.length


class Unmoved:
    """The steps of a worker that takes none: `ScriptSteps`."""

    step = 0

    def steps_behind(self) -> int:
        return 0

    def is_rewound(self) -> bool:
        return False


class Alone:
    """A `Dealer` that always deals this share, of which nothing is left over."""

    void = newest = False
    behind = 0

    def __init__(self, share: EpochPiece) -> None:
        self._share = share

    def replay(self, epoch: int) -> EpochPiece | None:
        return None

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        return replace(self._share, epoch=epoch) if begins else None

    def skip(self, first: int) -> None:
        pass


class Counting:
    """A `LoaderListener` of a script without a loop: it counts what is handed out."""

    current_epoch: int | None = None

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def begin_iteration(self, loader: Loader) -> bool:
        return True

    def begin_iterator(self) -> None:
        pass

    def end_iterator(self) -> None:
        pass

    def begin_batch(self) -> None:
        pass

    def hand_out(self, loader: Loader, samples: int) -> None:
        self.sizes.append(samples)

    def arrive(self, loader: Loader) -> bool:
        return True


def made(samples: int | Dataset[Any], rank: int = 0, num_workers: int = 1, **given: Any) -> Loader:
    """A loader as a worker makes it; of the numbers below `samples`, or of a dataset."""
    values: dict[str, Any] = {
        "batch_size": 16,
        "shuffle": None,
        "seed": 0,
        "drop_last": False,
        "even": True,
        "ended": False,
        "options": {},
        "dealer": Alone(pieces_of([1] * num_workers)[rank]),
        "listener": Counting(),
    }
    dataset = range(samples) if isinstance(samples, int) else samples
    return Loader(dataset, rank=rank, num_workers=num_workers, **values | given)


def epoch_of(loader: Loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def pieces_of(sizes: Sequence[int]) -> list[EpochPiece]:
    """The shares of workers with so many ranks."""
    places = accumulate(sizes, initial=0)
    return [
        EpochPiece(epoch=0, place=place, ranks=ranks, count=sum(sizes))
        for place, ranks in zip(places, sizes, strict=False)
    ]


@st.composite
def dealt(draw: st.DrawFn, most_ranks: int = 4) -> list[tuple[Share, EpochPiece]]:
    """An epoch as it is dealt: of each worker, how it cuts its share, and that share."""
    sizes = draw(st.lists(st.integers(1, most_ranks), min_size=1, max_size=9))
    common = {
        "num_samples": draw(st.integers(sum(sizes), 400)),
        "batch_size": draw(st.integers(1, 70)),
        "even": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
    }
    return [(Share(ranks=piece.ranks, **common), piece) for piece in pieces_of(sizes)]
