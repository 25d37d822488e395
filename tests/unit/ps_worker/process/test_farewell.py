"""The time that a worker takes to leave, over all its waits."""

from __future__ import annotations

import pytest

from ps_worker.process.farewell import ANSWER_LIMIT_S, LOST_LIMIT_S, UNHURRIED, Farewell


class Clock:
    """Seconds that only pass where they are waited."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_all_waits_together_take_no_longer_than_they_may() -> None:
    clock, waited_s = Clock(), 0.0
    farewell = Farewell(0.5, clock)
    for limit_s in (0.2, 5.0, 5.0, 1.0):
        given_s = farewell.left_s(limit_s)
        assert given_s <= limit_s
        clock.now_s += given_s
        waited_s += given_s
    assert waited_s == pytest.approx(0.5)
    clock.now_s += 1
    assert farewell.left_s(5.0) == 0.0


def test_where_nobody_is_in_a_hurry_each_wait_has_its_own_limit() -> None:
    assert [UNHURRIED.left_s(5.0) for _ in range(3)] == [5.0] * 3
    assert not UNHURRIED.is_short
    assert Farewell(0.0).is_short


def test_after_ctrl_c_a_worker_whose_servers_do_not_answer_waits_for_a_quarter_of_a_second_at_most() -> None:
    """To ask takes twice its limit where a server hangs: for the answer, and to see whether TLS is why."""
    assert 2 * ANSWER_LIMIT_S + LOST_LIMIT_S <= 0.25
