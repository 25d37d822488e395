"""What a coordinator that is stopped hands to its successor: all that it knew, through JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import pytest

from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.epochs.epoch_book import ANY, EpochBook, Sharer
from ps_server.coordinator.fleet.ballots import Ballots
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.fleet.registry import ShardRegistry
from ps_server.coordinator.jobs.dropped import DroppedNames
from ps_server.coordinator.jobs.first_steps import FirstSteps
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.loops import Loops
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.phase import Phase
from ps_server.coordinator.jobs.roster import Roster
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.jobs.runners import JobRunners
from ps_server.coordinator.jobs.tables import TableRecord
from ps_server.coordinator.state_store import StateStore
from ps_server.shard.shard import Shard
from ps_wire.errors import JobDropped
from ps_wire.spec.epochs import PieceMark
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.desk import Desk, alone, table
from tests.unit.ps_server.fleets import fleet_of
from tests.unit.ps_server.tables import group, table_spec

NO_FLEET = cast(Fleet, None)  # nothing is ordered here


def dealt() -> EpochBook:
    """One epoch has ended and nobody has said so, one is under way with a rest, one was just begun."""
    shares, two = EpochBook(), {0: Sharer(1), 1: Sharer(1, 2)}
    shares.ask(3, 0, 0, 1, two, samples=5)
    shares.mark(3, 0, 1, PieceMark(step=1, samples=1))
    shares.end()
    for epoch in (0, 1):
        for worker in two:
            mark = PieceMark(step=10 * epoch, samples=100 * epoch, pace=10)
            shares.ask(0, epoch, worker, 1, two, samples=200, mark=mark)
            shares.skip(0, worker, 1, 10 * epoch)
            shares.mark(0, worker, 1, PieceMark(step=10 * epoch + 1, samples=10, pace=10))
    shares.gone(1, 1, 14)
    shares.ask(0, 1, 0, 1, two, begins=False, mark=PieceMark(step=20, samples=90))
    shares.ask(1, 0, 0, 1, {0: Sharer(1), 2: Sharer(ANY)}, samples=7)
    return shares


def test_epochs_that_are_under_way_are_handed_on_through_json():
    """Each field: a successor goes on as if it had dealt them itself."""
    shares, successor = dealt(), EpochBook()
    facts = json.loads(json.dumps(shares.dump()))
    successor.load(facts)
    assert shares._live
    assert shares._ended
    assert successor == shares
    asked = [
        it.ask(0, 2, 0, 1, {0: Sharer(1)}, mark=PieceMark(step=30, samples=90)) for it in (shares, successor)
    ]
    assert asked[0] == asked[1]


def there_and_back(room: JobRunner, states: StateStore) -> tuple[JobRunner, StateStore]:
    facts = json.loads(json.dumps(room.dump()))
    again, kept = alone(Job("j", "bsp", 2)), StateStore()
    again.load(facts)
    kept.load(states.dump())
    assert json.loads(json.dumps(again.dump())) == facts
    return again, kept


def test_a_job_its_members_and_what_they_have_not_heard_are_handed_on_through_json():
    desk = Desk(2)
    members = desk.start()
    desk.job.epochs = dealt()
    states = StateStore()
    states.put("j", "start/0", b"weights")
    states.put("j", "empty", b"")

    async def run() -> None:
        room = alone(desk.job)
        for member in members:
            room.admit(member, ())
        box = room.mailboxes[0, 1]
        box.put(pb.MemberReply(waiting=pb.Waiting(whom="worker 1")))
        again, kept = there_and_back(room, states)
        assert again.job.epochs == desk.job.epochs
        assert again.job.roster.members == desk.job.roster.members
        assert again.mailboxes[0, 1].session == box.session
        assert again.mailboxes[0, 1].attach().get_nowait().waiting.whom == "worker 1"
        assert kept.dump() == states.dump()

    asyncio.run(run())


NEWER = {"ends": [], "collectives": [], "agreed": ["shares"], "last_epoch": ["plain"]}


def test_what_a_release_before_has_handed_off_is_taken_up():
    """Its format is the same; what it did not know is as at the start of a job. Else an upgrade is a kill."""
    desk = Desk(2)
    desk.start()
    desk.job.epochs = dealt()

    async def run() -> None:
        room, again = alone(desk.job), alone(Job("j", "bsp", 2))
        known = json.loads(json.dumps(room.dump()))
        for name, path in NEWER.items():
            place = known
            for key in path:
                place = place[key]
            del place[name]
        again.load(known)
        assert again.job.epochs == desk.job.epochs
        assert again.job.roster.members == desk.job.roster.members

    asyncio.run(run())


SINCE = ', "stopped_for_good": false'
RECORDED = Path(__file__).with_name("handed_off.json")


def test_what_the_build_before_these_classes_has_handed_off_is_taken_up_and_handed_on_the_same():
    """Recorded of jobs that run, wait, went back, are suspended, or end: no key or value is another one.

    But what it did not know, which is as at the start of a job.
    """
    rooms = json.loads(RECORDED.read_text())["rooms"]

    async def run() -> None:
        runners = JobRunners(NO_FLEET, StateStore(), DroppedNames())
        runners.load(rooms)
        dumped = json.dumps(runners.dump())
        assert dumped.count(SINCE) == len(rooms)
        assert json.loads(dumped.replace(SINCE, "")) == rooms

    asyncio.run(run())


LEFT_OUT = {  # which fields, and why
    Phase: {"broken"},  # those who were told have to be gone
    Member: {"enters", "taken"},  # who was about to enter does so at once; heartbeats say more
    Roster: {"job", "num_workers"},  # in the job's spec
}
VALUES: tuple[Any, ...] = (
    Phase(),
    Loops(),
    FirstSteps(),
    Roster("j", 2),
    Member(worker=0, incarnation=1, host="h", pid=7),
    TableRecord(table()),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda it: type(it).__name__)
def test_every_field_is_handed_on(value):
    """Or is named here: whoever adds one is asked."""
    kept = {field.name for field in dataclasses.fields(value)} - LEFT_OUT.get(type(value), set())
    assert len(value.dump()) == len(kept)


def test_every_part_of_a_job_is_handed_on():
    """Or is in its spec."""
    of_spec = {"name", "consistency", "gate", "num_workers", "nonfinite", "min_workers"}
    by_parts = {
        "phase",
        "roster",
        "starts",
        "epochs",
        "calls",
        "loops",
        "ends",
        "_awaited",
        "_uploaders",
    }
    assert vars(Desk(2).job).keys() == of_spec | by_parts | {"ends", "_awaited", "_refused", "_uploaders"}


def test_what_the_build_before_had_decided_is_taken_up_and_handed_on_the_same():
    """Recorded of a scale, a choice and who goes on where: a shard may not have heard them."""
    recorded = json.loads(RECORDED.read_text())["shards"]
    ballots, registry = Ballots(2), ShardRegistry(Generations(None))
    clipped = table_spec("SGD", group(lr=1.0), shapes=((9000,),), clip_grad_norm=1.0)
    ballots.admitted(spec_pb2.Job(name="backup", consistency="bsp:backup=1", num_workers=3))
    ballots.opened("clipped", clipped, 11)
    ballots.opened("backup", dataclasses.replace(clipped, clip_grad_norm=None), 12)
    ballots.load(recorded)
    registry.load(recorded["standings"])
    assert {"standings": registry.dump(), **ballots.dump()} == recorded


def test_who_comes_back_to_a_job_that_was_dropped_hears_why_from_a_successor_too():
    """And the next job of the name gives none of its incarnations again."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        first, successor = (
            Coordinator(fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), loop))
            for _ in range(2)
        )
        try:
            first._dropped.note("j", 5)
            facts, blobs = first.dump()
            successor.load(json.loads(json.dumps(facts)), blobs)
            with pytest.raises(JobDropped):
                successor._members._resume(pb.Resume(job="j", worker=0, incarnation=5))
            room = successor._runners.of(Job("j", "bsp", 1).spec)
            member, _ = room.job.join(room.job.spec, worker=0, host="h", pid=1)
            assert member.incarnation == 6
        finally:
            first.halt()
            successor.halt()

    asyncio.run(run())
