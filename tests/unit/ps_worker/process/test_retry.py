"""Retries end, pause and speak as they say, by a clock of the test's."""

from __future__ import annotations

from itertools import count

import pytest

from ps_wire.errors import ConnectionLost, JobUnknown, ServerUnreachable
from ps_worker.process.retry import BACKOFF_S, Retry


class Time:
    """A clock that waits move on, and nothing else."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []

    def wait(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds

    def retry(self, limit_s: float, **how: object) -> Retry:
        return Retry(limit_s, wait=self.wait, clock=lambda: self.now_s, **how)  # type: ignore[arg-type]


def test_pauses_grow_up_to_the_last_one_and_stay_there():
    time = Time()
    retry = time.retry(100.0)
    for _ in range(8):
        assert retry.fail()
        retry.pause()
    assert time.pauses_s == [*BACKOFF_S, *[BACKOFF_S[-1]] * 3]


def test_the_limit_counts_from_the_first_failure_and_begins_anew_once_it_works():
    time = Time()
    retry = time.retry(2.0)
    time.now_s += 50.0  # it worked all the time
    assert retry.fail()
    assert retry.left_s == 2.0
    time.now_s += 2.0
    assert retry.fail()
    time.now_s += 0.1
    assert not retry.fail()
    retry.work()
    assert not retry.failing
    assert retry.fail()
    assert retry.left_s == 2.0


def test_where_the_limit_counts_from_now_a_long_first_try_uses_it_up():
    time = Time()
    retry = time.retry(2.0, from_now=True)
    time.now_s += 2.5
    assert not retry.fail()


def test_a_limit_of_zero_still_allows_the_second_try_of_what_has_just_failed():
    reads = count(100.0, 0.001)  # a real clock goes on from one look to the next
    retry = Retry(0.0, clock=lambda: next(reads))
    assert retry.fail()
    assert not retry.fail()


def test_a_person_is_told_once_for_each_time_that_it_breaks():
    time, said = Time(), list[str]()
    retry = time.retry(100.0)
    for _ in range(3):
        retry.fail()
        retry.pause(lambda: said.append("it broke"))
    assert said == ["it broke"]
    retry.work()
    retry.fail()
    retry.pause(lambda: said.append("it broke"))
    assert said == ["it broke"] * 2
    assert time.pauses_s[-1] == BACKOFF_S[0]


def test_who_is_to_come_again_soon_pauses_no_longer_than_after_so_many_tries():
    time = Time()
    retry = time.retry(100.0)
    for _ in range(5):
        retry.pause()
    retry.hasten(2)
    retry.pause()
    assert time.pauses_s[-1] == BACKOFF_S[2]
    retry.work()
    retry.hasten(2)
    retry.pause()
    assert time.pauses_s[-1] == BACKOFF_S[0]


def test_a_call_is_made_until_it_succeeds():
    time = Time()
    failures = [ConnectionLost("one"), ServerUnreachable("two")]

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    retry = time.retry(10.0, pauses_s=(0.2,))
    assert retry.call(call, again=lambda error: error.retryable) == "done"
    assert time.pauses_s == [0.2, 0.2]


def test_a_call_that_no_other_try_can_help_is_made_once():
    time = Time()

    def call() -> None:
        raise JobUnknown("it is not there")

    with pytest.raises(JobUnknown):
        time.retry(10.0).call(call, again=lambda error: error.retryable)
    assert not time.pauses_s


def test_a_call_ends_with_its_last_error_once_the_limit_is_over():
    time, tries = Time(), list[int]()

    def call() -> None:
        tries.append(len(tries))
        raise ServerUnreachable(f"try {len(tries)}")

    with pytest.raises(ServerUnreachable, match="try 7"):
        time.retry(1.1, pauses_s=(0.2,)).call(call, again=lambda error: True)
    assert time.pauses_s == [0.2] * 6


def test_what_the_question_for_another_try_raises_ends_the_call():
    time = Time()

    def call() -> None:
        raise ServerUnreachable("nobody answers")

    def again(_: object) -> bool:
        raise JobUnknown("the job has ended meanwhile")

    with pytest.raises(JobUnknown, match="ended meanwhile"):
        time.retry(10.0).call(call, again=again)
