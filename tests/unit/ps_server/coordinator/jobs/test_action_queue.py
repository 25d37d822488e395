"""What a coordinator is about to do for a job: one change at a time, and what is left of it in a rollback."""

from __future__ import annotations

from ps_server.coordinator.jobs.action_queue import ActionQueue
from ps_server.coordinator.jobs.actions import ToMember, ToShards, eviction, tell
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_wire.errors import ServerNotReady
from ps_wire.v1 import coordinator_pb2 as pb


def member(worker: int) -> Member:
    return Member(worker=worker, incarnation=1, host="h", pid=7, state=MemberState.JOINED)


def job_of(*members: Member) -> Job:
    job = Job("j", "bsp", 2)
    job.roster.members.update({it.worker: it for it in members})
    return job


def word(worker: int) -> ToMember:
    return tell(member(worker), notice=pb.Notice(text="hello"))


START = ToShards(pb.Order(start_table=pb.StartTable(job="j")))


def test_nothing_comes_between_the_two_rounds_of_a_change():
    """Nor before what follows from it."""
    agenda, gone = ActionQueue(), member(0)
    agenda.add([eviction("j", gone, 1), word(1)])
    fence = agenda.next()
    assert fence.HasField("fence")
    assert agenda.least
    assert agenda.next() is None
    evict = agenda.answered(job_of(gone), {0: 3})
    assert evict.evict.limits == {0: 3}
    assert agenda.next() is None
    assert agenda.answered(job_of(gone), {}) is None
    assert agenda.next() == word(1)


def test_nothing_follows_from_an_order_that_comes_to_its_end_while_a_job_goes_back():
    """Neither from one that was refused: the job is about to be another one."""
    for ends in ("answered", "refused"):
        agenda, job = ActionQueue(), job_of(member(0))
        agenda.add([START, START])
        assert agenda.next() is START.order
        agenda.freeze()
        if ends == "answered":
            assert agenda.answered(job, {}) is None
        else:
            agenda.refused(job, ServerNotReady("shard 1 is gone"))
        assert agenda.empty
        assert job.state is JobState.WAITING


def test_nobody_is_let_in_by_an_order_that_ends_while_the_job_goes_back():
    """It is told to come again: what it was to enter is no more."""
    agenda, joining = ActionQueue(), member(0)
    joining.state = MemberState.JOINING
    admit = ToShards(pb.Order(admit=pb.AdmitMember(worker=0, incarnation=1)))
    agenda.add([admit])
    assert agenda.next() is admit.order
    agenda.freeze()
    assert agenda.answered(job_of(joining), {}) is None
    assert agenda.empty
    assert joining.state is MemberState.JOINING


def test_what_members_were_told_before_and_meanwhile_is_heard():
    """Who was let in has to know as whom, to come back; who was evicted does not wait for ever."""
    agenda = ActionQueue()
    agenda.add([word(0), START])
    agenda.freeze()
    agenda.add([START, word(1)])
    assert [agenda.next(), agenda.next(), agenda.next()] == [word(0), word(1), None]
    agenda.thaw([START])
    assert agenda.next() is START.order
