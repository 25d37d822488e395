"""Who hands out which samples of an epoch, and what becomes of them when somebody goes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from ps_server.coordinator.epochs import epoch_book
from ps_server.coordinator.epochs.epoch import DealtEpoch
from ps_server.coordinator.epochs.epoch_book import ANY, EpochBook, Sharer
from ps_server.coordinator.epochs.piece_usage import PieceUsage
from ps_server.coordinator.jobs.member import MemberState
from ps_wire.snapshot.json_fields import MAX_SAMPLES, Field
from ps_wire.snapshot.saved_epoch import MAX_EPOCHS, MAX_PLACES, SavedEpoch, epochs_from_json
from ps_wire.spec.epochs import EpochPiece, PieceMark
from tests.unit.ps_server.desk import Desk

TWO = {0: 1, 1: 1}


class Book(EpochBook):
    """A book that is told of sharers by worker -> incarnation, as of one rank each."""

    def ask(self, *given: Any, **more: Any) -> EpochPiece | None:
        """Gives pieces without the words on whose share they are of, and who had them."""
        *asked, sharing = given
        sharers = {worker: it if isinstance(it, Sharer) else Sharer(it) for worker, it in sharing.items()}
        found = super().ask(*asked, sharers, **more)
        return None if found is None else replace(found, own=True, left_over=False)


def piece(epoch: int, place: int, count: int = 2, first: int = 0) -> EpochPiece:
    """From a batch of 10 samples on."""
    return EpochPiece(epoch=epoch, place=place, count=count, first=10 * first)


def at(step: int, batches: int, pace: int = 1) -> PieceMark:
    """Of batches of 10 samples."""
    return PieceMark(step=step, samples=10 * batches, pace=10 * pace)


def begun(workers: dict[int, int] = TWO, epoch: int = 0) -> Book:
    """All have begun an epoch of 200 samples, and taken their first step."""
    shares = Book()
    for worker, incarnation in workers.items():
        shares.ask(0, epoch, worker, incarnation, workers, samples=200, mark=at(0, 0))
        shares.mark(0, worker, incarnation, at(1, 1))
    return shares


def test_the_first_who_asks_deals_an_epoch_for_all():
    """Whoever comes or goes later changes the epochs after it."""
    shares = Book()
    assert shares.ask(0, 0, 1, 1, TWO) == piece(0, 1)
    assert shares.ask(0, 0, 0, 1, {0: 1, 2: 1}) == piece(0, 0)
    assert shares.ask(0, 0, 2, 1, {0: 1, 2: 1}) is None
    assert shares.ask(0, 1, 2, 1, {0: 1, 2: 1}) == piece(1, 1)
    assert shares.ask(1, 0, 0, 1, {0: 1}) == piece(0, 0, 1)


def test_an_epoch_that_is_begun_again_has_the_same_share_and_is_counted_once():
    shares = begun()
    assert shares.ask(0, 0, 0, 1, TWO, mark=at(10, 10)) == piece(0, 0)
    assert [use.used for use in shares.uses({}, 1)] == [110]
    shares.mark(0, 0, 1, at(12, 2))
    assert [use.used for use in shares.uses({}, 1)] == [110]


def test_the_newest_epoch_is_that_which_was_begun_last_of_the_loaders_that_train():
    """Steps that were taken are of no later one; a loader to validate on has none."""
    shares = begun()
    assert shares.is_newest(0, 0)
    shares.ask(1, 0, 0, 1, TWO)
    assert shares.is_newest(0, 0)
    assert not shares.is_newest(1, 0)
    shares.mark(1, 0, 1, at(2, 1))
    assert not shares.is_newest(0, 0)
    shares.ask(0, 1, 0, 1, TWO, mark=at(2, 1))
    assert not shares.is_newest(0, 0)
    assert shares.is_newest(0, 1)
    assert not Book().is_newest(0, 0)


def test_one_who_is_awaited_has_its_share_whenever_it_comes():
    """Under the first incarnation that asks."""
    shares = Book()
    shares.ask(0, 0, 0, 1, {0: 1, 1: ANY})
    assert shares.ask(0, 0, 1, 3, {}) == piece(0, 1)
    assert shares.ask(0, 0, 1, 4, {}) is None


@pytest.mark.parametrize("evicted", [True, False])
def test_what_a_worker_has_not_used_goes_to_who_next_comes_to_the_end_of_its_share(evicted: bool):
    """Used is what went into committed steps: 4 batches, though it had handed out 6."""
    shares = begun()
    shares.gone(1, 1, 4)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10)) == piece(0, 1, first=4)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(16, 6)) is None
    (use,) = shares.over()
    assert (use.samples, use.used, use.handed_on, use.unused) == (200, 200, 60, 0)


@pytest.mark.parametrize("goes", [Desk.leave, Desk.finish])
@pytest.mark.parametrize("comes", [True, False])
def test_what_one_used_stays_used_where_its_lease_ends_before_shards_have_removed_it(goes, comes: bool):
    """And where its next process comes before that, too."""
    desk = Desk(2)
    _, one = desk.start()
    shares = desk.job.epochs = begun()
    desk.held, one.steps = True, 4  # the shards are away
    goes(desk, one)
    desk.lose(one)
    if comes:
        desk.join(1)
    desk.settle()
    assert [order.WhichOneof("kind") for order in desk.orders][4:7] == ["remove", "fence", "evict"]
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10)) == piece(0, 1, first=4)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(16, 6)) is None


def test_a_share_that_was_never_begun_is_left_over_whole():
    shares = Book()
    shares.ask(0, 0, 0, 1, TWO)
    shares.gone(1, 1, 0)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10)) == piece(0, 1)


def test_what_is_left_over_goes_to_a_later_epoch_only_where_nobody_is_left_in_its_own():
    three = {0: 1, 1: 1, 2: 1}
    shares = begun(three)
    assert shares.ask(0, 0, 0, 1, three, begins=False, mark=at(10, 10)) is None
    assert shares.ask(0, 1, 0, 1, three, mark=at(10, 10)) == piece(1, 0, 3)
    shares.gone(1, 1, 4)
    assert shares.ask(0, 1, 0, 1, three, begins=False, mark=at(20, 10)) == piece(1, 1, 3)  # it never began it
    assert shares.ask(0, 1, 0, 1, three, begins=False, mark=at(30, 10)) is None  # worker 2 is in epoch 0 yet
    assert shares.ask(0, 1, 2, 1, three, mark=at(10, 10)) == piece(1, 2, 3)
    assert shares.ask(0, 1, 0, 1, three, begins=False, mark=at(30, 10)) == piece(0, 1, 3, first=4)


def test_a_piece_that_is_left_over_is_not_lost_with_the_answer_that_brought_it():
    """The same request gets the same answer, also of a successor; another one, or incarnation, gets on."""
    shares = begun({0: 1, 1: 1, 2: 1})
    shares.gone(1, 1, 4)
    shares.gone(2, 1, 6)

    def ask(dealing: EpochBook, request: int, incarnation: int = 1) -> EpochPiece | None:
        mark = at(10, 10)
        return dealing.once(
            *(0, 0, incarnation, request),
            lambda: dealing.ask(0, 0, 0, incarnation, {}, begins=False, mark=mark),
        )

    assert ask(shares, 2) == ask(shares, 2) == piece(0, 1, 3, first=4)
    successor = Book()
    successor.load(json.loads(json.dumps(shares.dump())))
    assert ask(successor, 2) == piece(0, 1, 3, first=4)
    assert ask(successor, 3) == piece(0, 2, 3, first=6)
    assert ask(successor, 4) is None


def test_the_start_of_a_share_is_not_lost_with_the_answer_that_brought_it():
    """After a rollback an epoch goes on where it was; asked again, it would be another iteration."""
    shares = Book()
    shares.restore(begun().capture({0: 1, 1: 1}))
    ask = lambda: shares.once(0, 0, 9, 1, lambda: shares.ask(0, 0, 0, 9, {}))  # noqa: E731
    assert ask() == ask() == piece(0, 0, first=1)


def test_answers_of_who_has_gone_are_kept_no_more():
    """Numbers of workers and loaders are many; those of who has come under the same number stay."""
    shares = Book()
    for worker, incarnation in ((0, 9), (1, 9), (2, 10)):
        shares.once(0, worker, incarnation, 1, lambda: None)
    shares.gone(0, 9, 0)
    shares.finished(1, 9, 0)
    shares.gone(2, 9, 0)
    assert [answer[:3] for answer in shares.dump()["answers"]] == [[0, 2, 10]]


def test_who_came_after_an_epoch_was_dealt_gets_what_is_left_over():
    """So a worker that was evicted goes on where it was, if nobody was quicker."""
    shares = begun()
    shares.gone(1, 1, 4)
    assert shares.ask(0, 0, 1, 2, TWO) == piece(0, 1, first=4)
    assert shares.ask(0, 0, 2, 1, TWO) is None


@pytest.mark.parametrize("owner", [1, ANY], ids=["it is here", "it is awaited"])
def test_who_comes_and_begins_with_a_later_epoch_leaves_its_shares_of_those_before_over(owner: int):
    """Its script goes on where another one was, who had begun the next epoch when the two met."""
    shares = Book()
    for epoch in range(3):
        assert shares.ask(0, epoch, 0, 1, {0: 1, 1: owner}, mark=at(4 * epoch, 4)) == piece(epoch, 0)
    assert shares.ask(0, 2, 1, 1, TWO) == piece(2, 1)
    assert shares.ask(0, 2, 0, 1, TWO, begins=False, mark=at(12, 4)) == piece(0, 1)
    assert shares.ask(0, 2, 1, 1, TWO, begins=False, mark=at(4, 4)) == piece(1, 1)
    assert shares.ask(0, 2, 0, 1, TWO, begins=False, mark=at(16, 4)) is None


def test_who_validates_has_its_share_of_an_epoch_that_it_passed_over():
    """A script goes on in a later epoch for a while when its job has gone back, then comes to that one."""
    before, shares = Book(), Book()
    before.ask(0, 1, 0, 1, {0: 1})
    shares.restore(before.capture({0: 8}))
    for epoch in (2, 1, 2):
        assert shares.ask(0, epoch, 0, 2, {0: 2}) == piece(epoch, 0, count=1)


def test_who_passes_over_an_epoch_in_mid_run_leaves_its_share_unused():
    """Its script iterates the loader in every other epoch: nobody is to train on what it leaves out."""
    shares = begun()
    shares.ask(0, 1, 0, 1, TWO, mark=at(10, 10))
    assert shares.ask(0, 2, 1, 1, TWO, mark=at(10, 10)) == piece(2, 1)
    assert shares.ask(0, 2, 0, 1, TWO, mark=at(20, 10)) == piece(2, 0)
    assert shares.ask(0, 2, 0, 1, TWO, begins=False, mark=at(30, 10)) is None


def test_the_share_of_one_who_is_awaited_goes_to_who_comes_to_the_end_of_its_own():
    """All had left, and not all come again. One who does come later has a share of the next epoch."""
    shares, awaited = Book(), {0: 2, 1: ANY}
    assert shares.ask(0, 0, 0, 2, awaited, samples=200, mark=at(0, 0)) == piece(0, 0)
    assert shares.ask(0, 0, 0, 2, awaited, begins=False, mark=at(10, 10)) == piece(0, 1)
    assert shares.ask(0, 0, 1, 2, {0: 2, 1: 2}) is None
    assert shares.ask(0, 1, 0, 2, {0: 2, 1: 2}, mark=at(20, 10)) == piece(1, 0)
    assert [(use.epoch, use.used, use.unused) for use in shares.over()] == [(0, 200, 0)]
    assert shares.ask(0, 1, 1, 2, {0: 2, 1: 2}) == piece(1, 1)


def test_the_share_of_one_who_is_awaited_is_kept_where_no_step_is_made():
    """Who is there validates, or has no table: it is done with its own share, and takes no other."""
    shares, awaited = Book(), {0: 1, 1: ANY}
    assert shares.ask(0, 0, 0, 1, awaited) == piece(0, 0)
    assert shares.ask(0, 0, 0, 1, awaited, begins=False) is None
    assert shares.ask(0, 0, 1, 1, TWO) == piece(0, 1)


def test_who_finishes_early_leaves_the_rest_of_its_share_unused():
    shares = begun()
    shares.finished(1, 1, 4)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10)) is None
    (use,) = shares.over()
    assert (use.used, use.unused) == (140, 60)


def test_of_a_loader_that_no_step_was_made_of_nothing_is_left_over():
    """It is there to validate."""
    shares = Book()
    shares.ask(0, 0, 0, 1, TWO)
    shares.ask(0, 0, 1, 1, TWO)
    shares.gone(1, 1, 50)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(50, 0, 0)) is None
    assert shares.over() == []


def test_who_is_alone_and_comes_again_before_its_first_step_has_its_share_again():
    """It has joined before its eviction was carried out, so the job was never suspended."""
    shares = Book()
    shares.ask(0, 0, 0, 1, {0: 1})
    shares.gone(0, 1, 0)
    assert shares.over() == []
    assert shares.ask(0, 0, 0, 2, {0: 2}, begins=False) == piece(0, 0, count=1)


def test_who_comes_again_before_the_first_step_of_all_has_its_own_share_again():
    """Nobody knows yet which loaders are there to train on: it goes on in the iteration that it is in."""
    shares = Book()
    for worker in TWO:
        shares.ask(0, 0, worker, 1, TWO)
    shares.gone(1, 1, 0)
    assert shares.over() == []
    again = {0: 1, 1: 2}
    assert shares.ask(0, 0, 0, 1, again, begins=False) is None
    assert shares.ask(0, 0, 1, 2, again, begins=False) == piece(0, 1)
    assert shares.ask(0, 0, 1, 2, again, begins=False) is None


def test_what_was_handed_out_but_not_committed_is_left_over_though_its_share_was_at_its_end():
    """The last push was under way when its worker died, in the next epoch already."""
    shares = begun()
    assert shares.ask(0, 1, 1, 1, TWO, mark=at(10, 10)) == piece(1, 1)
    shares.gone(1, 1, 9)
    shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10))
    found = shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(11, 1))
    assert found is None
    assert {use.epoch: use.used for use in shares.over()} == {0: 200}


def test_what_goes_into_the_step_after_the_end_is_used_with_that_step():
    """An accumulation ends after the loop; a prefetcher knows of the end before its last step."""
    for clock, used in ((10, 200), (9, 180)):
        shares = begun()
        for worker in TWO:
            ended = shares.ask(0, 0, worker, 1, TWO, begins=False, mark=at(9, 9), rest=at(10, 10))
            assert ended is None
        for worker in TWO:
            shares.finished(worker, 1, clock)
        assert [use.used for use in shares.uses({}, 1)] == [used]


def test_what_nobody_takes_is_said_to_be_unused_when_the_job_ends():
    shares = begun()
    shares.gone(1, 1, 4)
    shares.finished(0, 1, 10)
    assert shares.over() == []
    shares.end()
    (use,) = shares.over()
    assert (use.used, use.unused, use.over) == (140, 60, True)


def test_what_all_left_when_they_were_gone_is_for_who_comes_again():
    """In the middle of its iteration, as one that was paused; what was over by then stays so."""
    shares = begun()
    shares.ask(0, 1, 0, 1, TWO, samples=200, mark=at(10, 10))
    shares.ask(0, 1, 1, 1, TWO, samples=200, mark=at(10, 10))
    shares.mark(0, 0, 1, at(12, 2))
    shares.gone(0, 1, 13)
    shares.gone(1, 1, 10)
    shares.suspend()
    assert [(use.epoch, use.used) for use in shares.over()] == [(0, 200)]
    assert shares.ask(0, 1, 0, 2, {0: 2}, begins=False, mark=at(0, 0)) == piece(1, 0, first=3)
    assert shares.ask(0, 1, 0, 2, {0: 2}, begins=False, mark=at(7, 7)) == piece(1, 1)
    assert shares.ask(0, 1, 0, 2, {0: 2}, begins=False, mark=at(17, 10)) is None
    assert [(use.epoch, use.used, use.unused) for use in shares.over()] == [(1, 200, 0)]
    assert shares.ask(0, 0, 0, 2, {0: 2}) is None


def test_who_comes_again_to_a_job_that_all_have_left_gets_the_rest_of_its_own_share_first():
    shares = begun()
    shares.gone(0, 1, 3)
    shares.gone(1, 1, 5)
    shares.suspend()
    assert shares.ask(0, 0, 1, 2, {1: 2}, mark=at(5, 0)) == piece(0, 1, first=5)
    assert shares.ask(0, 0, 0, 2, {0: 2, 1: 2}, mark=at(5, 0)) == piece(0, 0, first=3)


def test_a_share_of_which_no_step_was_made_is_dealt_again_when_all_are_gone():
    """Nobody has made any step of anything yet: a first one that takes longer than a lease."""
    shares = Book()
    shares.ask(0, 0, 0, 1, {0: 1}, samples=50, mark=at(0, 0))
    shares.gone(0, 1, 0)
    shares.suspend()
    assert shares.ask(0, 0, 0, 2, {0: 2}, begins=False, mark=at(0, 0)) == piece(0, 0, 1)


def test_who_does_not_come_back_after_a_rollback_leaves_its_share_over():
    """It is evicted under the incarnation that it had; if it does come, it has what nobody has taken."""
    shares = begun()
    captured = through_json(shares, {0: 2, 1: 2})
    restored = Book()
    restored.restore(captured)
    assert restored.ask(0, 0, 0, 9, {0: 9}, samples=200, mark=at(2, 0)) == piece(0, 0, first=2)
    restored.gone(1, 1, 2)
    assert restored.ask(0, 0, 0, 9, {0: 9}, begins=False, mark=at(10, 8)) == piece(0, 1, first=2)
    assert restored.ask(0, 0, 1, 10, {0: 9}, mark=at(2, 0)) is None
    assert restored.ask(0, 0, 0, 9, {0: 9}, begins=False, mark=at(18, 8)) is None
    assert [(use.used, use.handed_on, use.unused) for use in restored.over()] == [(200, 80, 0)]


def test_the_clock_of_its_pushes_tells_what_a_worker_has_used():
    """Whatever it took in its steps: what it says before each holds up to that step."""
    draw = random.Random(3)
    for _ in range(50):
        sizes = [draw.randint(0, 3) for _ in range(12)]
        dealt = PieceUsage(epoch=0, share=0)
        truth, told = [0], PieceMark(pace=1)
        dealt.mark(told)
        for step, size in enumerate(sizes, start=1):
            truth.append(truth[-1] + size)
            if told.at(step) != truth[-1]:
                told = PieceMark(step=step, samples=truth[-1], pace=size)
                dealt.mark(told)
        assert [dealt.used(step) for step in range(13)] == truth


def test_a_pace_foretells_no_more_than_the_next_mark_says():
    """Where a mark was lost on its way, the one after it is of less than was foretold."""
    dealt = PieceUsage(epoch=0, share=0)
    for mark in (PieceMark(step=0, pace=5), PieceMark(step=10, samples=12, pace=5)):
        dealt.mark(mark)
    assert [dealt.used(step) for step in (1, 2, 3, 9, 10, 11)] == [5, 10, 12, 12, 12, 17]


def test_what_is_captured_goes_on_where_the_cut_was_whoever_has_which_incarnation():
    """One worker had come into the next epoch since, which is void; another had taken what was left over."""
    three = {0: 1, 1: 1, 2: 1}
    shares = begun(three)
    shares.gone(2, 1, 4)
    assert shares.ask(0, 0, 0, 1, three, begins=False, mark=at(10, 10)) == piece(0, 2, 3, first=4)
    shares.mark(0, 0, 1, at(12, 2))
    assert shares.ask(0, 1, 1, 1, TWO, mark=at(13, 13)) == piece(1, 1)
    captured = through_json(shares, {0: 12, 1: 11})
    restored = Book()
    restored.restore(captured)
    assert tuple(restored.capture({})) == captured
    assert [use.used for use in restored.uses({}, 2)] == [100 + 20 + 110 + 40]
    assert restored.ask(0, 0, 1, 9, TWO) == piece(0, 1, 3, first=11)
    assert restored.ask(0, 0, 0, 9, TWO) == piece(0, 2, 3, first=6)
    assert restored.ask(0, 1, 1, 9, {0: 9, 1: 9}, mark=at(13, 2)) == piece(1, 1)


def test_an_epoch_that_was_begun_behind_the_cut_is_dealt_to_who_is_there_when_the_job_goes_on():
    """The other one has gone when it is begun, while the last partitions reach the cut: it comes again."""
    shares = begun()
    shares.ask(1, 0, 0, 1, TWO, mark=at(5, 5))  # of a loader to validate on, before the step of the cut
    shares.gone(1, 1, 4)
    shares.ask(1, 1, 0, 1, {0: 1}, mark=at(6, 0))
    restored = Book()
    restored.restore(through_json(shares, {0: 5, 1: 4}))
    assert restored.ask(1, 1, 1, 8, {0: 7, 1: 8}) == piece(1, 1)
    assert restored.ask(1, 1, 0, 7, {0: 7, 1: 8}) == piece(1, 0)


def test_a_share_that_was_begun_behind_the_cut_is_begun_again_and_one_before_it_is_not():
    """Of a loader that no step is made of, though both have come to its end by now."""
    shares = begun()
    for worker in TWO:
        shares.ask(1, 0, worker, 1, TWO, mark=at(4 + 2 * worker, 4))
        shares.ask(1, 0, worker, 1, TWO, begins=False, mark=at(4 + 2 * worker, 0))
    restored = Book()
    restored.restore(through_json(shares, dict.fromkeys(TWO, 5)))
    assert restored.ask(1, 0, 1, 8, {0: 7, 1: 8}) == piece(0, 1)
    assert restored.ask(1, 0, 0, 7, {0: 7, 1: 8}) is None


def test_an_epoch_is_kept_of_which_one_that_came_again_took_the_rest_behind_the_cut():
    """It had begun its share before, as another incarnation."""
    shares = begun({0: 1})
    shares.gone(0, 1, 4)
    assert shares.ask(0, 0, 0, 2, {0: 2}, begins=False, mark=at(5, 0)) == piece(0, 0, 1, first=4)
    (captured,) = shares.capture({0: 4})
    assert (captured.used, captured.left) == (40, ((0, 40),))


def through_json(shares: EpochBook, clocks: dict[int, int]) -> tuple[SavedEpoch, ...]:
    """What is captured, as a manifest of three workers brings it."""
    text = json.dumps([epoch.to_json() for epoch in shares.capture(clocks)])
    return epochs_from_json(Field(json.loads(text)), 3)


def test_what_is_remembered_of_many_workers_is_bounded():
    """The oldest epochs are forgotten."""
    shares, many = Book(), dict.fromkeys(range(MAX_PLACES // 4), 1)
    for epoch in range(5):
        shares.ask(0, epoch, 0, 1, many)
    assert [entry.epoch for entry in shares.capture({})] == [1, 2, 3, 4]


def test_what_workers_make_up_is_captured_as_a_snapshot_takes_it():
    shares = Book()
    shares.ask(0, 0, 0, 1, TWO, samples=1 << 63)
    shares.skip(0, 0, 1, 1 << 63)
    shares.mark(0, 0, 1, PieceMark(step=1, samples=1 << 63))
    (epoch,) = through_json(shares, {0: 1})
    assert (epoch.used, epoch.starts[0]) == (MAX_SAMPLES, MAX_SAMPLES)


def test_what_is_remembered_is_bounded():
    """The oldest epochs are forgotten."""
    shares = Book()
    for epoch in range(MAX_EPOCHS + 1):
        shares.ask(0, epoch, 0, 1, {0: 1})
    assert shares.ask(0, 1, 1, 1, {1: 1}) is None
    assert shares.ask(0, 0, 1, 1, {1: 1}) == piece(0, 0, 1)


def sharing(desk: Desk) -> list[int]:
    return sorted(desk.job.sharing())


def test_a_job_that_starts_with_all_deals_to_all_until_one_has_gone():
    """One who has not come yet is awaited; one who left, finished or was evicted is not."""
    desk = Desk(4)
    zero = desk.join(0)
    assert sharing(desk) == [0, 1, 2, 3]
    _, one, two, three = zero, *(desk.join(number) for number in (1, 2, 3))
    for member in (zero, one, two, three):
        desk.make(member)
    desk.upload(zero)
    desk.leave(one)
    assert sharing(desk) == [0, 2, 3]
    desk.finish(two)
    assert sharing(desk) == [0, 3]
    desk.lose(three)
    assert sharing(desk) == [0]
    desk.join(1)
    assert sharing(desk) == [0, 1]


def test_who_goes_on_with_a_suspended_job_awaits_the_others():
    """They come again one by one, and share its epochs as at a start."""
    desk = Desk(2)
    members = desk.start()
    desk.leave(*members)
    desk.join(0)
    assert sharing(desk) == [0, 1]


def test_a_range_deals_to_those_who_are_here():
    """Whoever else may come has a part of the next epoch."""
    desk = Desk(8, min_workers=2)
    desk.join(3), desk.join(1)
    assert sharing(desk) == [1, 3]


def test_what_a_worker_that_finishes_has_not_used_stays_unused():
    """It wants no more, and nobody else is given it."""
    desk = Desk(2)
    members = desk.start()
    shares = desk.job.epochs
    for member in members:
        shares.ask(0, 0, member.worker, 1, desk.job.sharing(), mark=at(0, 0))
        shares.mark(0, member.worker, 1, at(1, 1))
    members[1].steps = 6
    desk.finish(members[1])
    assert shares.ask(0, 0, 0, 1, {}, begins=False, mark=at(10, 10)) is None


def test_what_a_worker_leaves_over_is_what_the_shards_had_not_committed():
    """An evicted one's by the verdict's limits, one's that leaves by its own word."""
    desk = Desk(3)
    members = desk.start()
    shares = desk.job.epochs
    for member in members:
        shares.ask(0, 0, member.worker, 1, desk.job.sharing(), mark=at(0, 0))
        shares.mark(0, member.worker, 1, at(1, 1))
    desk.clocks = {0: 4}
    desk.lose(members[1])
    members[2].steps = 6
    desk.leave(members[2])
    found = [shares.ask(0, 0, 0, 1, {}, begins=False, mark=at(10 * n, 10)) for n in (1, 2, 3)]
    expected = [
        replace(piece(0, place, 3, first=first), own=False, left_over=True)
        for place, first in ((1, 4), (2, 6))
    ]
    assert found == [*expected, None]


