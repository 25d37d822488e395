"""Lines of the log about refusals: few for each peer, and none is left out without a word."""

from __future__ import annotations

import logging

import pytest

from ps_server.rpc.complaints import MAX_LINES, MAX_PEERS, WINDOW_S, Complaints


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_of_many_refusals_a_few_are_written_and_the_others_counted(
    clock: Clock, caplog: pytest.LogCaptureFixture
):
    complaints = Complaints(clock)
    for number in range(33_000):
        complaints.say(logging.WARNING, "job j worker 0", "frame refused: %s", number)
    assert caplog.messages == [f"job j worker 0: frame refused: {number}" for number in range(MAX_LINES)]
    complaints.say(logging.WARNING, "job j worker 1", "frame refused: %s", "x")
    assert caplog.messages[-1] == "job j worker 1: frame refused: x"
    clock.now_s += WINDOW_S
    complaints.say(logging.WARNING, "job j worker 0", "frame refused: again")
    assert "job j worker 0: 32990 more of these lines" in caplog.messages[-2]
    assert caplog.messages[-1] == "job j worker 0: frame refused: again"


def test_at_the_end_of_a_connection_the_count_is_said_and_the_minute_goes_on(
    clock: Clock, caplog: pytest.LogCaptureFixture
):
    """Who connects again and again gets no more lines than who stays."""
    complaints = Complaints(clock)
    for _ in range(500):
        for _ in range(MAX_LINES):
            complaints.say(logging.WARNING, "peer", "refused")
        complaints.end("peer")
        complaints.end("peer")
    more = "more of these lines, which are not written one by one (at most 10 in 60 s)"
    assert caplog.messages == ["peer: refused"] * MAX_LINES + [f"peer: {MAX_LINES} {more}"]
    clock.now_s += WINDOW_S
    complaints.say(logging.WARNING, "peer", "refused")
    assert caplog.messages[MAX_LINES + 1 :] == [f"peer: {498 * MAX_LINES} {more}", "peer: refused"]
    complaints.end("nobody")


def test_of_many_peers_the_oldest_is_forgotten_with_its_count(clock: Clock, caplog: pytest.LogCaptureFixture):
    complaints = Complaints(clock)
    for _ in range(MAX_LINES + 1):
        complaints.say(logging.WARNING, "first", "refused")
    for number in range(MAX_PEERS):
        complaints.say(logging.WARNING, f"peer {number}", "refused")
    assert any(line.startswith("first: 1 more of these lines") for line in caplog.messages)
