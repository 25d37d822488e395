"""The batches of a script that takes steps again: what it gets again, and when it asks for what is left."""

from __future__ import annotations

import pytest

from ps_wire.spec.epochs import EpochPiece
from ps_worker.data.loader import Loader
from tests.component.loaders import made

SHARE = 3  # batches of a worker, of two samples each; there are two workers


class Behind:
    """A `Dealer` of a script that is some steps behind; each epoch has one piece for it, or none."""

    void = False

    def __init__(self, behind: int, pieces: dict[int, EpochPiece], *, newest: int = -1) -> None:
        self.behind = behind
        self.newest = False
        self._newest = newest
        self.asked: list[int] = []
        self._pieces = pieces

    def replay(self, epoch: int) -> EpochPiece | None:
        return EpochPiece(epoch=epoch, place=0, count=2) if self.behind else None

    def deal(self, epoch: int, *, begins: bool) -> EpochPiece | None:
        self.asked.append(epoch)
        self.newest = epoch == self._newest
        return self._pieces.pop(epoch, None)

    def skip(self, first: int) -> None:
        raise AssertionError

    def leave(self, piece: EpochPiece) -> None:
        """Another worker goes, and this is what it had."""
        self._pieces[piece.epoch] = piece


def loader_of(dealer: Behind, batch_size: int = 2) -> Loader:
    return made(
        2 * 2 * SHARE, num_workers=2, batch_size=batch_size, shuffle=False, drop_last=True, dealer=dealer
    )


def train(loader: Loader, dealer: Behind) -> tuple[list[list[int]], list[list[int]]]:
    """Steps on each batch of an epoch: what it got again, and what counts."""
    again: list[list[int]] = []
    counts: list[list[int]] = []
    for batch in loader:
        (again if dealer.behind else counts).append(batch.tolist())
        dealer.behind -= dealer.behind > 0
        assert len(again) + len(counts) < 20
    return again, counts


def rest_of(epoch: int) -> EpochPiece:
    return EpochPiece(epoch=epoch, place=1, count=2, first=2)


@pytest.mark.parametrize("behind", [SHARE - 1, SHARE, SHARE + 2, 2 * SHARE + 1])
def test_while_there_is_more_of_an_epoch_all_steps_behind_are_taken_in_it(behind: int) -> None:
    """Others' rests made more steps of it than a share has batches; and what is left over is handed out."""
    dealer = Behind(behind, {4: rest_of(4)})
    loader = loader_of(dealer)
    loader.epoch = 4
    again, counts = train(loader, dealer)
    assert again == ([[0, 1], [2, 3], [4, 5]] * 3)[:behind]
    assert counts == [[8, 9], [10, 11]]
    assert dealer.behind == 0


def test_where_nothing_more_is_there_steps_go_on_in_the_next_epoch() -> None:
    dealer = Behind(SHARE + 2, {5: rest_of(5)})
    loader = loader_of(dealer)
    loader.epoch = 4
    assert train(loader, dealer) == ([[0, 1], [2, 3], [4, 5]], [])
    assert (dealer.behind, dealer.asked, loader.epoch) == (2, [4], 5)
    assert train(loader, dealer) == ([[0, 1], [2, 3]], [[8, 9], [10, 11]])


@pytest.mark.parametrize("left_meanwhile", [False, True])
def test_where_nothing_more_is_there_all_steps_are_taken_in_an_epoch_that_nobody_is_past(
    left_meanwhile: bool,
) -> None:
    """It may be the last one: no next one comes in which to go on. What others leave meanwhile it gets."""
    dealer = Behind(2 * SHARE + 1, {}, newest=4)
    loader = loader_of(dealer)
    loader.epoch = 4
    found = []
    for batch in loader:
        found.append(batch.tolist())
        dealer.behind -= dealer.behind > 0
        if left_meanwhile and not dealer.behind and dealer.asked == [4]:
            dealer.leave(rest_of(4))
        assert len(found) < 20
    again = ([[0, 1], [2, 3], [4, 5]] * 3)[: 2 * SHARE + 1]
    assert found == again + [[8, 9], [10, 11]] * left_meanwhile
    assert dealer.behind == 0
    assert dealer.asked == [4, 4] + [4] * left_meanwhile


def test_a_loader_of_which_no_steps_are_made_gives_its_share_once_and_asks_for_none() -> None:
    """It validates: nothing of it is left over, and the script stays behind."""
    dealer = Behind(2, {0: rest_of(0)})
    assert [batch.tolist() for batch in loader_of(dealer)] == [[0, 1], [2, 3], [4, 5]]
    assert dealer.asked == []


def test_a_share_without_a_batch_is_not_gone_through_for_ever() -> None:
    dealer = Behind(2, {0: rest_of(0)})
    assert list(loader_of(dealer, batch_size=2 * SHARE + 1)) == []
    assert dealer.behind == 2


def test_a_script_that_is_sent_to_another_epoch_meanwhile_asks_for_nothing_of_this_one() -> None:
    dealer = Behind(2, {0: rest_of(0)})
    loader = loader_of(dealer)
    found = []
    for batch in loader:
        found.append(batch.tolist())
        dealer.behind = 0
        loader.leave()
    assert found == [[0, 1]]
    assert dealer.asked == []
