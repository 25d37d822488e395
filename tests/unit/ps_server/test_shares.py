"""Who shares an epoch is fixed when its first batch is asked for."""

from __future__ import annotations

from ps_server.shares import ANY, MAX_EPOCHS, Shares

from .desk import Desk


def test_the_first_who_asks_fixes_an_epoch_for_all():
    """Whoever comes or goes later changes the epochs after it."""
    shares = Shares()
    assert shares.ask(0, 0, 1, 1, {0: 1, 1: 1}) == [0, 1]
    assert shares.ask(0, 0, 0, 1, {0: 1, 2: 1}) == [0, 1]
    assert shares.ask(0, 0, 2, 1, {0: 1, 2: 1}) == []
    assert shares.ask(0, 1, 2, 1, {0: 1, 2: 1}) == [0, 2]
    assert shares.ask(1, 0, 0, 1, {0: 1}) == [0]


def test_a_later_incarnation_has_no_part_of_an_epoch_that_began_before():
    """What it had is not handed out twice."""
    shares = Shares()
    shares.ask(0, 0, 1, 1, {0: 1, 1: 1})
    assert shares.ask(0, 0, 1, 2, {0: 1, 1: 2}) == []
    assert shares.ask(0, 1, 1, 2, {0: 1, 1: 2}) == [0, 1]


def test_one_who_is_awaited_has_its_part_whenever_it_comes():
    """Under the first incarnation that asks."""
    shares = Shares()
    shares.ask(0, 0, 0, 1, {0: 1, 1: ANY})
    assert shares.ask(0, 0, 1, 3, {}) == [0, 1]
    assert shares.ask(0, 0, 1, 4, {}) == []


def test_what_is_remembered_is_bounded():
    """The oldest epochs are forgotten."""
    shares = Shares()
    for epoch in range(MAX_EPOCHS + 1):
        shares.ask(0, epoch, 0, 1, {0: 1})
    assert shares.ask(0, 1, 1, 1, {1: 1}) == []
    assert shares.ask(0, 0, 1, 1, {1: 1}) == [1]


def test_a_job_that_starts_with_all_deals_to_all_until_one_has_gone():
    """One who has not come yet is awaited; one who left, finished or was evicted is not."""
    desk = Desk(4)
    zero = desk.join(0)
    assert desk.job.share(zero, 0, 0) == [0, 1, 2, 3]
    _, one, two, three = zero, *(desk.join(number) for number in (1, 2, 3))
    for member in (zero, one, two, three):
        desk.make(member)
    desk.upload(zero)
    desk.leave(one)
    assert desk.job.share(zero, 0, 1) == [0, 2, 3]
    desk.finish(two)
    assert desk.job.share(zero, 0, 2) == [0, 3]
    desk.lose(three)
    assert desk.job.share(zero, 0, 3) == [0]
    assert desk.job.share(desk.join(1), 0, 4) == [0, 1]


def test_who_goes_on_with_a_suspended_job_awaits_the_others():
    """They come again one by one, and share its epochs as at a start."""
    desk = Desk(2)
    members = desk.start()
    assert desk.job.share(members[0], 0, 0) == [0, 1]
    desk.leave(*members)
    assert desk.job.share(desk.join(0), 0, 0) == [0, 1]
    assert desk.job.share(desk.join(1), 0, 0) == [0, 1]


def test_a_range_deals_to_those_who_are_here():
    """Whoever else may come has a part of the next epoch."""
    desk = Desk(8, min_workers=2)
    three, one = desk.join(3), desk.join(1)
    assert desk.job.share(three, 0, 0) == [1, 3]
    assert desk.job.share(one, 0, 0) == [1, 3]
    assert desk.job.share(desk.join(5), 0, 0) == []
