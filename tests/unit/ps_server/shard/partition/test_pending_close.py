"""A complete step is closed once, by whichever thread comes first; a held one waits for its scale alone."""

from __future__ import annotations

from collections.abc import Callable

from ps_server.shard.partition.pending_close import PendingClose


def made() -> tuple[PendingClose, list[Callable[[], None]]]:
    closes: list[Callable[[], None]] = []
    return PendingClose(closes.append), closes


def test_a_step_is_announced_once_and_taken_once():
    pending, closes = made()
    pending.announce(3, lambda: None)
    pending.announce(3, lambda: None)
    assert len(closes) == 1
    assert pending.announced
    assert pending.precedes(4)
    assert not pending.precedes(3)
    assert (pending.pop(), pending.pop()) == (3, None)


def test_a_held_step_is_decided_once_and_announced_again_only_after_one_has_gone():
    pending, closes = made()
    pending.hold(3)
    pending.announce(3, lambda: None)
    assert not closes
    pending.look_again()
    assert not pending.decide(3), "it is to be looked at again"
    pending.announce(3, lambda: None)
    assert len(closes) == 1
    pending.hold(3)
    assert not pending.decide(2)
    assert (pending.decide(3), pending.decide(3)) == (True, False)
