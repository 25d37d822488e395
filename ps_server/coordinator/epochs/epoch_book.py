"""A job's book of epochs: which worker hands out which samples of each loader, and which were used. Pure.

An epoch is dealt when the first worker asks for its part of it. What somebody had and did not use when it
left, or was evicted, goes to whoever next comes to the end of its share of that epoch; where nobody is
left in it, of a later one. What nobody takes is unused. Of a loader of whose batches no step was ever made,
such as one to validate on, nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ps_server.coordinator.epochs.agreed import Agreed
from ps_server.coordinator.epochs.epoch import DealtEpoch
from ps_server.coordinator.epochs.piece_usage import PieceUsage
from ps_wire.snapshot.json_fields import MAX_SAMPLES
from ps_wire.snapshot.saved_epoch import MAX_EPOCHS, MAX_PLACES, SavedEpoch
from ps_wire.spec.epoch_use import EpochUse
from ps_wire.spec.epochs import EpochPiece, PieceMark

KEPT_PIECES = 4  # of a worker and loader: a step that is under way is of the last one or two
ANY = 0  # instead of an incarnation: whoever comes first under that number
NOBODY = -1  # its share was handed out before a rollback, or is left over


class Sharer(NamedTuple):
    """Of those who share an epoch: a worker's incarnation, or `ANY`, and how many ranks it has."""

    incarnation: int
    ranks: int = 1


_Answer: TypeAlias = tuple[int, int, EpochPiece | None]  # to an incarnation's request