def test_shares_are_dealt_to_ranks_and_one_that_never_came_is_taken_to_have_as_many_as_who_asks():
    """One that has come and is not admitted yet has said how many it has."""
    desk = Desk(4)
    desk.join(0, ranks=2)
    desk.held = True  # the shards are away
    desk.join(2, ranks=3)
    assert desk.job.sharing(5) == {0: Sharer(1, 2), 1: Sharer(ANY, 5), 2: Sharer(ANY, 3), 3: Sharer(ANY, 5)}


def test_where_samples_are_too_few_for_a_guess_one_that_never_came_is_taken_to_be_alone():
    """Else a job with enough of them would be refused before all are there."""
    desk = Desk(4)
    desk.join(0, ranks=4)
    assert desk.job.sharing(4, 16)[1] == Sharer(ANY, 4)
    assert desk.job.sharing(4, 15)[1] == Sharer(ANY, 1)
    assert desk.job.sharing(4, 0)[1] == Sharer(ANY, 4)
    desk.join(1, ranks=8)
    assert [desk.job.sharing(4, samples)[2].ranks for samples in (20, 19)] == [4, 1]


def test_the_size_of_one_that_is_known_from_a_snapshot_alone_is_a_guess():
    """It trained at the cut, and has not come since: nobody has heard how many ranks it has."""
    desk = Desk(2)
    desk.job._await(1, 30.0)
    assert desk.job.roster.members[1].ranks == 0
    desk.job.roster.members[1].become(MemberState.LOST)
    desk.job._awaited.add(1)
    desk.join(0, ranks=2)
    assert desk.job.sharing(2)[1] == Sharer(ANY, 2)


