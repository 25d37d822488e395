"""A job that goes back to a snapshot, as the coordinator sees it: who is waited for, and where they begin."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.epochs.epoch_book import EpochBook, Sharer
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_server.coordinator.recovery import floor_of
from ps_server.shard.shard import Shard
from ps_wire.errors import JobUnknown, RolledBack, WorkerNumberTaken
from ps_wire.snapshot.saved_epoch import SavedEpoch
from ps_wire.spec.epochs import PieceMark
from ps_wire.v1 import coordinator_pb2 as pb
from tests.unit.ps_server.desk import Desk, table
from tests.unit.ps_server.fleets import fleet_of

FLOOR = floor_of(5)
LEASE_S = 60.0


def saved(*workers: int, num_workers: int = 2, step: int = 7, tables: int = 1) -> SavedJob:
    job = Job("j", "bsp", num_workers).spec
    specs = tuple(table(number) for number in range(tables))
    clocks = {number: dict.fromkeys(workers, step) for number in range(tables)}
    return SavedJob(
        snapshot="s", job=job, tables=specs, clocks=clocks, workers=dict.fromkeys(workers, LEASE_S)
    )


def share(loader: int, epoch: int, *, used: int, trains: bool = True) -> SavedEpoch:
    return SavedEpoch(
        loader=loader,
        epoch=epoch,
        workers=(0, 1),
        ranks=(1, 1),
        samples=8,
        used=used,
        handed_on=0,
        starts={0: used, 1: 0},
        left=(),
        trains=trains,
    )


def roll_back(desk: Desk, to: SavedJob) -> None:
    actions = desk.job.roll_back(to, floor=FLOOR)
    for member in desk.job.roster.returning():
        desk.told.setdefault((member.worker, member.incarnation), [])
    desk.do(actions)


def come_back(desk: Desk, member: Member) -> Member:
    """As another incarnation, with its first table."""
    again = desk.join(member.worker, before=member.incarnation)
    desk.make(again)
    return again


def first_step(desk: Desk, member: Member) -> int | None:
    replies = desk.told[member.worker, member.incarnation]
    started = [reply.table_started.step for reply in replies if reply.HasField("table_started")]
    return started[-1] if started else None


def test_a_job_goes_on_once_all_who_trained_have_come_back():
    """None of them trains alone; their incarnations are above all before."""
    desk = Desk(2)
    members = desk.start()
    roll_back(desk, saved(0, 1))
    for member in members:
        assert desk.told[member.worker, member.incarnation][-1].rolled_back.step == 7
    zero = come_back(desk, members[0])
    assert first_step(desk, zero) is None
    one = come_back(desk, members[1])
    assert (first_step(desk, zero), first_step(desk, one)) == (7, 7)
    assert min(zero.incarnation, one.incarnation) > FLOOR


def test_each_worker_goes_on_at_its_own_step_of_the_cut():
    """Under ssp and asp they differ."""
    desk = Desk(2, consistency="asp")
    members = desk.start()
    at = dataclasses.replace(saved(0, 1), clocks={0: {0: 4, 1: 9}})
    roll_back(desk, at)
    back = [come_back(desk, member) for member in members]
    assert [first_step(desk, member) for member in back] == [4, 9]


def test_who_is_stopped_ends_after_the_newest_epoch_of_which_the_snapshot_has_steps():
    """Not after one that was asked for, nor after one of a loader to validate on."""
    shares = [
        share(0, 2, used=4),
        share(0, 3, used=1),
        share(0, 4, used=0),
        share(1, 9, used=4, trains=False),
    ]
    desk = Desk(2)
    desk.start()
    desk.job.loops.begin(7)
    roll_back(desk, dataclasses.replace(saved(0, 1), shares=tuple(shares)))
    desk.job.stop(None, "enough")
    assert desk.job.loops.last == 3
    other = Desk(2)
    other.start()
    other.job.loops.begin(7)
    roll_back(other, saved(0, 1))
    other.job.stop(None, "enough")
    assert other.job.loops.last == 0


def test_what_a_person_has_stopped_stays_stopped_and_what_a_worker_has_does_not():
    """A worker has decided by steps that are undone."""
    desk = Desk(2)
    one, _ = desk.start()
    desk.job.loops.begin(7)
    desk.do(desk.job.stop(one, "enough"))
    roll_back(desk, saved(0, 1))
    assert (desk.job.loops.last, desk.job.loops.stopped) == (None, "")
    desk.job.loops.begin(5)
    desk.do(desk.job.stop(desk.join(0, before=one.incarnation), "enough"))
    desk.do(desk.job.stop(None, "too"))
    roll_back(desk, saved(0, 1))
    assert desk.job.loops.last == 5
    assert not desk.job.loops.begin(6)
    other = Job("j", "bsp", 2)
    other.loops.load(desk.job.loops.dump())
    other.loops.go_back(3)
    assert other.loops.last == 5
    desk.do(desk.job.drop())
    assert desk.job.loops.last is None


def test_who_does_not_come_back_is_waited_for_as_long_as_its_lease():
    """Then the others go on."""
    desk = Desk(2)
    members = desk.start()
    roll_back(desk, saved(0, 1))
    zero = come_back(desk, members[0])
    desk.lose(members[1])
    assert first_step(desk, zero) == 7


def test_a_worker_that_had_died_before_is_not_waited_for():
    """It trained at the cut; the coordinator has evicted it since."""
    desk = Desk(2)
    members = desk.start()
    desk.lose(members[1])
    roll_back(desk, saved(0, 1))
    assert first_step(desk, come_back(desk, members[0])) == 7


def test_a_number_is_kept_for_who_is_to_come_back():
    """A stranger does not get it while its lease is alive."""
    desk = Desk(2)
    desk.start()
    roll_back(desk, saved(0, 1))
    with pytest.raises(WorkerNumberTaken):
        desk.join(1)


def test_a_new_coordinator_waits_for_those_of_the_cut_and_takes_whoever_has_their_numbers():
    """It knows no incarnation of theirs: new processes are as good as those that lived on."""
    desk = Desk(2)
    roll_back(desk, saved(0, 1))
    assert [it.lease_s for it in desk.job.roster.returning()] == [LEASE_S, LEASE_S]  # as the snapshot has it
    zero = desk.join(0)
    desk.make(zero)
    assert first_step(desk, zero) is None
    one = desk.join(1, before=3)
    desk.make(one)
    assert (first_step(desk, zero), first_step(desk, one)) == (7, 7)


def test_one_who_was_joining_when_its_job_went_back_again_is_waited_for():
    """It does not know its incarnation: whoever comes with its number is let in."""
    desk = Desk(2)
    members = desk.start()
    roll_back(desk, saved(0, 1))
    zero = come_back(desk, members[0])
    desk.held = True
    desk.join(1, before=members[1].incarnation)
    desk.held = False
    roll_back(desk, saved(0, 1))
    zero = come_back(desk, zero)
    assert first_step(desk, zero) is None
    one = come_back(desk, members[1])
    assert (first_step(desk, zero), first_step(desk, one)) == (7, 7)


def test_one_whom_a_new_coordinator_does_not_know_is_told_to_come_back():
    """It came, or had finished, before the snapshot was complete: its process goes on."""
    desk = Desk(3, min_workers=1)
    roll_back(desk, saved(0, num_workers=3))
    loop = asyncio.new_event_loop()
    loop.close()  # nothing is carried out
    shards = fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), loop)
    coordinator = Coordinator(shards)
    coordinator.runners["j"] = JobRunner(desk.job, shards, lambda _: None)
    streams = coordinator._members
    with pytest.raises(RolledBack) as told:
        streams._resume(pb.Resume(job="j", worker=2, incarnation=1))
    assert told.value.step == 7
    with pytest.raises(JobUnknown):
        streams._resume(pb.Resume(job="j", worker=2, incarnation=FLOOR + 1))
    kept = desk.job.roster.members[0].incarnation
    with pytest.raises(JobUnknown):  # its own number, but an incarnation that nobody has given
        streams._resume(pb.Resume(job="j", worker=0, incarnation=(1 << 64) - 1))
    assert desk.job.roster.members[0].incarnation == kept


def test_every_incarnation_of_before_is_told_to_come_back_whoever_has_its_number_by_now():
    """Whether a new coordinator knows it, knows it no more, or knows another process under its number."""
    desk = Desk(3, min_workers=1)
    roll_back(desk, saved(0, 1, num_workers=3))
    come_back(desk, desk.job.roster.members[0])
    desk.job.roster.members[1].incarnation = FLOOR  # it is told to come back, and has not
    for worker in range(3):
        over = desk.job.over(worker, FLOOR)
        assert isinstance(over, RolledBack)
        assert over.step == 7
    again = desk.job.roster.members[0]
    assert desk.job.over(0, again.incarnation) is None
    assert desk.job.over(2, 0) is None


def test_a_restored_job_that_nobody_comes_back_to_is_kept():
    """It is suspended, and who comes later goes on with it."""
    desk = Desk(1)
    roll_back(desk, saved(0, num_workers=1))
    desk.lose(*desk.job.roster.returning())
    assert desk.job.state == "suspended"
    late = desk.join(0)
    assert desk.told[0, late.incarnation][-1].joined.resumed


def test_one_who_had_finished_comes_back_too():
    """Its last steps are undone with those of the others."""
    desk = Desk(2)
    members = desk.start()
    desk.finish(members[0])
    roll_back(desk, saved(0, 1))
    back = [come_back(desk, member) for member in members]
    assert [first_step(desk, member) for member in back] == [7, 7]
    assert desk.job.state == "running"


def test_all_tables_start_again_in_their_order():
    desk = Desk(1)
    (member,) = desk.start(num_tables=2)
    roll_back(desk, saved(0, num_workers=1, tables=2))
    again = come_back(desk, member)
    desk.make(again, 1)
    replies = desk.told[0, again.incarnation]
    assert [it.table_started.step for it in replies if it.HasField("table_started")] == [7, 7]
    assert not any(it.table_made.upload for it in replies)


def test_who_does_not_come_back_leaves_its_share_to_the_others():
    """It is evicted while it returns, under the incarnation that it had before."""
    shares, two = EpochBook(), {0: Sharer(1), 1: Sharer(1)}
    for worker in two:
        shares.ask(0, 0, worker, 1, two, samples=40, mark=PieceMark(pace=4))
        shares.mark(0, worker, 1, PieceMark(step=1, samples=4, pace=4))
    to = dataclasses.replace(saved(0, 1, step=2), shares=tuple(shares.capture({0: 2, 1: 2})))
    desk = Desk(2)
    zero, one = desk.start()
    roll_back(desk, to)
    again = come_back(desk, zero)
    asks = (0, 0, 0, again.incarnation, desk.job.sharing())
    ours = desk.job.epochs.ask(*asks, mark=PieceMark(step=2))
    desk.lose(one)
    theirs = desk.job.epochs.ask(*asks, begins=False, mark=PieceMark(step=5, samples=12))
    assert [(it.place, it.first) for it in (ours, theirs)] == [(0, 8), (1, 8)]


async def test_thousands_who_never_come_back_go_together():
    """A new coordinator waits for those of the cut; nobody is told 4,096 times of 4,096."""
    many = 4096
    loop = asyncio.get_running_loop()
    shards = fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), loop)
    room = JobRunner(Job("j", "bsp", many), shards, lambda _: None)
    shares = EpochBook()
    shares.ask(0, 0, 0, 1, dict.fromkeys(range(many), Sharer(1)), samples=many)
    shares.mark(0, 0, 1, PieceMark(step=1, samples=1))
    to = dataclasses.replace(saved(*range(many), num_workers=many), shares=tuple(shares.capture({})))
    room.roll_back(to, floor=FLOOR)
    ordered: list[str | None] = []
    shards.order_each = _noted(ordered)  # type: ignore[method-assign]
    now_s = time.monotonic()
    for look in range(int(LEASE_S) + 10):  # who looks more seldom was held up, and gives the time back
        assert room.evict_silent(now_s + look) == []
    await room.settle()
    assert room.job.state is JobState.SUSPENDED
    assert ordered == ["start_table"]
    left = room.job.epochs.capture({})[0].left
    assert [place for place, _ in left] == list(range(many))


def _noted(ordered: list[str | None]):
    async def order_each(order: pb.Order, **_: object) -> list[pb.OrderDone]:
        ordered.append(order.WhichOneof("kind"))
        return [pb.OrderDone()]

    return order_each
