"""State outside tables, as the coordinator keeps it: what one job may put there, and what does not count."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ps_server.coordinator import state_store
from ps_server.coordinator.state_store import MAX_NAMES, StateStore
from ps_wire.errors import FrameMalformed, MemoryLimitExceeded


def put(
    states: StateStore, name: str, *parts: bytes | None, worker: int = 0, size: int | None = None
) -> None:
    with states.arriving("j", name, worker, size) as take:
        for part in parts:
            take(part)  # type: ignore[arg-type]


def test_states_under_way_share_the_limit_of_their_job(monkeypatch):
    """Many calls at once hold no more than one; what was refused holds nothing."""
    monkeypatch.setattr(state_store, "MAX_JOB_BYTES", 100)
    states = StateStore()
    with ExitStack() as calls:
        takes = [calls.enter_context(states.arriving("j", f"s{number}", 0)) for number in range(4)]
        for take in takes[:3]:
            take(bytes(30))
        with pytest.raises(MemoryLimitExceeded, match="over 100 bytes"):
            takes[3](bytes(30))
        with states.arriving("another", "s", 0) as take:
            take(bytes(100))
    with pytest.raises(MemoryLimitExceeded):
        put(states, "s5", bytes(11))
    put(states, "s0", bytes(40))  # in place of what was there
    assert not states._arriving


def test_a_state_that_does_not_come_whole_is_not_kept():
    states = StateStore()
    with pytest.raises(TypeError):
        put(states, "s", b"half", None)  # as where a call ends in the middle
    assert states.dump() == {}


@pytest.mark.parametrize("parts", [(), (b"hal",), (b"half", b"half of another one")])
def test_a_state_of_which_not_all_has_come_leaves_what_was_there(parts):
    """A stream whose client was killed ends as any other does."""
    states = StateStore()
    put(states, "s", b"before")
    with pytest.raises(FrameMalformed, match=r"came \d+ bytes, of 4"):
        put(states, "s", *parts, size=4)
    assert states.get("j", "s") == b"before"


def test_what_a_snapshot_had_of_workers_leaves_room_for_the_next_one(monkeypatch):
    """However many there are; nor does what they capture for it count among names."""
    monkeypatch.setattr(state_store, "MAX_JOB_BYTES", MAX_NAMES + 10)
    states = StateStore()
    for worker in range(2 * MAX_NAMES):
        states.put("j", f"snapshot/{worker}", b"xx")
    for number in range(MAX_NAMES):
        put(states, f"start/{number}", b"")
    with pytest.raises(MemoryLimitExceeded, match=f"keeps {MAX_NAMES} states"):
        put(states, "one more", b"")
    for worker in range(MAX_NAMES):
        put(states, f"cut/{worker}", b"x", worker=worker)


def test_what_workers_note_takes_no_room_from_what_is_needed(monkeypatch):
    """Notes stay there as long as the job is known; snapshots and who joins have room all the same."""
    monkeypatch.setattr(state_store, "MAX_JOB_BYTES", 100)
    states = StateStore()
    for worker in range(2):
        put(states, f"note/{worker}", bytes(50), worker=worker)
    with pytest.raises(MemoryLimitExceeded):
        put(states, "note/2", b"x", worker=2)
    for name in ("cut/0", "position", "final"):
        put(states, name, bytes(100))
        states.pop("j", name)


@pytest.mark.parametrize("name", ["snapshot/0", "cut/1"])
def test_a_worker_puts_nothing_in_the_name_of_others(name):
    with pytest.raises(FrameMalformed, match="worker 0 may put no state"):
        put(StateStore(), name, b"x")
