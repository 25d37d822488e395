"""A job's life, input by input: waiting, running, suspended, resumed, ended, dropped."""

from __future__ import annotations

import pytest

from ps_server.coordinator.epochs.epoch_book import ANY, Sharer
from ps_server.coordinator.jobs.member import MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.shard.shard import Shard
from ps_wire.errors import (
    ConfigurationRefused,
    JobFull,
    JobMismatch,
    JobUnknown,
    MemoryLimitExceeded,
    ServerNotReady,
    TableMismatch,
    WorkerNumberTaken,
)
from ps_wire.spec.table import MAX_TABLES
from ps_wire.v1 import coordinator_pb2 as pb
from tests.unit.ps_server.desk import Desk, table

STARTED = ["joined", "table_made", "table_started"]


def without_waiting(kinds):
    return [kind for kind in kinds if kind != "waiting"]


# -- joining and starting ------------------------------------------------------------------------------


def test_a_job_runs_once_all_workers_are_there_and_the_starters_weights_are_loaded():
    """And not before: each step until then says what is missing."""
    desk = Desk(2)
    zero = desk.join()
    desk.make(zero)
    assert desk.last(zero, "waiting").waiting.whom == "worker 1 to join"
    desk.upload(zero)
    assert desk.last(zero, "waiting").waiting.whom == "worker 1 to join"
    one = desk.join()
    assert desk.last(zero, "waiting").waiting.whom == "worker 1 to make table 0"
    assert desk.job.state is JobState.WAITING
    desk.make(one)
    assert desk.job.state is JobState.RUNNING
    assert desk.order_kinds == ["admit", "open_table", "admit", "start_table"]
    for member in (zero, one):
        assert without_waiting(desk.kinds(member)) == STARTED
        assert desk.last(member, "table_made").table_made.upload is (member is zero)
        assert desk.last(member, "table_started").table_started.step == 0


def test_the_order_of_joins_tables_and_uploads_does_not_matter():
    """The starter may come last."""
    desk = Desk(3)
    two, one, zero = desk.join(2), desk.join(1), desk.join()
    assert zero.worker == 0
    for member in (one, two, zero):
        desk.make(member)
    assert desk.last(two, "waiting").waiting.whom == "the weights of worker 0"
    desk.upload(zero)
    assert all(without_waiting(desk.kinds(member)) == STARTED for member in (zero, one, two))


def test_a_table_is_made_only_after_the_shards_have_opened_it():
    """Whoever made it meanwhile is told then, in one go."""
    desk = Desk(2)
    zero, one = desk.join(), desk.join()
    desk.held = True
    desk.make(zero)
    desk.make(one)
    assert desk.job.num_tables == 1
    assert "table_made" not in desk.kinds(zero) + desk.kinds(one)
    desk.held = False
    desk.settle()
    assert "table_made" in desk.kinds(zero)
    assert "table_made" in desk.kinds(one)


