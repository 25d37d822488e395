"""Numbers and incarnations of a job's workers."""

from __future__ import annotations

import pytest

from ps_server.coordinator.jobs.member import MemberState
from ps_server.coordinator.jobs.roster import Roster
from ps_wire.errors import JobFull, JobUnknown, WorkerNumberTaken


def add(roster, wanted=None, *, reader=False, state=MemberState.JOINED):
    member = roster.add(roster.number(wanted), host="h", pid=3, reader=reader)
    member.state = state
    return member


def test_numbers_are_given_from_the_lowest_free_one():
    """A wanted number counts as taken."""
    roster = Roster("j", 4)
    assert [add(roster, wanted).worker for wanted in (None, 2, None, None)] == [0, 2, 1, 3]
    with pytest.raises(JobFull, match="--num-workers 4"):
        roster.number(None)


@pytest.mark.parametrize("gone", [MemberState.LEFT, MemberState.LOST])
def test_a_number_is_free_again_when_its_holder_is_gone(gone):
    """The next incarnation has the next number, whoever it is."""
    roster = Roster("j", 1)
    for incarnation in (1, 2, 3):
        member = add(roster)
        assert member.incarnation == incarnation
        member.state = gone


def test_a_taken_number_names_its_holder():
    """By host and process."""
    roster = Roster("j", 2)
    add(roster, 1)
    with pytest.raises(WorkerNumberTaken) as refused:
        roster.number(1)
    assert refused.value.facts == {"worker": 1, "host": "h", "pid": 3}
    assert "worker 1 (host h, pid 3)" in refused.value.message


def test_a_number_beyond_the_job_is_refused():
    """They go from 0 to one less than the job's size."""
    with pytest.raises(JobFull, match="numbered 0 to 1"):
        Roster("j", 2).number(2)


def test_a_member_is_found_by_its_live_incarnation_only():
    """Not a stranger, nor an older or later one, nor one that is gone."""
    roster = Roster("j", 2)
    member = add(roster)
    assert roster.member(0, 1) is member
    for worker, incarnation in [(1, 1), (0, 0), (0, 2)]:
        with pytest.raises(JobUnknown):
            roster.member(worker, incarnation)
    member.state = MemberState.LOST
    with pytest.raises(JobUnknown):
        roster.member(0, 1)


@pytest.mark.parametrize("state", MemberState)
@pytest.mark.parametrize("reader", [False, True])
def test_who_counts_as_what(state, reader):
    """Present until gone; training until finished, unless it only reads; here while it does neither."""
    roster = Roster("j", 1)
    member = add(roster, reader=reader, state=state)
    gone = state in (MemberState.LEFT, MemberState.LOST)
    finished = state is MemberState.FINISHED
    assert roster.present() == ([] if gone else [member])
    assert roster.training() == ([] if gone or finished or reader else [member])
    assert roster.here() == ([member] if state is MemberState.JOINED else [])
    assert roster.finished() == ([member] if finished else [])


def test_the_lowest_finished_comes_first():
    """None while nobody has finished."""
    roster = Roster("j", 3)
    assert roster.first_finished() is None
    members = [add(roster, number) for number in (2, 0, 1)]
    assert roster.first_finished() is None
    members[0].state = members[2].state = MemberState.FINISHED
    assert roster.first_finished() is members[2]