def test_a_share_lies_behind_those_of_all_ranks_before():
    shares = Book()
    sharing = {2: Sharer(1, 3), 0: Sharer(1, 2), 7: Sharer(1)}
    found = [shares.ask(0, 0, worker, 1, sharing, samples=60) for worker in (7, 2, 0)]
    assert [(it.place, it.ranks, it.count) for it in found if it] == [(5, 1, 6), (2, 3, 6), (0, 2, 6)]
    assert [it.bounds(60) for it in found if it] == [(50, 60), (20, 50), (0, 20)]


def test_a_group_leaves_a_rest_in_which_a_rank_would_have_no_sample_to_smaller_ones():
    """Of 4 samples that one left 3 are too few for 4 ranks; of nothing there is enough for whoever asks."""
    sharing = {0: Sharer(1, 4), 1: Sharer(1), 2: Sharer(1)}
    shares = Book()
    for worker in sharing:
        shares.ask(0, 0, worker, 1, sharing, samples=24)
        shares.mark(0, worker, 1, PieceMark(step=1, samples=1, pace=1))
    shares.gone(1, 1, 1)
    assert shares.ask(0, 0, 0, 1, sharing, ranks=4, begins=False, mark=PieceMark(step=4, samples=16)) is None
    found = shares.ask(0, 0, 2, 1, sharing, begins=False, mark=PieceMark(step=4, samples=4))
    assert found == EpochPiece(epoch=0, place=4, count=6, first=1)
    shares.mark(0, 2, 1, PieceMark(step=7, samples=3))
    shares.gone(2, 1, 7)
    found = shares.ask(0, 0, 0, 1, sharing, ranks=4, begins=False, mark=PieceMark(step=4, samples=16))
    assert found == EpochPiece(epoch=0, place=4, count=6, first=4)