def test_more_tables_start_one_by_one_while_the_job_runs():
    """A later table waits for all to make it, too."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.make(zero, 1)
    desk.upload(zero, 1)
    assert desk.last(zero, "waiting").waiting.whom == "worker 1 to make table 1"
    desk.make(one, 1)
    for member in (zero, one):
        assert desk.last(member, "table_started").table_started.table == 1


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"consistency": "asp"}, JobMismatch),
        ({"num_workers": 3}, JobMismatch),
        ({"nonfinite": "skip"}, JobMismatch),
        ({"worker": 0}, WorkerNumberTaken),
        ({"worker": 2}, JobFull),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_and_changes_nothing(wanted, error):
    """Another consistency or size, a number that is taken or is none."""
    desk = Desk(2)
    desk.join()
    with pytest.raises(error):
        desk.join(**wanted)
    assert desk.order_kinds == ["admit"]
    assert len(desk.job.roster.members) == 1


def test_tables_that_differ_are_refused_naming_the_first_difference():
    """The one who made it first sets it."""
    desk = Desk(2)
    zero, one = desk.join(), desk.join()
    desk.make(zero)
    with pytest.raises(TableMismatch, match=r"lr of param-group 0: the job has 0\.1, this worker has 0\.5"):
        desk.make(one, lr=0.5)
    with pytest.raises(TableMismatch, match="shape of parameter 'w'"):
        desk.make(one, numel=5)
    desk.make(one)


def test_tables_come_in_order_and_are_bounded():
    """A worker makes its next table, and at most `MAX_TABLES`."""
    desk = Desk(1)
    (zero,) = desk.start()
    for number in (0, 2):
        with pytest.raises(ConfigurationRefused, match="its next is 1"):
            desk.make(zero, number)
    zero.num_tables = MAX_TABLES
    with pytest.raises(ConfigurationRefused, match="of at most 64"):
        desk.make(zero, MAX_TABLES)


def test_only_the_starter_uploads_and_only_once():
    """Anybody else, or a table that there is not, is refused."""
    desk = Desk(2)
    zero, one = desk.join(), desk.join()
    with pytest.raises(ConfigurationRefused, match="not asked for table 0's weights"):
        desk.upload(zero)
    desk.make(zero)
    with pytest.raises(ConfigurationRefused):
        desk.upload(one)
    desk.upload(zero)
    with pytest.raises(ConfigurationRefused):
        desk.upload(zero)


def test_a_shard_that_refuses_the_member_tells_it_and_frees_the_number():
    """The job is as before; the worker may try again."""
    desk = Desk(2)
    desk.held = True
    zero = desk.join(0)
    desk.carry_out(ServerNotReady("shard 1 is gone"))
    desk.held = False
    desk.settle()
    assert isinstance(desk.error(zero), ServerNotReady)
    assert zero.state is MemberState.LOST
    assert desk.job.forgotten
    assert desk.join(0).incarnation == 2


def test_a_refused_admission_of_one_who_is_gone_concerns_nobody():
    """Neither that one nor a later incarnation is told."""
    desk = Desk(2)
    desk.held = True
    zero = desk.join(0)
    desk.lose(zero)
    again = desk.join(0)
    desk.carry_out(ServerNotReady("shard 1 is gone"))
    desk.held = False
    desk.settle()
    assert desk.kinds(zero) == ["refused"]
    assert desk.kinds(again) == ["joined"]


def test_a_table_that_does_not_fit_is_refused_to_all():
    """Everybody is told why, leaves, and the job is forgotten."""
    desk = Desk(2)
    zero, one = desk.join(), desk.join()
    desk.held = True
    desk.make(zero)
    desk.carry_out(MemoryLimitExceeded("needs 9 bytes", needed=9))
    desk.held = False
    desk.settle()
    for member in (zero, one):
        assert isinstance(desk.error(member), MemoryLimitExceeded)
        assert desk.error(member).facts == {"needed": 9}
    assert desk.job.forgotten
    assert desk.order_kinds[-1] == "drop_job"


# -- leaving and losing --------------------------------------------------------------------------------


def test_before_the_start_a_job_lives_as_long_as_somebody_is_there():
    """Then it is dropped, and another may begin from nothing."""
    desk = Desk(2)
    zero, one = desk.join(), desk.join()
    desk.make(zero)
    desk.leave(one)
    assert desk.kinds(one)[-1] == "left"
    assert desk.last(zero, "waiting").waiting.whom.startswith("worker 1 to join")
    desk.lose(zero)
    assert desk.job.forgotten
    assert desk.order_kinds[-1] == "drop_job"
    assert desk.job.num_tables == 0


def test_who_leaves_a_running_job_leaves_the_others_running():
    """Its removal comes before its farewell."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.held = True
    desk.leave(one)
    assert one.state is MemberState.LEAVING
    assert "left" not in desk.kinds(one)
    desk.held = False
    desk.settle()
    assert desk.kinds(one)[-1] == "left"
    assert desk.job.state is JobState.RUNNING
    assert "refused" not in desk.kinds(zero)


def test_a_lost_member_is_lost_once():
    """Its stream may end after it was told."""
    desk = Desk(1)
    (zero,) = desk.start()
    desk.lose(zero, zero)
    assert desk.order_kinds.count("evict") == 1


