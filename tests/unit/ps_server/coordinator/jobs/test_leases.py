"""Leases under a clock of the test's, and mailboxes of members whose streams break."""

from __future__ import annotations

from ps_server.coordinator.jobs.leases import Leases
from ps_server.coordinator.jobs.mailbox import Mailbox
from ps_wire.v1 import coordinator_pb2 as pb

LEFT = pb.MemberReply(left=pb.Left())


def look(leases: Leases, until_s: float, since_s: float = 0.0) -> list[tuple[int, int]]:
    """Looks as often as a coordinator does."""
    found = []
    for tenth in range(round(since_s * 10), round(until_s * 10) + 1):
        found += leases.expired(tenth / 10)
    return found


def test_a_lease_is_over_when_nothing_was_heard_for_its_term():
    """Once; whoever was heard has a full term from then on."""
    leases = Leases()
    leases.grant(0, 1, 2.0, 0.0)
    leases.grant(1, 1, 2.0, 0.0)
    leases.renew(1, 1, 1.5)
    assert look(leases, 3.0) == [(0, 1)]
    assert leases.left_s(1, 1, 3.0) == 0.5
    assert look(leases, 4.0, 3.1) == [(1, 1)]
    assert look(leases, 9.0, 4.1) == []


def test_a_term_of_nought_never_ends_and_who_has_gone_has_none():
    """Nor does a renewal bring back what has ended."""
    leases = Leases()
    leases.grant(0, 1, 0.0, 0.0)
    leases.grant(1, 3, 1.0, 0.0)
    leases.end(1, 3)
    leases.renew(1, 3, 0.5)
    assert look(leases, 100.0) == []
    assert leases.left_s(0, 1, 0.0) is None


def test_a_coordinator_that_was_held_up_gives_the_time_back():
    """It has not heard anybody meanwhile."""
    leases = Leases()
    leases.grant(0, 1, 2.0, 0.0)
    assert look(leases, 1.0) == []
    assert leases.expired(61.0) == []
    assert look(leases, 61.9, 61.1) == []
    assert look(leases, 62.1, 62.0) == [(0, 1)]


def test_a_new_stream_brings_what_was_not_heard():
    """In order and numbered; what was heard is forgotten."""
    mailbox = Mailbox()
    first = mailbox.attach()
    for text in ("a", "b", "c"):
        mailbox.put(pb.MemberReply(waiting=pb.Waiting(whom=text)))
    assert [first.get_nowait().number for _ in range(3)] == [1, 2, 3]
    mailbox.heard(1)
    second = mailbox.attach()
    assert first.get_nowait() is None
    assert [second.get_nowait().waiting.whom for _ in range(2)] == ["b", "c"]
    mailbox.detach(first)
    mailbox.put(LEFT)
    assert second.get_nowait().WhichOneof("kind") == "left"
    assert not mailbox.over
    mailbox.detach(second)
    assert mailbox.over


def test_a_request_that_is_said_again_is_taken_once():
    """One that is missing in between is not passed over."""
    mailbox = Mailbox()
    taken = [mailbox.receive(pb.MemberRequest(number=number)) for number in (1, 1, 2, 4, 3, 4, 0, 0)]
    assert taken == [True, False, True, False, True, True, True, True]
    assert mailbox.taken == 4
