"""Epochs that workers of different sizes share, with different batches, while they come and go.

Loaders and dealers are those of workers, the book is the coordinator's; steps are committed one by one.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from ps_server.coordinator.epochs.epoch_book import EpochBook, Sharer
from ps_wire.frames.messages import mark_from_proto, piece_to_proto
from ps_wire.process.ranks import Ranks
from ps_wire.snapshot.json_fields import Field
from ps_wire.snapshot.saved_epoch import epochs_from_json
from ps_wire.spec.epochs import EpochPiece
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.epoch_dealer import EpochDealer
from ps_worker.data.loader import whole_share
from ps_worker.data.position import Position
from tests.component.loaders import Counting, Sized, made

WORKERS, EPOCHS, SEEDS = 4, 3, 120
MOST = 5  # samples of a rank's batch
Used = dict[tuple[int, int, int], tuple[int, list[int]]]  # worker, incarnation, step -> epoch, samples


class Following:
    """The dealer of a rank above 0: it hears what the leader's was told. A `Dealer`."""

    newest = False
    behind = 0

    def __init__(self, leader: Told) -> None:
        self._leader = leader
        self._heard = 0

    @property
    def void(self) -> bool:
        return self._leader.void

    def replay(self, epoch: int) -> EpochPiece | None:
        return None

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        self._heard += 1
        return self._leader.said[self._heard - 1]

    def skip(self, first: int) -> None:
        pass


