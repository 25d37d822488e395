"""The data of a script, and where in it the script is: its loaders, its loop's epoch, the samples taken.

It must not know optimizers, nor when a step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from ps_wire.errors import RolledBack, UsageError
from ps_wire.process.ranks import ALONE, Ranks
from ps_wire.spec.consistency import Consistency
from ps_worker.data.data_facts import facts_of, sums_of
from ps_worker.data.epoch_dealer import EpochDealer, PieceSource, ScriptSteps
from ps_worker.data.loader import Loader, whole_share
from ps_worker.data.position import Position, Positions

MANY_DROPPED = 10_000  # steps, or passes over loaders: more than a script makes of what it has in hand


class DataListener(ScriptSteps, Protocol):
    """The worker, which hears of batches and epochs on the thread that draws them."""

    def begin_iterator(self) -> None:
        """Called before torch's iterator over a loader is made, which draws from the generators."""

    def end_iterator(self) -> None:
        """Called when a loader has nothing more of an epoch, before the script goes on behind its batches."""

    def begin_batch(self) -> None:
        """Called before a batch is read in this process, else before it is handed out."""

    def begin_epoch(self, epoch: int, *, loop: int, stop: int) -> bool:
        """Called when the script's loop is about to begin an epoch; whether it is to.

        Args:
            epoch: its number.
            loop: number of the loop, from 0.
            stop: the epoch before which that loop ends.
        """

    def end_loop(self) -> None:
        """Called when the script's loop has come to its end by itself."""

    def arrive_behind_loop(self) -> None:
        """Called when the script has left out a loop behind which it was sent: it is there."""

    @property
    def next_call(self) -> int:
        """The number of the next call that it makes together with the other workers."""

    def pass_over_calls(self, number: int) -> None:
        """Called when the script leaves out a loop that the job has behind it: this is the next call."""


