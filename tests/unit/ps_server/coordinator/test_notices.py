"""What members are told of others who have left."""

from __future__ import annotations

from tests.unit.ps_server.desk import Desk


def test_the_others_are_told_who_left_because_of_an_error():
    """One line with number, host, pid and reason, before anything follows from it; not the one who left."""
    desk = Desk(3)
    zero, one, two = desk.start()
    desk.held = True
    desk.leave(one, reason="ValueError: boom")
    desk.held = False
    desk.settle()
    for member in (zero, two):
        assert desk.last(member, "notice").notice.text == "worker 1 (host h, pid 7) left: ValueError: boom"
    assert "notice" not in desk.kinds(one)
    assert desk.kinds(one)[-1] == "left"


def test_a_worker_that_leaves_without_a_reason_is_no_news():
    """Nor is one that has finished, whatever it says."""
    desk = Desk(3)
    zero, one, two = desk.start()
    desk.leave(one)
    desk.finish(two)
    desk.leave(two, reason="KeyboardInterrupt: ")
    assert "notice" not in desk.kinds(zero)


def test_a_notice_is_one_bounded_line():
    """Line ends and control characters become spaces; the text is cut."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.leave(one, reason="ValueError: \x1b[31m a\n\tb\x00\u2028c" + "x" * 10_000)
    text = desk.last(zero, "notice").notice.text
    assert text.startswith("worker 1 (host h, pid 7) left: ValueError: [31m a b cxxx")
    assert text.isprintable()
    assert len(text) < 400
    desk = Desk(2)
    zero, one = desk.start()
    desk.leave(one, reason=" \n\x00")
    assert "notice" not in desk.kinds(zero)
