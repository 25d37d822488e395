"""What happened to a job: the kinds are one table, and each line reads the same everywhere."""

from __future__ import annotations

import logging

import pytest

from ps_server.coordinator.jobs.event_log import KEPT, Events
from ps_server.coordinator.jobs.member import Member
from ps_server.events import MEANING, Event
from ps_wire.spec.epoch_use import EpochUse

MEMBER = Member(worker=3, incarnation=2, host="here", pid=7)
WORDS = "join rejoin resume retry leave drain finish evict drop epoch restore"


def test_the_table_of_events_is_that_of_their_kinds():
    """People look for these words in logs and in `ps-lab status --json`: none is changed unseen."""
    assert [event.value for event in Event] == list(MEANING)
    assert set(WORDS.split()) <= MEANING.keys()


def test_an_event_is_a_line_of_the_log_and_counted(caplog: pytest.LogCaptureFixture):
    events = Events("j")
    use = EpochUse(loader=0, epoch=4, samples=100, used=90, handed_on=30, over=True)
    with caplog.at_level(logging.INFO, logger="ps_server"):
        events.record(Event.LEAVE, MEMBER, membership_epoch=5, detail="done")
        events.record_epoch(use)
    assert caplog.messages == [
        "job j: event=leave worker=3 incarnation=2 host=here pid=7 epoch=5 (done)",
        "job j: event=epoch loader=0 number=4 samples=100 used=90 unused=10 handed_on=30",
    ]
    assert events.counts == {"leave": 1, "epoch": 1}
    assert [line.partition(" ")[2] for line in events.last] == [
        it[len("job j: ") :] for it in caplog.messages
    ]


def test_only_the_last_lines_are_kept():
    events = Events("j")
    for _ in range(KEPT + 5):
        events.record(Event.RESUME, MEMBER, membership_epoch=1)
    assert (len(events.last), events.counts["resume"]) == (KEPT, KEPT + 5)
