"""Workers that come and go while a job runs, and ranges of workers, as the coordinator sees them."""

from __future__ import annotations

import pytest

from ps_server.coordinator.jobs.actions import TwoRounds
from ps_server.coordinator.jobs.phase import JobState
from ps_server.shard.shard import Shard
from ps_wire.errors import Evicted, JobFull
from tests.unit.ps_server.desk import Desk


def test_a_number_that_has_become_free_is_taken_in_mid_run():
    """It is in no gate until it makes the table; then it enters at the step that the shards name."""
    desk = Desk(2)
    _zero, one = desk.start()
    with pytest.raises(JobFull, match="all the workers"):
        desk.join()
    desk.leave(one)
    desk.clocks = {0: 7}
    again = desk.join()
    assert (again.worker, again.incarnation) == (1, 2)
    assert desk.orders[-1].admit.reader
    assert desk.last(again, "joined").joined.resumed
    desk.make(again)
    assert [order.WhichOneof("kind") for order in desk.orders[-2:]] == ["prepare", "enter"]
    assert desk.orders[-1].enter.step == 7
    assert not desk.last(again, "table_made").table_made.upload
    assert desk.last(again, "table_started").table_started.step == 7


def test_of_a_worker_whose_ranks_have_not_all_left_in_order_counts_what_all_shards_have():
    """It goes as one that is evicted: every shard holds still before a step is named."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.clocks = {0: 7}
    desk.do(desk.job.leave(one, "rank 1 has gone", torn=True))
    assert [order.WhichOneof("kind") for order in desk.orders[-2:]] == ["fence", "evict"]
    assert desk.orders[-1].evict.limits == {0: 7}
    assert "left: rank 1 has gone" in desk.last(zero, "notice").notice.text
    assert (one.state, zero.state) == ("lost", "joined")


def test_a_range_starts_with_its_least_and_takes_up_to_its_most():
    """By whichever numbers; the first to arrive brings the weights."""
    desk = Desk(3, min_workers=2)
    two, zero = desk.join(2), desk.join(0)
    desk.make(zero)
    assert desk.last(zero, "waiting").waiting.whom == "worker 2 to make table 0"
    desk.make(two)
    assert desk.last(two, "table_made").table_made.upload
    desk.upload(two)
    assert desk.job.state is JobState.RUNNING
    desk.leave(two)
    one = desk.join()
    assert one.worker == 1
    desk.join()
    with pytest.raises(JobFull):
        desk.join()


def test_one_who_comes_while_the_table_starts_enters_it_like_one_who_comes_later():
    """It is in no gate before, and is told its first step: nobody waits for it in vain."""
    desk = Desk(3, min_workers=2)
    zero, one = desk.join(0), desk.join(1)
    for member in (zero, one):
        desk.make(member)
    desk.held = True
    desk.upload(zero)
    two = desk.join(2)
    desk.held = False
    desk.settle()
    assert desk.kinds(zero)[-1] == "table_started"
    assert desk.orders[-1].admit.reader
    desk.make(two)
    assert desk.order_kinds[-2:] == ["prepare", "enter"]
    assert desk.kinds(two)[-1] == "table_started"


def test_a_range_starts_with_all_who_have_come():
    """One that is about to be let in has a place in the gates, and is waited for."""
    desk = Desk(3, min_workers=2)
    zero, one = desk.join(0), desk.join(1)
    for member in (zero, one):
        desk.make(member)
    desk.held = True
    two = desk.join(2)
    desk.upload(zero)
    desk.held = False
    desk.settle()
    assert desk.job.state is JobState.WAITING
    desk.make(two)
    assert [desk.kinds(member)[-1] for member in (zero, one, two)] == ["table_started"] * 3


def test_a_range_waits_for_its_least():
    """How many more are missing is said."""
    desk = Desk(8, min_workers=3)
    zero = desk.join()
    desk.make(zero)
    desk.upload(zero)
    assert desk.last(zero, "waiting").waiting.whom == "2 more workers to join"


def test_another_one_starts_the_table_when_who_was_asked_goes():
    """In a range; and in mid-run, with a new table."""
    desk = Desk(3, min_workers=2)
    zero, one = desk.join(), desk.join()
    desk.make(zero)
    desk.make(one)
    assert not desk.last(one, "table_made").table_made.upload
    desk.lose(zero)
    assert desk.last(one, "table_made").table_made.upload
    two = desk.join()
    desk.make(two)
    desk.upload(one)
    assert desk.job.state is JobState.RUNNING
    desk.make(one, 1)
    desk.make(two, 1)
    owner, other = (two, one) if desk.last(two, "table_made").table_made.upload else (one, two)
    desk.leave(owner)
    assert desk.last(other, "table_made").table_made.upload
    desk.upload(other, 1)
    assert desk.last(other, "table_started").table_started.table == 1


def test_a_new_table_does_not_wait_for_one_who_has_gone():
    """Those who have made it begin as soon as the one who had not leaves."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.make(zero, 1)
    desk.upload(zero, 1)
    assert desk.kinds(zero).count("table_started") == 1
    desk.lose(one)
    assert desk.kinds(zero).count("table_started") == 2


def test_a_silent_worker_is_evicted_in_two_rounds_and_the_others_go_on():
    """All shards fence it and say how far it was; the smallest counts everywhere. It alone is told."""
    shards = [Shard(index=index, num_shards=2, memory_limit_bytes=None) for index in range(2)]
    desk = Desk(3, shards=shards)
    zero, one, two = desk.start()
    epoch = desk.job.phase.membership_epoch
    desk.lose(one)
    assert [order.WhichOneof("kind") for order in desk.orders[-2:]] == ["fence", "evict"]
    assert dict(desk.orders[-1].evict.limits) == {0: 0}
    assert desk.job.phase.membership_epoch > epoch
    assert isinstance(desk.error(one), Evicted)
    for member in (zero, two):
        assert "refused" not in desk.kinds(member)
    assert desk.job.state is JobState.RUNNING
    assert not desk.refusals


def test_the_smallest_clock_of_all_shards_is_the_limit():
    """The largest is the first step of one who enters."""
    desk = Desk(2)
    _, one = desk.start()
    (change,) = [action for action in desk.job.lost(one) if isinstance(action, TwoRounds)]
    assert change.least
    assert dict(change.second({0: 3}).evict.limits) == {0: 3}