def test_a_piece_says_whose_share_it_is_of_and_whether_somebody_had_it_before():
    """A position in one's own share is none in what another one has left over."""
    shares, whose = EpochBook(), {0: Sharer(1), 1: Sharer(1)}
    found = [shares.ask(0, 0, worker, 1, whose, mark=at(0, 0)) for worker in whose]
    for worker in whose:
        shares.mark(0, worker, 1, at(1, 1))
    shares.gone(1, 1, 4)
    found.append(shares.ask(0, 0, 1, 2, whose))
    shares.gone(1, 2, 4)
    found.append(shares.ask(0, 0, 0, 1, whose, begins=False, mark=at(10, 10)))
    told = [(it.place, it.own, it.left_over) for it in found if it is not None]
    assert told == [(0, True, False), (1, True, False), (1, True, True), (1, False, True)]


def test_samples_that_were_used_before_the_job_are_used_and_left_over_to_nobody():
    """Neither is the loader one to train on, for that: it may be there to validate."""
    shares = Book()
    for worker in TWO:
        shares.ask(0, 0, worker, 1, TWO, samples=200, mark=at(0, 0))
    shares.skip(0, 1, 1, 30)
    assert not shares.trains(0)
    for worker in TWO:
        shares.mark(0, worker, 1, at(1, 1))
    shares.gone(1, 1, 2)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10)) == piece(0, 1, first=5)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(15, 5)) is None
    assert [(use.used, use.handed_on, use.unused) for use in shares.over()] == [(200, 50, 0)]


