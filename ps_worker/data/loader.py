"""The batches of one worker, epoch after epoch, over a `DataLoader` of torch that reads this worker's share.

It counts epochs and batches, so that it can say where it is and go on there. What goes to whom is its
dealer's affair, and that of `index_share` (datasets with a length) and `stream_share` (without): it must not
know.

Invariants: a batch is counted when it is handed out, not when it was read ahead. Nothing here waits for
another worker. An iteration hands out this worker's share of its epoch, then what others have left over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ps_wire.errors import UsageError
from ps_wire.process.ranks import ALONE, Ranks
from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.index_share import Share, ShareSampler
from ps_worker.data.position import Position
from ps_worker.data.stream_share import SizedCollate, StreamBatches, StreamShare, check_length

LoaderState: TypeAlias = dict[str, int | bool | None]

OURS = ("batch_sampler", "sampler", "in_order")


def whole_share(worker: int, num_workers: int, ranks: Ranks, num_samples: int | None) -> EpochPiece:
    """The share of a worker where all have as many ranks; or the others one, if samples are too few."""
    size = ranks.size
    others = size if num_samples is None or num_workers * size <= num_samples else 1
    return EpochPiece(epoch=0, place=worker * others, ranks=size, count=(num_workers - 1) * others + size)


class Dealer(Protocol):
    """Says what of an epoch this worker hands out."""

    @property
    def void(self) -> bool:
        """Whether what it dealt last is another's by now: the rest of it is dropped."""

    @property
    def behind(self) -> int:
        """Steps that the script takes again: batches are handed out that were used already."""

    @property
    def newest(self) -> bool:
        """Whether no epoch was begun after that of which it was asked last: no step is of a later one."""

    def replay(self, epoch: int) -> EpochPiece | None:
        """Gives what is handed out of an epoch while the script is behind; None where it is not."""

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        """The next piece of an epoch, or None.

        Args:
            epoch: of the iteration.
            begins: the iteration does; else the piece before has come to its end, or is void.
        """

    def skip(self, first: int) -> None:
        """So many samples of the share that was dealt last were used before, more than it begins with."""


class LoaderListener(Protocol):
    """The script's data, which hears of the batches of its loaders on the thread that draws them."""

    @property
    def current_epoch(self) -> int | None:
        """The epoch that the script's loop is in, or None where it has no such loop."""

    def begin_iteration(self, loader: Loader) -> bool:
        """Called first in an iteration; whether it hands out anything: not where its batches were void."""

    def begin_iterator(self) -> None:
        """Called before torch's iterator over a piece is made, which draws from the generators."""

    def end_iterator(self) -> None:
        """Called when nothing more of an epoch is this worker's, on the way out of the iteration over it."""

    def begin_batch(self) -> None:
        """Called once for each batch: before it is read in this process, else before it is handed out.

        What is noted there is of before the batch's samples have drawn from generators of this process.
        """

    def hand_out(self, loader: Loader, samples: int) -> None:
        """Called before a batch of so many samples is handed out, which is to be used."""

    def arrive(self, loader: Loader) -> bool:
        """Called when an iteration is to go on where `Loader.position` was set; whether it does."""