@pytest.mark.parametrize("going", ["leave", "finish"])
def test_who_vanishes_while_going_has_gone(going):
    """Its removal is under way already; the fence follows, and finds nothing to drop."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.held = True
    getattr(desk, going)(one)
    desk.lose(one)
    desk.held = False
    desk.settle()
    assert one.state is MemberState.LOST
    assert "refused" not in desk.kinds(zero)
    assert desk.job.state is JobState.RUNNING
    assert desk.order_kinds.count("remove") == 1


def test_a_worker_may_leave_before_it_has_joined():
    """The shards admit it, then remove it."""
    desk = Desk(1)
    desk.held = True
    zero = desk.join()
    desk.leave(zero)
    desk.held = False
    desk.settle()
    assert desk.kinds(zero) == ["left"]
    assert desk.job.forgotten


def test_an_outcome_for_an_older_incarnation_changes_nothing():
    """Its number is another's by now."""
    desk = Desk(2)
    desk.join(1)
    desk.held = True
    zero = desk.join(0)
    desk.lose(zero)
    again = desk.join(0)
    desk.held = False
    desk.settle()
    assert desk.kinds(zero) == ["refused"]
    assert desk.kinds(again) == ["joined"]


def test_an_admission_of_the_incarnation_before_lets_nobody_in():
    """Its successor is being admitted, too, and waits for its own."""
    desk = Desk(2)
    desk.held = True
    first = desk.join(0)
    desk.lose(first)
    again = desk.join(0)
    done = desk.job.done(pb.Order(admit=pb.AdmitMember(worker=0, incarnation=first.incarnation)), {})
    assert done == []
    assert again.state is MemberState.JOINING


def test_a_table_that_is_about_to_start_is_not_started_again():
    """Though what becomes of a worker that has left is heard between the two."""
    desk = Desk(3, min_workers=1)
    zero, one = (desk.join(number) for number in (0, 1))
    for member in (zero, one):
        desk.make(member)
    desk.held = True
    desk.leave(one)
    desk.upload(zero)
    while desk.under_way:
        desk.carry_out()
    assert desk.order_kinds.count("start_table") == 1


def test_each_eviction_is_of_an_epoch_of_its_own():
    """Above all changes before it: reports with the worker in them are told from those without."""
    desk = Desk(3)
    members = desk.start()
    epochs = []
    for member in members[:2]:
        before = desk.job.phase.membership_epoch
        desk.lose(member)
        evicted = desk.orders[-1].evict
        assert evicted.worker == member.worker
        assert before < evicted.epoch
        epochs.append(evicted.epoch)
    assert epochs == sorted(set(epochs))


def test_unknown_orders_have_no_outcome():
    """Nothing follows from a drop."""
    assert Desk(1).job.done(pb.Order(drop_job=pb.DropJob(job="j")), {}) == []


def test_a_lost_state_is_told_and_the_job_begins_from_nothing():
    """`drop` gives up tables, clocks and who had finished: a later job of this name is a new one."""
    desk = Desk(2, shards=[Shard(index=0, num_shards=1, memory_limit_bytes=None)])
    zero, one = desk.start()
    desk.job.starts.first_steps.saw({0: 5})
    desk.finish(zero)
    desk.do([*desk.job.tell_all(JobUnknown("shard 1 was started again")), *desk.job.drop()])
    assert isinstance(desk.error(zero), JobUnknown)
    assert isinstance(desk.error(one), JobUnknown)
    assert desk.job.forgotten
    zero, one = desk.start()
    assert desk.job.state is JobState.RUNNING
    assert desk.last(zero, "table_started").table_started.step == 0


@pytest.mark.parametrize("kind", ["open_table", "start_table"])
def test_an_order_that_outlives_its_job_changes_nothing(kind):
    """The state was given up while the order was under way."""
    desk = Desk(1)
    zero = desk.join()
    if kind == "start_table":
        desk.make(zero)
    desk.held = True
    desk.do(desk.job.make_table(zero, table()) if kind == "open_table" else desk.job.starts.uploaded(zero, 0))
    desk.do([*desk.job.tell_all(JobUnknown("gone")), *desk.job.drop()])
    desk.held = False
    desk.settle()
    assert kind in desk.order_kinds
    assert desk.job.forgotten


def test_the_share_of_one_who_came_late_is_kept_once_it_has_asked():
    """Until then others take it: it may go on behind that epoch."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.lose(one)
    desk.join(1)
    book = desk.job.epochs
    assert desk.job.sharing() == {0: Sharer(zero.incarnation), 1: Sharer(ANY)}
    book.once(0, 1, one.incarnation, 1, lambda: None)
    assert desk.job.sharing()[1] == Sharer(ANY)
    book.once(0, 1, one.incarnation + 1, 1, lambda: None)
    assert desk.job.sharing() == {0: Sharer(zero.incarnation), 1: Sharer(one.incarnation + 1)}