def test_a_share_that_is_begun_again_is_skipped_in_without_a_word():
    """It is counted once."""
    shares = begun()
    shares.ask(0, 0, 0, 1, TWO, mark=at(10, 10))
    before = shares.dump()
    shares.skip(0, 0, 1, 30)
    assert shares.dump() == before


def test_nothing_is_skipped_in_what_was_left_over_nor_behind_steps_nor_beyond_a_share():
    """The book knows what is used of it; a number that cannot be is none."""
    shares = begun()
    before = shares.dump()
    shares.skip(0, 0, 1, 30)
    shares.gone(1, 1, 4)
    shares.ask(0, 0, 1, 2, TWO)
    after = shares.dump()
    shares.skip(0, 1, 2, 90)
    assert shares.dump() == after
    assert after["dealt"][0] == before["dealt"][0]
    fresh = Book()
    fresh.ask(0, 0, 0, 1, TWO, samples=200)
    fresh.skip(0, 0, 1, MAX_SAMPLES)
    assert [piece["first"] for piece in fresh.dump()["dealt"][0][3]] == [100]


def test_what_a_worker_says_that_it_used_ends_with_its_share():
    """Else its rest could not be told to anybody; of a stream without a length it ends where numbers do."""
    for samples, end in ((200, 100), (0, MAX_SAMPLES)):
        shares = Book()
        for worker in TWO:
            shares.ask(0, 0, worker, 1, TWO, samples=samples)
            shares.mark(0, worker, 1, PieceMark(step=1, samples=MAX_SAMPLES, pace=MAX_SAMPLES))
        shares.gone(1, 1, 1 << 40)
        found = shares.ask(0, 0, 0, 1, TWO, begins=False)
        assert found == EpochPiece(epoch=0, place=1, count=2, first=end)


