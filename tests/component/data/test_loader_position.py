"""A loader says where it is, and another one goes on there in the same order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from torch.utils.data import Dataset

import ps_worker as ps
from ps_wire.errors import UsageError
from ps_wire.process.ranks import Ranks
from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.loader import Loader, whole_share
from ps_worker.data.position import Position
from tests.component.loaders import Alone, Sized, Stream, epoch_of, made
from tests.component.service import Cluster, run_workers

KINDS: list[Any] = [pytest.param(40, id="map-style"), pytest.param(Stream(40), id="iterable")]


def of(samples: Any, **given: Any) -> Loader:
    return made(samples, 1, 2, batch_size=6, **given)


@pytest.mark.parametrize("samples", KINDS)
@pytest.mark.parametrize("even", [True, False])
def test_a_run_goes_on_with_the_batch_after(samples: Any, even: bool):
    """From every position of two epochs; it sees what an uninterrupted run sees."""
    whole = of(samples, even=even)
    states, batches = [whole.state_dict()], []
    for _ in range(2):
        for batch in whole:
            batches.append(batch.tolist())
            states.append(whole.state_dict())
    for done, state in enumerate(states):
        resumed = of(samples, even=even)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest = []
        while resumed.epoch < 2:
            rest += epoch_of(resumed)
        assert rest == batches[done:]


@pytest.mark.parametrize("samples", KINDS)
def test_a_position_is_of_what_was_handed_out_last(samples: Any):
    loader = of(samples)

    def position() -> tuple[Any, Any]:
        state = loader.state_dict()
        return state["epoch"], state["batches"]

    seen = [position()]
    seen += [position() for _ in itertools.islice(loader, 2)]
    list(loader)
    seen.append(position())
    assert seen == [(0, 0), (0, 1), (0, 2), (2, 0)]


def test_samples_before_the_position_are_not_read_again():
    read: list[int] = []

    class Reading(Dataset[int]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    loader = made(Reading(), batch_size=5)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "batches": 3})
    (last,) = epoch_of(loader)
    assert read == last
    whole = made(20, batch_size=5)
    whole.epoch = 3
    assert epoch_of(whole)[3] == last


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": 41}, "with num_samples=40, this one has num_samples=41"),
        ({"num_workers": 3}, "with num_workers=2, this one has num_workers=3"),
        ({"batch_size": 7}, "with batch_size=6, this one has batch_size=7"),
        ({"seed": 1}, "with seed=0, this one has seed=1"),
        ({"shuffle": False}, "with shuffle=True, this one has shuffle=False"),
        ({"drop_last": True}, "with drop_last=False, this one has drop_last=True"),
        ({"even": False}, "with even=True, this one has even=False .BSP deals evenly"),
    ],
)
def test_a_state_of_another_loader_is_a_named_error(change: dict[str, Any], text: str):
    state = of(40).state_dict()
    values = {"samples": 40, "rank": 0, "num_workers": 2, "batch_size": 6} | change
    other = made(**values)
    with pytest.raises(UsageError, match=text):
        other.load_state_dict(state)
    assert other.state_dict()["batches"] == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batches": 8}, "8 batches into an epoch of at most 7"),
        ({"batches": -1}, "epoch 0, batch -1"),
        ({"epoch": None}, "epoch None"),
    ],
)
def test_a_position_that_cannot_be_is_a_named_error(change: dict[str, Any], text: str):
    loader = of(40)
    with pytest.raises(UsageError, match=text):
        loader.load_state_dict(loader.state_dict() | change)


def test_what_is_no_state_is_a_named_error():
    with pytest.raises(UsageError, match="no 'epoch'"):
        of(40).load_state_dict({})


def test_a_new_iteration_ends_the_one_before():
    loader = of(40)
    first = iter(loader)
    next(first)
    list(loader)
    with pytest.raises(UsageError, match="make a second loader"):
        next(first)
    assert loader.state_dict()["epoch"] == 2


def test_epochs_are_numbered_and_inside_the_loop_the_order_is_that_of_the_epoch(cluster: Cluster):
    """A run that goes on at epoch 2 has the orders of one that was never interrupted."""
    orders: dict[int, dict[int, list[list[int]]]] = {}

    def whole(worker: ps.Worker) -> None:
        loader, evaluated = (worker.loader(range(40), batch_size=6) for _ in range(2))
        found = orders[worker.rank] = {epoch: epoch_of(loader) for epoch in worker.epochs(4)}
        assert list(found) == [0, 1, 2, 3]
        assert len({str(order) for order in found.values()}) == 4
        assert epoch_of(evaluated) == found[0]  # outside of the loop it counts its own

    def goes_on(worker: ps.Worker) -> None:
        loader = worker.loader(range(40), batch_size=6)
        for epoch in worker.epochs(4, start=2):
            assert epoch_of(loader) == orders[worker.rank][epoch]
            assert epoch_of(loader) == orders[worker.rank][epoch]  # twice in one epoch: the same
        assert loader.epoch == 4
        assert list(worker.epochs(2, start=3)) == []
        for count, start in ((-1, 0), (1, -1)):
            with pytest.raises(UsageError, match="must be >= 0"):
                worker.epochs(count, start=start)

    run_workers(cluster, whole)
    run_workers(cluster, goes_on)


def test_a_position_inside_an_epoch_belongs_to_that_epoch_of_the_loop(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        def loader() -> Loader:
            return worker.loader(range(40), batch_size=6)

        whole = loader()
        expected = [epoch_of(whole) for _ in range(3)]
        state = {**loader().state_dict(), "epoch": 1, "batches": 2}
        resumed = loader()
        resumed.load_state_dict(state)
        assert [epoch_of(resumed) for _ in worker.epochs(3, start=1)] == [expected[1][2:], expected[2]]

    def misplaces(worker: ps.Worker) -> None:
        first, misplaced = (worker.loader(range(40), batch_size=6) for _ in range(2))
        state = {**misplaced.state_dict(), "epoch": 1, "batches": 2}
        misplaced.load_state_dict(state)
        for _ in worker.epochs(1):
            with pytest.raises(UsageError, match=r"inside epoch 1, worker.epochs is at 0.*start=1"):
                list(misplaced)
            misplaced.epoch = 1
            assert epoch_of(misplaced) == epoch_of(first)

    run_workers(cluster, body)
    run_workers(cluster, misplaces)


def test_after_the_last_batch_the_position_is_in_the_next_epoch():
    """Lightning counts batches, asks for none after the last one, and then writes its checkpoint."""
    loader = of(40)
    list(itertools.islice(loader, len(loader)))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 0)


def test_a_framework_says_which_epoch_begins_and_a_position_inside_it_stays():
    state = of(40).state_dict() | {"epoch": 2, "batches": 3}
    orders = [epoch_of(loader) for loader in [of(40)] for _ in range(3)]
    resumed = of(40)
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert epoch_of(resumed) == orders[2][3:]
    resumed.set_epoch(1)
    assert epoch_of(resumed) == orders[1]


@pytest.mark.parametrize("samples", KINDS)
def test_from_every_position_an_iteration_that_is_under_way_goes_on_there(samples: Any):
    """As a rollback wants it: inside the epoch in the same loop, to another epoch with the loop's next."""
    whole = of(samples)
    positions, batches = [], []
    for _ in range(2):
        positions.append(whole.position)
        for batch in whole:
            batches.append(batch.tolist())
            positions.append(whole.position)
        positions.pop()
    for done, position in enumerate(positions):
        moved = of(samples)
        moved.epoch = position.epoch
        iteration = iter(moved)
        next(iteration)
        moved.position = Position.from_numbers(position.as_numbers())
        rest = [batch.tolist() for batch in iteration]
        while moved.epoch < 2:
            rest += epoch_of(moved)
        assert rest == batches[done:]
    moved = of(samples)
    for batch in moved:
        if batch.tolist() == batches[0]:
            moved.position = Position(epoch=1, batches=1)
    assert epoch_of(moved) == batches[len(batches) // 2 + 1 :]


@pytest.mark.parametrize("own", [False, True], ids=["of another", "its own"])
@pytest.mark.parametrize("samples", KINDS)
def test_a_position_is_none_in_what_was_left_over(samples: Any, own: bool):
    """One that comes late has no share of the epoch; of its own rest the job knows what is used."""

    class Late(Alone):
        def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
            found = super().deal(epoch, begins=begins)
            return None if found is None else replace(found, own=own, left_over=True)

        def skip(self, first: int) -> None:
            raise AssertionError(first)

    share = EpochPiece(epoch=0, place=1, count=2)
    late = of(samples, dealer=Late(share))
    late.load_state_dict({**of(samples).state_dict(), "batches": 2})
    assert epoch_of(late) == epoch_of(of(samples))


@pytest.mark.parametrize("samples", KINDS)
def test_where_a_share_has_begun_further_on_a_position_skips_nothing(samples: Any):
    """The job goes on from its snapshot, and so does the script, at the same place."""
    told = []

    class Knowing(Alone):
        def skip(self, first: int) -> None:
            told.append(first)

    for first, expected in ((12, []), (6, [12])):
        told.clear()
        loader = of(samples, even=False, dealer=Knowing(EpochPiece(epoch=0, place=1, count=2, first=first)))
        loader.load_state_dict({**loader.state_dict(), "batches": 2})
        assert epoch_of(loader) == epoch_of(of(samples, even=False))[2:]
        assert told == expected


@pytest.mark.parametrize("samples", KINDS)
@pytest.mark.parametrize(("epoch", "own", "kept"), [(1, True, 2), (1, False, 0), (0, True, 0)])
def test_where_one_was_in_anothers_share_is_no_place_in_its_own(
    samples: Any, epoch: int, own: bool, kept: int
):
    """It took steps again in that share, say, and had not begun with its own when its job went back."""
    whole = of(samples, even=False)
    expected = [epoch_of(whole) for _ in range(2)][1]
    share = EpochPiece(epoch=epoch, place=0, count=2, own=own)
    loader = of(samples, even=False)
    loader.position = Position(epoch=1, offset=12, batches=2, share=share)
    assert epoch_of(loader) == expected[kept:]


@pytest.mark.parametrize("length", [16, 17, 18, 19, 21])
def test_the_state_at_the_end_of_a_stream_is_the_end_for_all_workers(length: int):
    """Its last batch may be smaller than the others, or larger: how many there were, counts."""
    for rank in range(2):
        loader = made(Stream(length), rank, 2, batch_size=4)
        batches = list(itertools.islice(loader, len(epoch_of(made(Stream(length), rank, 2, batch_size=4)))))
        state = loader.state_dict()
        assert (state["epoch"], state["batches"]) == (0, len(batches))
        for other in range(2):
            resumed = made(Stream(length), other, 2, batch_size=4)
            resumed.load_state_dict(state)
            assert epoch_of(resumed) == []


@pytest.mark.parametrize("samples", [48, Sized(48)], ids=["map-style", "iterable"])
def test_among_groups_of_other_sizes_the_length_is_what_was_dealt(samples: Any):
    """Before it is not known: a state further on than the guess is taken."""
    for place, size in ((0, 1), (1, 3)):
        piece = EpochPiece(epoch=0, place=place, ranks=size, count=4)
        ranks = Ranks(rank=0, size=size)

        def loader(piece: EpochPiece = piece, ranks: Ranks = ranks) -> Loader:
            return made(samples, min(piece.place, 1), 2, batch_size=2, ranks=ranks, dealer=Alone(piece))

        first = loader()
        states = [first.state_dict() for _ in first]
        assert [(state["epoch"], state["batches"]) for state in states] == [
            *((0, n) for n in range(1, 6)),
            (1, 0),
        ]
        assert len(first) == 6
        resumed = loader()
        resumed.load_state_dict(states[4])
        assert len(epoch_of(resumed)) == 1


def test_where_fewer_share_an_epoch_than_the_job_may_have_workers_their_states_are_taken():
    """A job of a range: this worker was alone in that epoch."""

    def loader() -> Loader:
        return made(64, 0, 4, batch_size=4, dealer=Alone(EpochPiece(epoch=0, place=0, count=1)))

    first = loader()
    whole = epoch_of(loader())
    list(itertools.islice(first, 10))
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert epoch_of(resumed) == whole[10:]


def test_steps_that_are_taken_again_are_no_batches_that_were_passed_over():
    """It was evicted while it asked for its share, a step behind the job."""

    class Behind(Alone):
        behind = 1

        def replay(self, epoch: int) -> EpochPiece | None:
            return replace(self._share, epoch=epoch, own=False) if self.behind and self.asked else None

        def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
            self.asked = True
            return super().deal(epoch, begins=begins)

        asked = False

    dealer = Behind(EpochPiece(epoch=0, place=0, count=2))
    loader = made(Stream(9), 0, 2, batch_size=2, dealer=dealer)
    loader.load_state_dict({**loader.state_dict(), "batches": 2})
    found = []
    for batch in loader:
        found.append(batch.tolist())
        dealer.behind = 0
    assert found == [[0, 2]]  # taken again; of its share nothing is left: [4, 6, 8] was its second batch


def test_the_share_of_a_group_among_workers_alone_is_one_that_there_are_samples_for():
    """What it goes through again before it has been dealt any: each rank has a sample of each batch."""
    ranks = Ranks(rank=0, size=8)
    assert whole_share(1, 4, ranks, 12) == EpochPiece(epoch=0, place=1, ranks=8, count=11)
    assert whole_share(1, 4, ranks, 32) == EpochPiece(epoch=0, place=8, ranks=8, count=32)
    assert whole_share(1, 4, ranks, None) == EpochPiece(epoch=0, place=8, ranks=8, count=32)
