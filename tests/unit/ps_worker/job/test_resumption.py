"""Where the state of another process is set: where the script stands where it was sent, and not later."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from ps_worker.data.position import Positions
from ps_worker.job.resumption import Found, Resumption


@pytest.fixture
def side() -> MagicMock:
    return MagicMock()


@pytest.fixture
def script() -> SimpleNamespace:
    return SimpleNamespace(
        take_up=lambda at, clocks: True,
        arrived=lambda: True,
        dropping=lambda: True,
        restored=lambda saved: None,
    )


@pytest.fixture
def resumption(side: MagicMock, script: SimpleNamespace) -> Resumption:
    """Of worker 0, which is sent to the middle of epoch 1, where worker 1 is."""
    presence = SimpleNamespace(joined=SimpleNamespace(worker=0, ended=False), calls=None)
    made = Resumption(presence, side, script)
    state = Positions(epoch=1, loaders=(), worker=1, inside=True).pack()
    made.go_on(Found(state=state, clocks={}, saved=False))
    side.load.reset_mock()
    return made


def test_what_another_was_inside_an_epoch_is_not_set_in_the_next(resumption, side):
    """Its batch in hand was the last: what the body does behind it, by epochs, stays done."""
    resumption.end_iterator()
    assert side.load.call_count == 1
    assert not resumption.begin_epoch(2)
    assert side.load.call_count == 1


def test_who_begins_the_epoch_that_it_was_sent_to_goes_on_inside_it(resumption, side):
    assert resumption.begin_epoch(1)
    assert side.load.call_count == 1
    assert not resumption.begin_epoch(2)
    assert side.load.call_count == 1


def test_what_is_set_at_a_batch_is_not_set_again(resumption, side, script):
    script.dropping = lambda: False
    resumption.begin_step()
    resumption.begin_step()
    resumption.end_iterator()
    assert not resumption.begin_epoch(1)
    assert side.load.call_count == 1


def test_a_step_that_is_sat_out_is_none_that_the_script_begins(resumption, side):
    """Who waits in a call abstains from steps of others: nothing of its own is set back, or drawn anew."""
    side.random.apply.reset_mock()
    with resumption.paused():
        resumption.begin_step()
    assert (side.load.call_count, side.random.apply.call_count) == (0, 0)
    resumption.begin_step()
    assert (side.load.call_count, side.random.apply.call_count) == (1, 1)


def test_it_is_not_set_before_the_script_is_there(resumption, side, script):
    script.arrived = lambda: False
    resumption.begin_step()
    resumption.end_iterator()
    assert not resumption.begin_epoch(1)
    assert side.load.call_count == 0


def test_own_state_of_a_snapshot_goes_with_the_epoch_that_it_was_in(resumption, side, script):
    resumption.restore(Positions(epoch=3, loaders=(), worker=0, inside=True).pack())
    side.load.reset_mock()
    resumption.end_iterator()  # of the batch in hand, in epoch 3
    assert side.load.call_count == 1
    assert not resumption.begin_epoch(4)
    assert side.load.call_count == 1


def test_who_was_evicted_before_its_table_had_started_asks_again_where_the_job_is(side, script):
    """What it had been told is older: the job went on, and its epochs with it."""
    noted = iter([Positions(epoch=epoch, loaders=(), worker=1).pack() for epoch in (1, 3)])
    taken = []
    joined = SimpleNamespace(worker=0, ended=False, rolled_back=False)
    calls = SimpleNamespace(position=lambda live: (next(noted), {0: 8}))
    script.take_up = lambda at, clocks: taken.append(at.epoch) or True
    script.has_data = lambda: False
    side.__bool__ = lambda _side: False
    made = Resumption(SimpleNamespace(joined=joined, calls=calls), side, script)
    made.first(live=True)
    made.go_on(made.find())
    assert taken == [1, 3]