def test_rests_that_are_too_small_are_looked_at_once_for_each_size():
    """262,144 may be left over, and a job may ask as often as it likes."""
    looked = []

    class Looking(DealtEpoch):
        def fits(self, share: int, first: int, ranks: int) -> bool:
            looked.append(share)
            return super().fits(share, first, ranks)

    epoch = Looking({0: 1, 1: 1}, {0: 1, 1: 1}, samples=20)
    for _ in range(50):
        epoch.leave_over(1, 9)
    for ranks in (2, 2, 4, 3):
        assert epoch.pop_left(0, ranks, own=False) is None
    assert len(looked) == 50
    epoch.leave_over(1, 8)
    assert epoch.pop_left(0, 2, own=False) == (1, 8)
    assert epoch.pop_left(0, 1, own=False) == (1, 9)


def test_what_was_of_an_epoch_that_was_forgotten_is_none_of_one_that_was_dealt_again(monkeypatch):
    """To others, among whom its worker is not: nothing of it can be left over there, nor saved."""
    monkeypatch.setattr(epoch_book, "MAX_EPOCHS", 2)
    shares = begun()
    shares.gone(1, 1, 4)
    assert shares.ask(0, 0, 0, 1, TWO, begins=False, mark=at(10, 10)) == piece(0, 1, first=4)
    for epoch in (1, 2):
        shares.ask(0, epoch, 2, 1, {2: 1}, samples=200)
    assert shares.ask(0, 0, 2, 1, {2: 1}, samples=200) == piece(0, 0, 1)
    assert [(it.workers, it.left) for it in through_json(shares, {0: 12}) if it.epoch == 0] == [((2,), ())]
    shares.gone(0, 1, 12)
    assert shares.ask(0, 0, 2, 1, {2: 1}, begins=False, mark=at(20, 20)) is None