class Told(EpochDealer):
    """The leader's, which notes what it was told."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.said: list[EpochPiece | None] = []

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        self.said.append(super().deal(epoch, begins=begins))
        return self.said[-1]


class Member:
    """One incarnation of a worker, with the loaders of its ranks."""

    def __init__(
        self,
        world: World,
        number: int,
        incarnation: int,
        ranks: int,
        batch_size: int,
        at: Position | None = None,
    ) -> None:
        self.number, self.incarnation, self.ranks = number, incarnation, ranks
        self.batch_size = batch_size
        self.step = self.committed = world.clocks[number]
        self.over = False
        self._world = world
        whole = whole_share(number, WORKERS, Ranks(rank=0, size=ranks), world.samples)
        self._dealer = Told(0, self, self, samples=world.samples, whole=whole, data={})
        self._loaders = [
            made(
                world.dataset,
                number,
                WORKERS,
                batch_size=batch_size,
                even=world.even,
                ranks=Ranks(rank=rank, size=ranks),
                dealer=Following(self._dealer) if rank else self._dealer,
                listener=_Handing(self._dealer if rank == 0 else None),
            )
            for rank in range(ranks)
        ]
        self.epoch = world.newest
        if at is not None:
            self.epoch = at.epoch
            for loader in self._loaders:
                loader.position = at
        self.positions = {self.step: self._loaders[0].position}
        self._batches = self._drawn()

    def steps_behind(self) -> int:
        return 0

    def is_rewound(self) -> bool:
        return False

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        book = self._world.book
        found = book.ask(
            *(request.loader, request.epoch, self.number, self.incarnation),
            self._world.sharing(),
            ranks=self.ranks,
            begins=request.begins,
            samples=request.samples,
            mark=mark_from_proto(request.mark),
            rest=mark_from_proto(request.rest),
        )
        return pb.ShareReply(piece=None if found is None else piece_to_proto(found))

    def use(self, request: pb.UseRequest) -> None:
        if request.HasField("mark"):
            self._world.book.mark(0, self.number, self.incarnation, mark_from_proto(request.mark))
        else:
            self._world.book.skip(0, self.number, self.incarnation, request.skipped)

    def _drawn(self) -> Iterator[tuple[int, list[int]]]:
        """Epoch and samples of each batch, of all ranks together."""
        while self.epoch < EPOCHS:
            self._world.newest = max(self._world.newest, self.epoch)
            for loader in self._loaders:
                loader.set_epoch(self.epoch)
            for parts in zip(*self._loaders, strict=True):
                assert all(len(part) for part in parts), "a rank has no sample"
                piece = self._dealer.said[-1]
                assert piece is not None
                yield piece.epoch, [sample % 1000 for part in parts for sample in part.tolist()]
            self.epoch += 1

    def take_step(self, used: Used) -> None:
        """Draws a batch and makes a step of it, which need not be committed yet."""
        found = next(self._batches, None)
        if found is None:
            self.over = True
            return
        self.step += 1
        self._dealer.take_step(self.step)
        self.positions[self.step] = self._loaders[0].position
        used[self.number, self.incarnation, self.step] = found


class _Handing(Counting):
    def __init__(self, dealer: EpochDealer | None) -> None:
        super().__init__()
        self._dealer = dealer

    def hand_out(self, loader: Any, samples: int) -> None:
        if self._dealer is not None:
            self._dealer.hand_out(samples)


class World:
    """A job, whose workers do one thing after another."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.even = self.draw.random() < 0.5
        self.samples = self.draw.randint(20, 200)
        self.dataset = Sized(self.samples) if self.draw.random() < 0.3 else self.samples
        self.book = EpochBook()
        self.here: dict[int, Member] = {}
        self.clocks: Counter[int] = Counter()
        self.newest = 0
        self.used: Used = {}
        self.done: set[int] = set()
        self.kinds: Counter[str] = Counter()
        self._batch_size = self.draw.randint(1, MOST)
        self._incarnations = 0

    def sharing(self) -> dict[int, Sharer]:
        return {n: Sharer(it.incarnation, it.ranks) for n, it in self.here.items() if not it.over}

    def come(self, number: int, ranks: int | None = None, at: Position | None = None) -> None:
        self._incarnations += 1
        batch_size = self._batch_size if self.even else self.draw.randint(1, MOST)
        size = ranks or self.draw.choice((1, 1, 2, 3, 4))
        self.here[number] = Member(self, number, self._incarnations, size, batch_size, at)

    def go(self, number: int, *, leaves: bool) -> None:
        """It leaves with all its steps, or is evicted with those that were committed."""
        member = self.here.pop(number)
        clock = member.step if leaves else member.committed
        self.book.gone(number, member.incarnation, clock)
        self.clocks[number] = clock
        for key in [key for key in self.used if key[:2] == (number, member.incarnation) and key[2] > clock]:
            del self.used[key]
        if not self.here:
            self.book.suspend()

    def go_back(self) -> None:
        """To a cut of now; some come again where they were, with other sizes, and the others never do."""
        for member in self.here.values():
            member.committed = max(member.committed, member.step - self.draw.randint(0, 1))
        clocks = {n: it.committed for n, it in self.here.items()}
        positions = {n: it.positions[it.committed] for n, it in self.here.items()}
        kept = {
            key: found
            for key, found in deepcopy(self.used).items()
            if key[0] not in self.here or key[1] != self.here[key[0]].incarnation or key[2] <= clocks[key[0]]
        }
        saved = json.loads(json.dumps([it.to_json() for it in self.book.capture(clocks)]))
        for _ in range(self.draw.randint(0, 5)):
            self.act(rolls_back=False)
        self.book.restore(epochs_from_json(Field(saved, "shares"), WORKERS))
        self.clocks.update({n: clocks[n] - self.clocks[n] for n in clocks})
        self.used, known = kept, sorted(clocks)
        self.here.clear()
        comes = self.draw.sample(known, self.draw.randint(0, len(known)))
        for number in comes:
            self.come(number, at=positions[number])
        self.book.never_came(set(known) - set(comes))

    def hand_off(self) -> None:
        successor = EpochBook()
        successor.load(json.loads(json.dumps(self.book.dump())))
        self.book = successor

    def act(self, *, rolls_back: bool = True) -> None:
        live = [n for n, it in self.here.items() if not it.over]
        what = self.draw.random()
        if not live or (what < 0.05 and len(self.here) < WORKERS):
            free = [n for n in range(WORKERS) if n not in self.here]
            if free:
                self.kinds["come"] += 1
                self.come(self.draw.choice(free))
        elif what < 0.11:
            self.kinds["go"] += 1
            self.go(self.draw.choice(live), leaves=self.draw.random() < 0.5)
        elif what < 0.14 and rolls_back:
            self.kinds["go back"] += 1
            self.go_back()
        elif what < 0.17:
            self.kinds["hand off"] += 1
            self.hand_off()
        else:
            member = self.here[self.draw.choice(live)]
            member.take_step(self.used)
            if self.draw.random() < 0.8:
                member.committed = member.step

    def run(self) -> None:
        for number in self.draw.sample(range(WORKERS), self.draw.randint(1, WORKERS)):
            self.come(number)
        for _ in range(self.draw.randint(20, 250)):
            self.act()
        for number in list(self.here):
            self.go(number, leaves=True)
        self.newest = EPOCHS - 1
        self.come(0, ranks=1)  # who takes all that is left
        while not self.here[0].over:
            self.here[0].take_step(self.used)


def test_whoever_comes_and_goes_with_whatever_size_and_batches_every_sample_is_used_once():
    """Of each epoch that was begun; a worker of one rank takes what is left over in the end."""
    kinds: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        kinds += world.kinds
        found: defaultdict[int, list[int]] = defaultdict(list)
        for epoch, samples in world.used.values():
            found[epoch] += samples
        assert found
        for epoch, samples in found.items():
            assert sorted(samples) == list(range(world.samples)), (seed, epoch)
        uses = world.book.uses({0: world.here[0].step}, EPOCHS)
        assert {(use.samples, use.used) for use in uses} == {(world.samples, world.samples)}, seed
    assert min(kinds[kind] for kind in ("come", "go", "go back", "hand off")) > SEEDS, kinds
