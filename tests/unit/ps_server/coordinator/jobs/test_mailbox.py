"""Messages to a member that has not acknowledged them: as many as one that lives can be behind."""

from __future__ import annotations

from ps_server.coordinator.jobs.mailbox import MAX_UNHEARD, Mailbox
from ps_wire.v1 import coordinator_pb2 as pb


def notice(text: object) -> pb.MemberReply:
    return pb.MemberReply(notice=pb.Notice(text=str(text)))


def waiting(mailbox: Mailbox) -> list[pb.MemberReply]:
    """What a new stream begins with."""
    stream = mailbox.attach()
    return [reply for reply in (stream.get_nowait() for _ in range(stream.qsize())) if reply is not None]


def test_one_that_never_says_what_it_has_heard_is_refused_and_nothing_more_is_kept_for_it() -> None:
    """Each snapshot that somebody asks for is two messages to each worker: they would be kept for ever."""
    mailbox = Mailbox()
    for number in range(MAX_UNHEARD):
        mailbox.put(notice(number))
    assert len(waiting(mailbox)) == MAX_UNHEARD
    for number in range(100):
        mailbox.put(notice(number))
    (last,) = waiting(mailbox)
    assert last.number == MAX_UNHEARD + 1
    assert "has not said for a long time which messages it has heard" in last.refused.message
    mailbox.detach(mailbox.attach())
    assert mailbox.over


def test_one_that_says_what_it_has_heard_hears_all() -> None:
    mailbox = Mailbox()
    for number in range(1, 2 * MAX_UNHEARD):
        mailbox.put(notice(number))
        mailbox.heard(number - 7)
    assert [int(reply.notice.text) for reply in waiting(mailbox)] == [
        *range(2 * MAX_UNHEARD - 7, 2 * MAX_UNHEARD)
    ]


def test_who_does_not_read_its_stream_is_not_asked_for_ever() -> None:
    """Whoever waits in a call has the others asked, again and again."""
    mailbox = Mailbox()
    stream = mailbox.attach()
    for _ in range(MAX_UNHEARD + 100):
        mailbox.ask(pb.MemberReply(prove=pb.Prove()))
    assert stream.qsize() == MAX_UNHEARD
