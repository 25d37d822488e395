"""Transitions of members and of jobs: literal tables, which who changes a state is held to."""

from __future__ import annotations

import itertools

import pytest

from ps_server.coordinator.jobs import member as members
from ps_server.coordinator.jobs import phase as phases
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState, Phase


def member_in(state: MemberState) -> Member:
    return Member(worker=0, incarnation=1, host="h", pid=1, state=state)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(MemberState, repeat=2)), ids=str)
def test_a_member_becomes_only_what_can_follow(before, after):
    """Else it is our bug, and is said where it happens."""
    member = member_in(before)
    if after is before or after in members.NEXT[before]:
        member.become(after)
        assert member.state is after
        return
    with pytest.raises(AssertionError, match=before):
        member.become(after)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobState, repeat=2)), ids=str)
def test_a_job_enters_only_what_can_follow(before, after):
    """Of four states, none but an ended job's suspension is impossible; it would keep who comes waiting."""
    phase = Phase(state=before)
    if after is before or after in phases.NEXT[before]:
        phase.enter(after)
        assert phase.state is after
        return
    assert (before, after) == (JobState.ENDED, JobState.SUSPENDED)
    with pytest.raises(AssertionError, match=before):
        phase.enter(after)


def test_who_has_gone_does_not_come_back_under_the_same_incarnation():
    """Who left may still be said to be lost; another incarnation is another member."""
    assert members.NEXT[MemberState.LOST] == frozenset()
    assert members.NEXT[MemberState.LEFT] == {MemberState.LOST}
    present = set(MemberState) - {MemberState.LEFT, MemberState.LOST}
    assert all(members.NEXT[state] >= {MemberState.LEFT, MemberState.LOST} for state in present)