@dataclass(slots=True)
class EpochBook:
    """The epochs of all loaders of one job, and each worker's pieces of them. Not thread-safe.

    Attributes:
        agreed: what workers say of the loaders' data, until all of them are gone.
    """

    agreed: Agreed = field(default_factory=Agreed)
    _epochs: dict[tuple[int, int], DealtEpoch] = field(default_factory=dict)
    _dealt: dict[tuple[int, int], tuple[int, list[PieceUsage]]] = field(
        default_factory=dict
    )  # loader, worker
    _training: set[int] = field(default_factory=set)  # loaders of whose batches steps were made
    _live: dict[tuple[int, int], None] = field(default_factory=dict)  # epochs that are not over
    _ended: list[EpochUse] = field(default_factory=list)  # and not asked for yet
    _answers: dict[tuple[int, int], _Answer] = field(default_factory=dict)  # loader, worker: the last one

    def once(
        self, loader: int, worker: int, incarnation: int, request: int, ask: Callable[[], EpochPiece | None]
    ) -> EpochPiece | None:
        """Answers `ask` once for each request: one whose answer was lost is asked again. 0: it is not."""
        known = self._answers.get((loader, worker))
        if not request or known is None or known[:2] != (incarnation, request):
            known = self._answers[loader, worker] = incarnation, request, ask()
        return known[2]

    def asked(self) -> set[tuple[int, int]]:
        """Workers, with their incarnations, that have asked for something: these are in their data."""
        return {(worker, incarnation) for (_, worker), (incarnation, *_) in self._answers.items()}

    def ask(
        self,
        loader: int,
        epoch: int,
        worker: int,
        incarnation: int,
        sharing: Mapping[int, Sharer],
        *,
        ranks: int = 1,
        begins: bool = True,
        samples: int = 0,
        mark: PieceMark | None = None,
        rest: PieceMark | None = None,
    ) -> EpochPiece | None:
        """Gives what a worker hands out next of an epoch; None where there is nothing for it.

        Args:
            loader: its number, the same on all workers.
            epoch: of the worker's iteration.
            worker: who asks.
            incarnation: of it. One that came after the epoch was dealt has no share, but what is left over.
            sharing: those who share it if it is not dealt yet, by worker.
            ranks: of the worker.
            begins: its iteration does; else the piece before is at its end.
            samples: of an epoch; 0: not known.
            mark: how far it had come in the piece before, and its pace from now on.
            rest: how far it comes in it with the step that follows; None: no further.
        """
        mark = mark or PieceMark()
        if self._dealt.get((loader, worker), (0, []))[0] != incarnation:
            self._pass_over(loader, epoch, worker, incarnation)
        self._close(loader, worker, incarnation, mark, rest or mark)
        dealt = self._epochs.get((loader, epoch)) or self._begin(loader, epoch, sharing, samples)
        if dealt.owners.get(worker) == ANY:
            dealt.own(worker, incarnation)
        if not begins and worker not in dealt.begun and not self._training:
            begins = True  # it comes again to a job of which all were gone before its first step
        own = begins and dealt.owners.get(worker) == incarnation
        if own and worker in dealt.begun:
            return dealt.piece(epoch, worker, 0, own=True, left_over=False)
        first = dealt.starts.get(worker, 0)
        if own and not dealt.fits(worker, first, ranks):  # its group was smaller at the cut
            dealt.give_up([worker], NOBODY, left_over=True)
            own = False
        if not own:
            who = Sharer(incarnation, ranks)
            return self._left_over(loader, epoch, worker, who, sharing, mark, inside=not begins)
        dealt.begin(worker)
        self._adopt(loader, worker, incarnation, mark, PieceUsage(epoch=epoch, share=worker, first=first))
        return dealt.piece(epoch, worker, first, own=True, left_over=False)

    def skip(self, loader: int, worker: int, incarnation: int, first: int) -> None:
        """A worker has just begun with its share, and used what comes before `first` before the job."""
        for piece in self._of(loader, worker, incarnation)[-1:]:
            epoch = self._epoch_of(loader, piece)
            if piece.open and not piece.left_over and not piece.used() and epoch is not None:
                epoch.count(piece.skip(epoch.within(piece.share, first)), handed_on=0)

    def _begin(self, loader: int, epoch: int, sharing: Mapping[int, Sharer], samples: int) -> DealtEpoch:
        places = sum(len(known.owners) for known in self._epochs.values()) + len(sharing)
        while self._epochs and (len(self._epochs) >= MAX_EPOCHS or places > MAX_PLACES):
            oldest = next(iter(self._epochs))
            places -= len(self._epochs.pop(oldest).owners)
            self._live.pop(oldest, None)
        self._live[loader, epoch] = None
        owners = {worker: sharer.incarnation for worker, sharer in sharing.items()}
        ranks = {worker: sharer.ranks for worker, sharer in sharing.items()}
        begun = self._epochs[loader, epoch] = DealtEpoch(owners, ranks, samples=samples)
        return begun

    def _pass_over(self, loader: int, epoch: int, worker: int, incarnation: int) -> None:
        """One that has come begins with this epoch: its shares of those before are left over.

        Of a loader that nobody trains on they would be nobody's, and it may yet go back there.
        """
        for (other, number), dealt in self._epochs.items() if self.trains(loader) else ():
            if other == loader and number < epoch and dealt.owners.get(worker) in (incarnation, ANY):
                dealt.give_up([worker], NOBODY, left_over=True)

    def _left_over(
        self,
        loader: int,
        epoch: int,
        worker: int,
        who: Sharer,
        sharing: Mapping[int, Sharer],
        mark: PieceMark,
        *,
        inside: bool,
    ) -> EpochPiece | None:
        """`inside`: the worker's iteration has begun before."""
        absent = [other for other, it in sharing.items() if it.incarnation == ANY]  # they may never come
        trains = self.trains(loader)
        for other, number in self._live if trains or not self._training else ():
            dealt = self._epochs[other, number]
            due = number == epoch or (trains and number < epoch and not self._pieces(loader, number))
            if other != loader or not due:
                continue
            if trains:  # else nobody else takes them, and who comes late has its own
                dealt.give_up([it for it in absent if dealt.owners.get(it) == ANY], NOBODY, left_over=True)
            if not (trains or inside):
                continue  # before the first step a loader may be to validate on
            if left := dealt.pop_left(worker, who.ranks, own=not trains):
                share, first = left
                piece = PieceUsage(epoch=number, share=share, first=first, left_over=True)
                self._adopt(loader, worker, who.incarnation, mark, piece)
                return dealt.piece(number, share, first, own=share == worker, left_over=True)
        return None

    def trains(self, loader: int) -> bool:
        """Whether steps were made of its batches."""
        return loader in self._training

    def is_newest(self, loader: int, epoch: int) -> bool:
        """Whether no epoch of a loader that trains was begun after it: no step is of a later one."""
        begun = [key for key in self._epochs if self.trains(key[0])]
        return begun[-1:] == [(loader, epoch)]

    def mark(self, loader: int, worker: int, incarnation: int, mark: PieceMark) -> None:
        """A worker says how far it has come, before the pushes of the step leave."""
        for piece in self._of(loader, worker, incarnation)[-1:]:
            if piece.open:
                self._training.add(loader)
                piece.mark(mark)

    def finished(self, worker: int, incarnation: int, clock: int) -> None:
        """A worker wants no more: what it has not used stays unused."""
        self._cut_off(worker, incarnation, clock, left_over=False)

    def gone(self, worker: int, incarnation: int, clock: int) -> None:
        """A worker has left, or was evicted: what is not of its first `clock` steps is left over."""
        self._cut_off(worker, incarnation, clock, left_over=True)

    def _cut_off(self, worker: int, incarnation: int, clock: int, *, left_over: bool) -> None:
        for loader in self._loaders(worker):
            for piece in self._of(loader, worker, incarnation):
                was_open, before = piece.open, piece.used()
                if not was_open:
                    self._count(loader, piece, -1)
                used = piece.used(clock)
                piece.cut_off(clock)
                self._count(loader, piece)
                epoch = self._epoch_of(loader, piece)
                if epoch is not None and (was_open or used < before):
                    self._live[loader, piece.epoch] = None
                    if left_over:
                        epoch.leave_over(piece.share, piece.first + used)
            self._dealt.pop((loader, worker), None)
        for key in [key for key, it in self._answers.items() if (key[1], it[0]) == (worker, incarnation)]:
            del self._answers[key]
        for epoch in self._epochs.values():  # the shares that it has not asked for
            if epoch.owners.get(worker) in (incarnation, ANY):
                epoch.give_up([worker], NOBODY, left_over=left_over)

    def never_came(self, workers: Iterable[int]) -> None:
        """Those who had shares before a rollback, and did not come back: what they had is left over."""
        gone = set(workers)
        for epoch in self._epochs.values():
            awaited = {worker for worker, owner in epoch.owners.items() if owner == ANY}
            epoch.give_up(gone & awaited, NOBODY, left_over=True)

    def end(self) -> None:
        """The job has ended: what is left over stays unused."""
        for key in list(self._live):
            self._settle(key)

    def suspend(self) -> None:
        """All workers are gone: what they left over is for who goes on with the job.

        Epochs that are over stay so. Those of loaders that no step was made of are forgotten: who comes again
        validates, and has all of them.
        """
        self.agreed.clear()
        for key in list(self._live):
            if key[0] not in self._training or self._is_over(key):
                self._settle(key)
        self._epochs = {key: epoch for key, epoch in self._epochs.items() if key[0] in self._training}

    def clear(self) -> None:
        """The job's state is given up: who comes begins its epochs anew."""
        self.end()
        self.agreed.clear()
        self._epochs.clear()
        self._dealt.clear()
        self._training.clear()

    # -- snapshots -------------------------------------------------------------------------------------

    def capture(self, clocks: Mapping[int, int]) -> list[SavedEpoch]:
        """Dumps for `restore`, as it was when each worker had taken so many steps.

        An epoch that nobody had begun at the cut is dealt anew, to whoever is there then. What workers have
        said that cannot be is cut to what a snapshot takes.

        Args:
            clocks: of the cut, by worker; at most a few steps ago.
        """
        captured = (self._capture(key, epoch, clocks) for key, epoch in self._epochs.items())
        return [epoch for epoch in captured if epoch is not None]

    def _capture(
        self, key: tuple[int, int], epoch: DealtEpoch, clocks: Mapping[int, int]
    ) -> SavedEpoch | None:
        """None: nobody had begun it."""
        starts = {n: epoch.starts.get(n, 0) for n in epoch.owners if n not in epoch.begun}
        left, used, handed_on = list(epoch.left), epoch.used, epoch.handed_on
        begun = set(epoch.begun)  # at the cut
        for (loader, worker), (_, pieces) in self._dealt.items():
            for piece in pieces if loader == key[0] else ():
                if piece.epoch != key[1] or piece.share not in epoch.owners:
                    continue
                clock = clocks.get(worker)
                now, then = piece.used(), piece.used(clock)
                behind = clock is not None and piece.began > clock
                if behind and not piece.left_over:
                    begun.discard(worker)
                samples = then - (0 if piece.open else now)
                used, handed_on = used + samples, handed_on + samples * piece.left_over
                if not piece.open and then >= now and not behind:
                    continue
                if piece.left_over or worker not in epoch.owners:
                    left.append((piece.share, piece.first + then))
                else:
                    starts[worker] = piece.first + then
        if epoch.begun and not begun:
            return None
        return SavedEpoch(
            loader=key[0],
            epoch=key[1],
            workers=tuple(sorted(epoch.owners)),
            ranks=tuple(ranks for _, ranks in sorted(epoch.ranks.items())),
            samples=min(epoch.samples, MAX_SAMPLES),
            used=min(max(used, 0), MAX_SAMPLES),
            handed_on=min(max(handed_on, 0), MAX_SAMPLES),
            starts={worker: min(first, MAX_SAMPLES) for worker, first in sorted(starts.items())},
            left=tuple((share, min(first, MAX_SAMPLES)) for share, first in left),
            trains=key[0] in self._training,
        )

    def restore(self, captured: Iterable[SavedEpoch]) -> None:
        """All is as captured; each worker goes on in its share under the incarnation that asks first."""
        self._epochs.clear()
        self._dealt.clear()
        self._training.clear()
        self._live.clear()
        self._ended.clear()
        self._answers.clear()
        self.agreed.clear()
        for entry in captured:
            key = entry.loader, entry.epoch
            self._epochs[key] = DealtEpoch(
                {worker: ANY if worker in entry.starts else NOBODY for worker in entry.workers},
                dict(zip(entry.workers, entry.ranks, strict=True)),
                samples=entry.samples,
                used=entry.used,
                handed_on=entry.handed_on,
                starts=dict(entry.starts),
                begun=set(entry.workers) - set(entry.starts),
                left=list(entry.left),
            )
            if entry.trains:
                self._training.add(entry.loader)
            if entry.starts or entry.left:
                self._live[key] = None

    def dump(self) -> dict[str, Any]:
        """All of it, as it is now, for JSON; `capture` is of a cut."""
        return {
            "agreed": self.agreed.dump(),
            "epochs": [[*key, epoch.dump()] for key, epoch in self._epochs.items()],
            "dealt": [
                [*key, incarnation, [piece.dump() for piece in pieces]]
                for key, (incarnation, pieces) in self._dealt.items()
            ],
            "training": sorted(self._training),
            "live": list(self._live),
            "ended": [asdict(use) for use in self._ended],
            "answers": [
                [*key, incarnation, request, None if piece is None else asdict(piece)]
                for key, (incarnation, request, piece) in self._answers.items()
            ],
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped."""
        self.agreed.load(facts.get("agreed", ()))  # a release before has none
        for loader, number, epoch in facts["epochs"]:
            self._epochs[loader, number] = DealtEpoch.load(epoch)
        for loader, worker, incarnation, pieces in facts["dealt"]:
            self._dealt[loader, worker] = incarnation, [PieceUsage.load(piece) for piece in pieces]
        self._training.update(facts["training"])
        self._live.update(dict.fromkeys(map(tuple, facts["live"])))
        self._ended.extend(EpochUse(**use) for use in facts["ended"])
        for loader, worker, incarnation, request, piece in facts["answers"]:
            self._answers[loader, worker] = (
                incarnation,
                request,
                None if piece is None else EpochPiece(**piece),
            )

    # -- accounts --------------------------------------------------------------------------------------

    def uses(self, clocks: Mapping[int, int], most: int) -> list[EpochUse]:
        """Of the epochs that began last, of loaders that train; `clocks` are workers' steps so far."""
        keys = [key for key in self._epochs if key[0] in self._training]
        return [self._use(key, clocks) for key in keys[-most:]]

    def over(self) -> list[EpochUse]:
        """Of the epochs of loaders that train which have come to their end since this was last asked."""
        for key in list(self._live):
            if self._is_over(key):
                self._settle(key)
        ended, self._ended = self._ended, []
        return ended

    # -- inside ----------------------------------------------------------------------------------------

    def _adopt(self, loader: int, worker: int, incarnation: int, mark: PieceMark, piece: PieceUsage) -> None:
        piece.mark(PieceMark(step=mark.step, pace=mark.pace))
        pieces = self._of(loader, worker, incarnation)
        pieces.append(piece)
        del pieces[:-KEPT_PIECES]
        self._dealt[loader, worker] = incarnation, pieces

    def _close(self, loader: int, worker: int, incarnation: int, mark: PieceMark, rest: PieceMark) -> None:
        for piece in self._of(loader, worker, incarnation)[-1:]:
            if piece.open:
                if mark.samples:
                    self._training.add(loader)
                piece.close(mark, rest)
                self._count(loader, piece)

    def _count(self, loader: int, piece: PieceUsage, sign: int = 1) -> None:
        epoch = self._epochs.get((loader, piece.epoch))
        if epoch is not None:
            samples = sign * piece.used()
            epoch.count(samples, handed_on=samples * piece.left_over)

    def _epoch_of(self, loader: int, piece: PieceUsage) -> DealtEpoch | None:
        """None where it was forgotten as the oldest, and perhaps dealt again, to others."""
        epoch = self._epochs.get((loader, piece.epoch))
        return epoch if epoch is not None and piece.share in epoch.owners else None

    def _of(self, loader: int, worker: int, incarnation: int) -> list[PieceUsage]:
        known, pieces = self._dealt.get((loader, worker), (incarnation, []))
        return pieces if known == incarnation else []

    def _loaders(self, worker: int) -> list[int]:
        return [loader for loader, other in self._dealt if other == worker]

    def _pieces(self, loader: int, epoch: int) -> list[tuple[int, PieceUsage]]:
        """That are open, with their workers."""
        return [
            (worker, piece)
            for (other, worker), (_, pieces) in self._dealt.items()
            for piece in pieces
            if other == loader and piece.epoch == epoch and piece.open
        ]

    def _is_over(self, key: tuple[int, int]) -> bool:
        loader, number = key
        epoch = self._epochs[key]
        begun = all(worker in epoch.begun for worker in epoch.owners)
        left = epoch.left and (loader in self._training or not self._training)
        return begun and not left and not self._pieces(loader, number)

    def _settle(self, key: tuple[int, int]) -> None:
        self._live.pop(key, None)
        if key[0] in self._training:
            self._ended.append(self._use(key, {}))

    def _use(self, key: tuple[int, int], clocks: Mapping[int, int]) -> EpochUse:
        loader, number = key
        epoch = self._epochs[key]
        now = [(piece, piece.used(clocks.get(worker))) for worker, piece in self._pieces(*key)]
        return EpochUse(
            loader=loader,
            epoch=number,
            samples=epoch.samples,
            used=epoch.used + sum(samples for _, samples in now),
            handed_on=epoch.handed_on + sum(samples for piece, samples in now if piece.left_over),
            over=key not in self._live,
        )