class Loader:
    """Made by `Worker.loader` and `Worker.shard`: an iterable of batches; each iteration is the next epoch.

    One iteration at a time: a new one ends the one before.

    Attributes:
        dataset: what it draws from.
        batch_size: samples of this process's batches.
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
        options: Mapping[str, Any],
        ranks: Ranks = ALONE,
        dealer: Dealer,
        listener: LoaderListener,
    ) -> None:
        """See `Worker.loader`.

        Args:
            dataset: with a length and an index, or iterable.
            batch_size: per rank.
            shuffle: another order each epoch; None is for map-style datasets.
            seed: of that order.
            drop_last: full batches only.
            options: of torch's `DataLoader`.
            rank: of this worker.
            num_workers: of the job, which share the dataset.
            even: all get equally many batches.
            ended: the job has: nothing is handed out.
            dealer: says what of an epoch is this worker's.
            ranks: the place of this process in its group: it hands out its part of each batch of the worker,
                which has as many times the samples.
            listener: the script's data.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size must be a whole number >= 1, got {batch_size!r}")
        for name in OURS:
            if name in options:
                raise UsageError(f"worker.loader draws the samples itself, in its order: leave {name} out")
        self._whose = "ranks" if ranks.together else "workers"
        streamed = isinstance(dataset, IterableDataset)
        num_samples = len(dataset) if isinstance(dataset, Sized) else None
        if num_samples is not None:
            check_length(num_samples, num_workers - 1 + ranks.size, self._whose)
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
        self._num_samples = num_samples
        self._dealer = dealer
        self._listener = listener
        self._next = Position(epoch=0)  # where the next iteration begins
        self._now: Position | None = None  # in the iteration that is under way, if one is
        self._own = False  # it is still in this worker's share
        self._passed = 0  # batches of the share that was dealt last which were used before the job
        self._moved = False  # the iteration that is under way goes on elsewhere
        self._replays = False  # it hands out batches that were used
        self._iteration = 0
        self._under_way: int | None = None  # the epoch of that iteration, until it is over
        self._reads_here = not streamed and not options.get("num_workers")  # else batches are read ahead
        self._made_with: LoaderState = {
            "seed": seed,
            "shuffle": not streamed if shuffle is None else shuffle,
            "num_samples": num_samples,
            "num_workers": num_workers,
            "batch_size": batch_size * ranks.size,
            "drop_last": drop_last,
            "even": even,
        }
        whole = whole_share(rank, num_workers, ranks, num_samples)
        self._share: ShareSampler | StreamBatches
        if isinstance(dataset, IterableDataset):
            stream = StreamShare(
                batch_size=batch_size,
                even=even,
                drop_last=drop_last,
                ranks=ranks.size,
            )
            self._share = StreamBatches(
                dataset,
                stream,
                whole,
                num_samples=num_samples,
                rank=ranks.rank,
                shared=bool(options.get("num_workers")),
            )
            collate = SizedCollate(self.collate_fn)
            self._loader: DataLoader[Any] = DataLoader(
                self._share, batch_size=None, **{**options, "collate_fn": collate}
            )
        else:
            assert num_samples is not None
            share = Share(
                num_samples=num_samples,
                batch_size=batch_size,
                even=even,
                drop_last=drop_last,
                ranks=ranks.size,
            )
            self._share = ShareSampler(
                share,
                whole,
                shuffle=bool(self._made_with["shuffle"]),
                seed=seed,
                on_read=self._reads if self._reads_here else None,
                rank=ranks.rank,
            )
            self._loader = DataLoader(dataset, batch_sampler=self._share, **options)
        self._length = self._share.length
        self._alone = whole_share(0, 1, ranks, num_samples)

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
        return self._next.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._next, self._now = Position(epoch=epoch), None

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch begins, as frameworks do. A position inside it, of `load_state_dict`, stays."""
        if epoch != self._next.epoch:
            self.epoch = epoch

    def end(self) -> None:
        """The job has ended: nothing more is handed out."""
        self._ended = True

    def __iter__(self) -> Iterator[Any]:
        if self._ended or not self._listener.begin_iteration(self):
            return
        start = self._find_start()
        self._iteration += 1
        mine = self._iteration
        try:
            yield from self._iterate(start, mine)
        finally:
            if mine == self._iteration:
                self._under_way = None

    def _iterate(self, start: Position, mine: int) -> Iterator[Any]:
        begins = True
        self._moved = False
        while not self._ended:
            self._next, self._now = Position(epoch=start.epoch + 1), start
            self._under_way = start.epoch
            piece, quietly = yield from self._find_piece(start, mine, begins=begins)
            if piece is not None and not self._moved:
                self._own = piece.own and piece.epoch == start.epoch
                begins = False
                yield from self._hand_out(start.epoch, piece, mine, quietly=quietly)
            if self._moved:  # to where the script's loop is, or this iteration ends and the loop goes there
                goes_on = self._listener.arrive(self)
                if self._next.epoch != start.epoch:
                    if not (goes_on and begins and self._listener.current_epoch == start.epoch):
                        return
                    self._next = Position(epoch=start.epoch)  # a void pass of one to validate on
                elif not goes_on:
                    return
                self._moved = False
                start, begins = self._next, True
            elif piece is None:
                break
            elif self._now is None:  # the script says where the next one begins
                return
        if not self._ended:
            self._listener.end_iterator()
        self._now = None

    def _find_piece(
        self, start: Position, mine: int, *, begins: bool
    ) -> Generator[Any, None, tuple[EpochPiece | None, bool]]:
        """Hands out what the script takes again, and gives what is handed out next; see `_hand_out`.

        None where nothing of this epoch is left for this worker. If it is still behind, it goes on so in the
        next one; where nobody has begun a next one, which may never come, all that it is behind is of this.
        """
        quietly = self._dealer.behind > 0
        asks = yield from self._replay(start.epoch, mine)
        piece = None
        while asks and self._now is not None and not self._moved:
            self._passed = 0
            piece = self._dealer.deal(start.epoch, begins=begins)
            if piece is not None and begins and start.batches and not piece.left_over:
                piece = self._skip(piece, start)
            behind = self._dealer.behind > 0  # who was evicted while it asked, too
            quietly |= behind
            here = piece is not None or (behind and self._dealer.newest)
            if here and not (yield from self._catch_up(start.epoch, mine, dealt=piece is not None)):
                return None, quietly
            asks = here and piece is None  # others may have left something meanwhile
        return piece, quietly

    def _skip(self, piece: EpochPiece, start: Position) -> EpochPiece:
        """This worker's share, without what was used before the job."""
        first = start.offset or self._share.samples(piece, start.batches)
        if first <= piece.first:
            return piece
        self._passed = 0 if start.offset else start.batches
        self._dealer.skip(first)
        return replace(piece, first=first)

    def _catch_up(self, epoch: int, mine: int, *, dealt: bool) -> Generator[Any, None, bool]:
        """Hands out again until the script is behind no more; whether it is not.

        The steps behind are of this epoch: what others left over made more steps of it than a share has
        batches. The share is gone through once more. `dealt`: until what was dealt is another's.
        """
        while not self._moved and not (dealt and self._dealer.void) and (behind := self._dealer.behind):
            yield from self._replay(epoch, mine)
            if self._now is None or (self._dealer.behind >= behind and not (dealt and self._dealer.void)):
                return False
        return True

    def _replay(self, epoch: int, mine: int) -> Generator[Any, None, bool]:
        """Hands out again while the script is behind; False where it took no step with what it got."""
        piece = self._dealer.replay(epoch)
        if piece is None:
            return True
        self._own = False
        return (yield from self._hand_out_again(epoch, piece, mine))

    def _hand_out_again(self, epoch: int, piece: EpochPiece, mine: int) -> Generator[Any, None, bool]:
        """Batches that were used, until the script has taken again the steps that it is behind."""
        self._begin(epoch, piece)
        self._replays = True
        self._listener.begin_iterator()
        batches = self._sized()
        begun, stepped = 0, False
        while (
            (behind := self._dealer.behind)
            and mine == self._iteration
            and not self._ended
            and self._now is not None
        ):
            found = next(batches, None)
            if found is None:
                break
            if not self._reads_here:
                self._listener.begin_batch()
            self._count(found[0])
            begun += 1
            yield found[1]
            stepped |= self._dealer.behind != behind
        return stepped or not begun

    def _hand_out(self, epoch: int, piece: EpochPiece, mine: int, *, quietly: bool) -> Iterator[Any]:
        """The batches of a piece, until one of many things ends it.

        `quietly`: the script's iteration had begun before, so that no generator is drawn from once more.
        """
        self._begin(epoch, piece, self._passed)
        if self._own:
            self._length = self._share.length
        self._replays = False
        self._listener.begin_iterator()
        drawn = torch.get_rng_state() if quietly else None
        batches = self._sized()
        if drawn is not None:
            torch.set_rng_state(drawn)
        for size, batch in batches:
            if mine != self._iteration:
                raise UsageError(
                    "this iteration ended when the loader was iterated again: make a second loader"
                )
            if self._ended or self._now is None or self._dealer.void:
                return
            if not self._reads_here:
                self._listener.begin_batch()
            self._listener.hand_out(self, size)
            self._count(size)
            yield batch

    def _begin(self, epoch: int, piece: EpochPiece, passed: int = 0) -> None:
        """Sets what torch's loader gives next; of a stream what lies behind so many batches of the share."""
        if self._num_samples is not None:  # of a stream this is known at its end
            check_length(self._num_samples, piece.count, self._whose)
        if isinstance(self._share, StreamBatches):
            self._share.begin(piece, passed)
        else:
            self._share.begin(piece)
        self._now = Position(epoch=epoch, offset=piece.first, batches=self._share.before, share=piece)

    def _count(self, samples: int) -> None:
        """A batch is handed out."""
        assert self._now is not None
        self._now = replace(self._now, offset=self._now.offset + samples, batches=self._now.batches + 1)

    def _reads(self) -> None:
        if self._now is not None and (self._replays or not self._dealer.void):  # else it is of no use
            self._listener.begin_batch()

    @property
    def goes_on(self) -> bool:
        """Whether the iteration that is under way goes on where `position` was set."""
        return self._under_way is not None and self._under_way == self._next.epoch and self._moved

    @property
    def is_under_way(self) -> bool:
        """Whether the script is inside an iteration."""
        return self._under_way is not None

    @property
    def is_awaited(self) -> bool:
        """Whether it has handed out batches, then `position` was set, and no iteration has gone there yet."""
        return self._moved and self._iteration > 0

    def leave(self) -> None:
        """The script's loop goes to another epoch: the iteration that is under way ends."""
        self._now = None

    def _sized(self) -> Iterator[tuple[int, Any]]:
        """The batches with their numbers of samples, of all ranks together."""
        if isinstance(self._share, ShareSampler):
            return zip(self._share.sizes, self._loader, strict=True)
        return iter(self._loader)

    def _find_start(self) -> Position:
        """Epoch and first batch of the iteration that begins."""
        current = self._listener.current_epoch
        if current is None or current == self._next.epoch:
            return self._next
        if self._next.batches:
            raise UsageError(
                f"the loader's state is inside epoch {self._next.epoch}, worker.epochs is at {current}: "
                f"iterate worker.epochs(n, start={self._next.epoch}) to go on there, "
                "or set loader.epoch to begin an epoch anew"
            )
        return Position(epoch=current)

    # -- position --------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """After the last batch that it has handed out; inside `hand_out`, before the one that follows.

        An iteration that the script has left is over: the next one follows.

        Setting it moves an iteration that is under way, too: inside its epoch it goes on from there, to
        another epoch it ends. The offset counts in this worker's share of that epoch, as it is dealt then;
        what it had of others' shares is not its own there.
        """
        return self._next if self._now is None or self._under_way is None else self._now

    @position.setter
    def position(self, position: Position) -> None:
        share = position.share
        own = share is None or (share.own and not share.left_over and share.epoch == position.epoch)
        self._next, self._now = replace(position, share=None) if own else Position(epoch=position.epoch), None
        self._moved = True

    def state_dict(self) -> LoaderState:
        """Where this loader is: after the last batch that it has handed out.

        Returns:
            Numbers only: "epoch", "batches" (handed out in that epoch), and what the order depends on.
        """
        at = self._now or self._next
        if self._now is not None and not (self._own and at.batches != self._length):
            at = self._next  # whether or not the iterator was asked for one more
        return {"epoch": at.epoch, "batches": at.batches, **self._made_with}

    def load_state_dict(self, state: Mapping[str, int | bool | None]) -> None:
        """Makes the next iteration go on after the last batch before `state_dict()`, in the same order.

        Samples before it are not read again, but by an iterable dataset, which has to pass over them. Under
        BSP the state of any worker of as many ranks serves all of these; otherwise each needs its own.

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
        most = self._share.count(self._alone)  # who shares an epoch is known when it is dealt
        if most is not None and batches > most:
            raise UsageError(f"the state is {batches} batches into an epoch of at most {most}")
        self._next, self._now = Position(epoch=epoch, batches=batches), None