class ScriptData:
    """The data of a script: its loaders, its loop over epochs. Registered with the job are the samples.

    Attributes:
        samples: that loaders have handed out.
        batches: that loaders have handed out in this process.
        used: the script has a loader, or a loop over epochs.
    """

    def __init__(self, consistency: Consistency, listener: DataListener, ranks: Ranks = ALONE) -> None:
        """Has no loaders.

        Args:
            consistency: of the job.
            listener: the worker.
            ranks: the place of this process in its group.
        """
        self._ranks = ranks
        self.samples = 0
        self.batches = 0
        self.used = False
        self._even = consistency.aggregates
        self._listener = listener
        self._unweighed: list[dict[object, int]] = []  # for each who weighs: samples by loader, latest last
        self._epoch: int | None = None
        self._loaders: WeakSet[Loader] = WeakSet()
        self._numbers: WeakKeyDictionary[Loader, int] = WeakKeyDictionary()
        self._num_loaders = 0
        self._dealers: list[EpochDealer] = []
        self._saved_positions: list[Position] = []  # at a snapshot, by number of the loader
        self._taken: tuple[Position, ...] = ()  # in a position that was taken up, likewise
        self._back_to: int | None = None  # an epoch that the script's loop is to go to
        self._behind_loop = False  # it is to go to the end of the loop before that one
        self._training: WeakSet[Loader] = WeakSet()  # of whose batches steps were made, in an iteration
        self._at: frozenset[int] = frozenset()  # loaders inside whose iterations the job went back
        self._dropped = 0  # steps and iterations since then
        self._rewound = False  # the job went back: what the script does until it goes there is void
        self._first = 0  # epoch of its first loop
        self._stop = 0  # of the loop that began last: its epochs and those of loops before
        self._ends: list[int] = []  # calls made together, at the end of each loop
        self._sent_ends: tuple[int, ...] = ()  # likewise, where it is to go
        self._told = False  # that it was sent back, by `RolledBack`
        self._undone_stop = 0  # as `_stop`, before it was

    def state_dict(self) -> dict[str, Any]:
        """Samples that were handed out."""
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Counts on from there."""
        self.samples = state["samples"]

    def make_loader(self, source: PieceSource, **given: Any) -> Loader:
        """A loader with these arguments of `Loader`; `source` says what of an epoch is this worker's."""
        self.used = True
        dataset = given["dataset"]
        samples = len(dataset) if isinstance(dataset, Sized) else None
        dealer = EpochDealer(
            self._num_loaders,
            source,
            self._listener,
            samples=samples or 0,
            whole=whole_share(given["rank"], given["num_workers"], self._ranks, samples),
            data=facts_of(dataset, seed=given["seed"], shuffle=given["shuffle"]) | self._sizes(given),
            sums=sums_of(dataset),
        )
        if self._num_loaders < len(self._taken):
            dealer.take_up(self._taken[self._num_loaders])
        made = Loader(
            **given,
            ranks=self._ranks,
            even=self._even,
            dealer=dealer,
            listener=self,
        )
        if self._num_loaders < len(self._saved_positions):
            made.position = self._saved_positions[self._num_loaders]
        self._numbers[made] = self._num_loaders
        self._dealers.append(dealer)
        self._num_loaders += 1
        self._loaders.add(made)
        return made

    def _sizes(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The sizes that all workers have to have alike where they get equally many batches."""
        return {name: str(given[name]) for name in ("batch_size", "drop_last") if self._even}

    def take_step(self, step: int) -> None:
        """Counts what loaders have handed out as of the first `step` steps of this worker."""
        for loader in self._loaders:
            if loader.is_under_way and self._dealers[self._numbers[loader]].pending:
                self._training.add(loader)
        for dealer in self._dealers:
            dealer.take_step(step)

    def positions(self) -> Positions:
        """Where this script is in its data."""
        at = {self._numbers[loader]: loader.position for loader in self._loaders}
        known = [at.get(number, Position(epoch=0)) for number in range(self._num_loaders)]
        between = self._epoch is None and bool(self._ends) and not self._told
        epoch = self._stop if between else self._epoch
        return Positions(epoch=epoch, loaders=tuple(known), ends=tuple(self._ends), between=between)

    def take_up(self, at: Positions) -> None:
        """The script goes on where another process was: its loop at that epoch, and there its loaders.

        A script that has no such loop goes on with its own counts of epochs; those before `at` are empty.
        """
        self.drop_batch()
        self._taken = at.loaders
        for dealer, position in zip(self._dealers, at.loaders, strict=False):
            dealer.take_up(position)
        iterates = not self.between_epochs or any(dealer.begins for dealer in self._dealers)
        here = at.epoch == self._epoch and not at.between and iterates
        if here:
            self._back_to, self._rewound = None, False
        elif at.epoch is not None:  # behind the last batch of that epoch: its body runs again
            self._go_to(at)
            self._rewound = False  # others went on: where the script trains on meanwhile, that counts
            if self._epoch is not None:
                for loader in self._loaders:
                    loader.leave()

    def rewind(self, saved: Positions) -> None:
        """The script goes on where it was at a snapshot: loaders, and the loop over epochs."""
        self.drop_batch()
        self._saved_positions = list(saved.loaders)
        self._dropped = 0
        if saved.epoch is None and self._stop > 0:  # of before its first loop
            saved = replace(saved, epoch=self._first)
        self._go_to(saved)
        if saved.between and self._epoch is None and len(self._ends) == len(saved.ends):
            self._back_to = None  # it is there
        self._rewound = self._back_to is not None and self._back_to < self._stop
        self._at = frozenset(number for number, it in enumerate(saved.loaders) if it.share is not None)
        for loader in self._loaders:
            if self._numbers[loader] < len(saved.loaders):
                loader.position = saved.loaders[self._numbers[loader]]

    def _go_to(self, at: Positions) -> None:
        self._back_to, self._behind_loop, self._sent_ends = at.epoch, at.between, at.ends

    def run_again(self) -> None:
        """The script is told that it was sent back: the loop that it begins next is its first one again."""
        self._told, self._rewound = True, False

    def hear(self) -> None:
        """The script was told otherwise than by `RolledBack`: with batches of its own it sees to the rest."""
        if not self._training:
            self._rewound = False

    def check_arrived(self) -> None:
        """Refuses a script that ends, and has not gone where it was sent.

        Raises:
            RolledBack: its job went back, which it has not been told; its loop was left before it went there.
            UsageError: it was told that it was sent back.
        """
        if self.is_rewound:
            raise self.sent_back("the script has left its loop")
        had = max(self._undone_stop, self._stop if self._told else 0)
        if self._back_to is not None and self._back_to < had:
            raise UsageError(
                f"this worker was sent back to epoch {self._back_to}, and its script has not gone there: "
                "after RolledBack, run all its loops over worker.epochs again, from the first"
            )

    def drop_batch(self) -> None:
        """Drops what loaders have handed out: it is part of no step of this incarnation."""
        for counts in self._unweighed:
            counts.clear()

    def end(self) -> None:
        """The job has ended: loaders give nothing more."""
        for loader in self._loaders:
            loader.end()

    @property
    def has_loaders(self) -> bool:
        """Whether a step begins with a batch of a loader; a forward elsewhere, to validate, begins none."""
        return self._num_loaders > 0

    @property
    def between_steps(self) -> bool:
        """Whether all that loaders to train on have handed out is part of a step."""
        return not any(dealer.trains and dealer.pending for dealer in self._dealers)

    @property
    def between_epochs(self) -> bool:
        """Whether it has loaders, and is in no iteration over one that it trains on, as far as is known."""
        training = [dealer for dealer in self._dealers if dealer.trains] or self._dealers
        return bool(training) and not any(dealer.under_way for dealer in training)

    @property
    def goes_on(self) -> bool:
        """Whether the script goes by itself to where it was sent back: in its loop, or in an iteration.

        Not where its batches are its own: the rest of the body would train on, in the epoch that is undone.
        """
        if self._epoch is not None:
            return bool(self._loaders)
        return self._back_to is None and any(loader.goes_on for loader in self._loaders)

    def has_batches(self) -> bool:
        """Whether the script has a batch that no step was made of yet, as far as is known."""
        used = [dealer for dealer in self._dealers if dealer.under_way]
        return any(dealer.pending for dealer in used) if used else True

    def epochs(self, numbers: range) -> Iterator[int]:
        """See `Worker.epochs`."""
        self.used = True
        if self._told:
            self._told, self._undone_stop, self._stop = False, max(self._stop, self._undone_stop), 0
            self._ends.clear()
        loop = len(self._ends)
        epoch = first = max(numbers.start, self._stop)  # no number comes twice
        if not loop:
            self._first = first
        stop = self._stop = first + len(numbers) if numbers else max(numbers.stop, self._stop)
        try:
            while True:
                if self._back_to is not None:
                    if self._back_to < first:
                        raise self.sent_back("that is one of an earlier loop")
                    if self._back_to >= stop:  # the job is in a loop that follows, or behind this one
                        self._pass_over(loop)
                        return
                    epoch, self._back_to, self._told = self._back_to, None, False
                if epoch >= stop:
                    break
                self._epoch = epoch
                if not self._listener.begin_epoch(epoch, loop=loop, stop=stop):
                    return
                if self._back_to is None:  # else it was sent elsewhere while it asked
                    yield epoch - first + numbers.start
                    epoch += 1
            self._leave_loop(loop)
            self._listener.end_loop()
        finally:
            self._leave_loop(loop)

    def _leave_loop(self, loop: int) -> None:
        self._epoch = None
        if loop == len(self._ends):
            self._ends.append(self._listener.next_call)

    def _pass_over(self, loop: int) -> None:
        """The script leaves this loop out, and the calls in it."""
        if loop < len(self._sent_ends):
            self._ends.append(self._sent_ends[loop])
            self._listener.pass_over_calls(self._ends[loop])
        if self._behind_loop and loop + 1 == len(self._sent_ends):
            self._back_to = None
            self._listener.arrive_behind_loop()

    def sent_back(self, why: str) -> RolledBack:
        """Tells a script that does not go back by itself; `why` it does not."""
        self.run_again()
        return RolledBack(
            f"this worker was sent back to epoch {self._back_to}, and {why}: run the script's loops over "
            "worker.epochs again, from the first, or start it again",
            step=self._listener.step,
        )

    def sample_weight(self) -> Callable[[], float]:
        """A function that gives the samples handed out since it was last called.

        Of the loader of the latest batch alone: what others handed out before were batches to validate on.
        """
        samples = self.step_samples()
        return lambda: float(max(samples(), 1))

    def step_samples(self) -> Callable[[], int]:
        """As `sample_weight`; 0 where no loader of ours has handed out any."""
        counts: dict[object, int] = {}
        self._unweighed.append(counts)

        def taken() -> int:
            samples = counts.popitem()[1] if counts else 0
            counts.clear()
            return samples

        return taken

    @property
    def arrived(self) -> bool:
        """Whether the script is where it was sent."""
        return self._back_to is None or self._back_to == self._epoch

    @property
    def returns(self) -> bool:
        """Whether the script's loop has yet to begin the epoch that it was sent to, or to begin it again."""
        return self._back_to is not None

    @property
    def is_undone(self) -> bool:
        """Whether it has begun something, and has yet to go where it was sent: what it decides is void."""
        if self._stop > 0:
            return self._back_to is not None
        return any(loader.is_awaited for loader in self._loaders if self._trains(loader))

    @property
    def went_back(self) -> bool:
        """Whether its job went back, and the script, which was not told, has yet to go there in its loop."""
        return self._rewound and self._back_to is not None

    @property
    def is_rewound(self) -> bool:
        """Whether, besides, that is elsewhere than in this pass through its body: no step counts."""
        return self.went_back and (self._back_to != self._epoch or bool(self._at))

    def drop(self) -> None:
        """A step of the script does not count, or an iteration gives nothing.

        Raises:
            RolledBack: there were very many: by itself the script would not go back.
        """
        if not self.is_rewound:
            return
        self._dropped += 1
        if self._dropped > MANY_DROPPED:
            raise self.sent_back("the script goes on elsewhere")

    @property
    def newest_epoch(self) -> int:
        """The epoch that the script's loop is in, or was in last; 0 where it was in none."""
        return max(self._stop - 1, 0) if self._epoch is None else self._epoch

    def _trains(self, loader: Loader) -> bool:
        """Whether steps are made of its batches; as long as none were made of any, they may be."""
        return loader in self._training or not self._training

    # -- what a loader tells ---------------------------------------------------------------------------

    @property
    def current_epoch(self) -> int | None:
        """See `LoaderListener`."""
        return self._epoch

    def begin_iteration(self, loader: Loader) -> bool:
        """See `LoaderListener`. Inside the epoch to which its loop was sent, it need not begin again."""
        if self.arrive(loader):
            return True
        self.drop()
        return False

    def begin_iterator(self) -> None:
        """See `LoaderListener`."""
        self._listener.begin_iterator()

    def end_iterator(self) -> None:
        """See `LoaderListener`."""
        self._listener.end_iterator()

    def begin_batch(self) -> None:
        """See `LoaderListener`."""
        self._listener.begin_batch()

    def arrive(self, loader: Loader) -> bool:
        """See `LoaderListener`. With one to validate on, or that comes later in the body, nobody arrives."""
        if not self._trains(loader):
            return True
        if self._back_to == self._epoch and (not self._at or self._numbers[loader] in self._at):
            self._back_to = None
        return not self.is_rewound

    def hand_out(self, loader: Loader, samples: int) -> None:
        """See `LoaderListener`."""
        self.samples += samples
        self.batches += 1
        dealer = self._dealers[self._numbers[loader]]
        dealer.hand_out(samples)
        self.arrive(loader)
        for counts in self._unweighed:
            counts[dealer] = counts.pop(dealer, 0) + samples
