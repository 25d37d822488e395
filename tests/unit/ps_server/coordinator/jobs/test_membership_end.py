"""A job ends: workers finish, the last state is uploaded, readers come; or it is suspended, and resumed."""

from __future__ import annotations

import pytest

from ps_server.coordinator.jobs.member import MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.shard.shard import Shard
from ps_wire.errors import ConfigurationRefused, ServerNotReady, TableMismatch
from tests.unit.ps_server.desk import Desk, table


def ended(num_workers=1, *, with_state=True):
    """A desk whose job has ended, and its finished members."""
    desk = Desk(num_workers)
    members = desk.start()
    desk.finish(*members)
    if with_state:
        desk.upload_final(members[0])
    return desk, members


def suspended(num_workers=1, **clocks):
    """A desk whose job lost its workers while it ran."""
    desk = Desk(num_workers)
    members = desk.start()
    desk.clocks = clocks.get("clocks", {0: 12})
    desk.lose(*members)
    assert desk.job.state is JobState.SUSPENDED
    return desk


# -- finishing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_workers_finish_in_any_order_and_the_lowest_uploads(order):
    """Whoever finished waits, knowing for whom; when all have, worker 0 is asked and then all are told."""
    desk = Desk(3)
    members = desk.start()
    first, second, third = (members[number] for number in order)
    desk.finish(first)
    assert first.state is MemberState.FINISHED
    whom = desk.last(first, "waiting").waiting.whom
    assert second.holder in whom
    assert third.holder in whom
    desk.finish(second)
    assert desk.last(second, "waiting").waiting.whom == f"{third.holder} to finish"
    desk.finish(third)
    assert desk.job.state is JobState.RUNNING
    assert [("upload_final" in desk.kinds(member)) for member in members] == [True, False, False]
    desk.upload_final(members[0])
    assert desk.job.state is JobState.ENDED
    assert all(desk.last(member, "ended").ended.has_state for member in members)


def test_a_worker_that_leaves_does_not_keep_the_finished_waiting():
    """The last one that trains may also go without finishing."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.finish(one)
    desk.leave(zero)
    assert desk.kinds(one)[-1] == "upload_final"
    desk.upload_final(one)
    assert desk.kinds(one)[-1] == "ended"
    assert desk.kinds(zero)[-1] == "left"


def test_who_joins_while_the_last_state_is_on_its_way_trains_on():
    """The last one that trained is evicted; its next process comes before the job has ended."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.finish(zero)
    desk.lose(one)
    assert desk.kinds(zero)[-1] == "upload_final"
    again = desk.join(1)
    desk.upload_final(zero)
    assert desk.job.state is JobState.RUNNING
    assert desk.last(zero, "waiting").waiting.whom == f"{again.holder} to finish"
    desk.finish(again)
    assert desk.job.state is JobState.ENDED
    assert [desk.kinds(member)[-1] for member in (zero, again)] == ["ended", "ended"]


def test_who_joins_and_finishes_while_the_last_state_is_on_its_way_may_be_asked_for_it_too():
    """Both are: whichever comes first ends the job."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.finish(one)
    desk.lose(zero)
    again = desk.join(0)
    desk.finish(again)
    assert [desk.kinds(member)[-1] for member in (one, again)] == ["upload_final", "upload_final"]
    desk.upload_final(one)
    assert desk.job.state is JobState.ENDED
    desk.upload_final(again)
    assert [desk.kinds(member).count("ended") for member in (one, again)] == [1, 1]


def test_a_finished_workers_death_holds_nobody_up():
    """While others train it is not missed; as the uploader, the next one is asked."""
    desk = Desk(3)
    zero, one, two = desk.start()
    desk.finish(zero, one)
    desk.lose(zero)
    assert desk.job.state is JobState.RUNNING
    assert "refused" not in desk.kinds(two)
    desk.finish(two)
    assert desk.kinds(one)[-1] == "upload_final"
    desk.lose(one)
    assert desk.kinds(two)[-1] == "upload_final"
    desk.lose(two)
    assert desk.job.state is JobState.ENDED
    reader = desk.join()
    assert desk.last(reader, "joined").joined.ended
    desk.finish(reader)
    assert not desk.last(reader, "ended").ended.has_state


def test_only_the_one_asked_uploads_the_last_state():
    """Another finished worker, or one that trains, is refused."""
    desk = Desk(2)
    zero, one = desk.start()
    with pytest.raises(ConfigurationRefused, match="not asked for the final state"):
        desk.upload_final(zero)
    desk.finish(zero, one)
    with pytest.raises(ConfigurationRefused):
        desk.upload_final(one)


def test_a_worker_finishes_once():
    """Nor does one finish that leaves."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.finish(zero)
    with pytest.raises(ConfigurationRefused, match="is finished, it cannot finish"):
        desk.finish(zero)
    desk.leave(one)
    with pytest.raises(ConfigurationRefused, match="is left"):
        desk.finish(one)


def test_an_evicted_worker_does_not_keep_the_finished_waiting():
    """Their result is what is there without it."""
    desk = Desk(2)
    zero, one = desk.start()
    desk.finish(zero)
    desk.lose(one)
    assert desk.kinds(zero)[-1] == "upload_final"


def test_who_has_finished_may_leave():
    """It is told so at once: no order is needed."""
    desk, (zero,) = ended()
    desk.leave(zero)
    assert desk.kinds(zero)[-1] == "left"
    assert desk.job.state is JobState.ENDED
    assert not desk.job.forgotten


# -- readers -------------------------------------------------------------------------------------------


def test_a_reader_makes_the_tables_and_gets_the_result():
    """No upload, no gate: made and started at once, and it ends when it likes."""
    desk, members = ended(2)
    desk.leave(*members)
    reader = desk.join(1)
    assert reader.incarnation == 2
    assert desk.orders[-1].admit.reader
    desk.make(reader)
    assert not desk.last(reader, "table_made").table_made.upload
    desk.finish(reader)
    assert desk.kinds(reader) == ["joined", "table_made", "table_started", "ended"]
    assert desk.last(reader, "ended").ended.has_state
    desk.leave(reader)
    assert desk.kinds(reader)[-1] == "left"


def test_a_reader_cannot_bring_another_table():
    """The job has what it has."""
    desk, _ = ended(2)
    desk.lose(*desk.job.roster.present())
    reader = desk.join()
    with pytest.raises(TableMismatch):
        desk.make(reader, numel=9)
    desk.make(reader)
    with pytest.raises(ConfigurationRefused, match="has 1 tables, not 2"):
        desk.make(reader, 1)


def test_a_readers_death_is_nobodys_loss():
    """Nothing is removed: it was in no gate."""
    desk, (zero,) = ended()
    desk.lose(zero)
    removals = desk.order_kinds.count("remove")
    reader = desk.join()
    desk.lose(reader)
    assert desk.order_kinds.count("remove") == removals
    assert desk.job.state is JobState.ENDED


# -- suspended and resumed -----------------------------------------------------------------------------


def test_a_suspended_job_goes_on_with_whoever_comes_first():
    """Nobody uploads, and nobody is waited for: each enters at the step that the shards name."""
    desk = suspended(2, clocks={0: 12})
    zero = desk.join()
    assert desk.job.state is JobState.RUNNING
    assert desk.last(zero, "joined").joined.resumed
    desk.make(zero)
    assert not desk.last(zero, "table_made").table_made.upload
    assert desk.last(zero, "table_started").table_started.step == 12
    one = desk.join()
    desk.clocks = {0: 13}
    desk.make(one)
    assert desk.last(one, "table_started").table_started.step == 13
    assert desk.order_kinds.count("open_table") == 1
    desk.finish(zero, one)
    desk.upload_final(zero)
    assert desk.job.state is JobState.ENDED


def test_a_resumed_job_that_loses_its_workers_before_the_start_keeps_its_state():
    """It is suspended again, as often as it takes."""
    desk = suspended(2)
    for _ in range(2):
        zero = desk.join()
        assert desk.last(zero, "joined").joined.resumed
        desk.make(zero)
        desk.leave(zero)
        assert desk.job.state is JobState.SUSPENDED
        assert not desk.job.forgotten


def test_a_table_that_was_being_made_is_made_again():
    """All vanish before its weights were there: who comes back makes it anew, on the shards, too."""
    shards = [Shard(index=index, num_shards=2, memory_limit_bytes=None) for index in range(2)]
    desk = Desk(2, shards=shards)
    members = desk.start()
    for member in members:
        desk.make(member, 1)
    desk.lose(*members)
    assert desk.job.state is JobState.SUSPENDED
    members = [desk.join(), desk.join()]
    for number in (0, 1):
        for member in members:
            desk.make(member, number)
    assert desk.last(members[0], "table_made").table_made.upload
    desk.upload(members[0], 1)
    assert all(desk.kinds(member).count("table_started") == 2 for member in members)
    assert not desk.refusals


def test_leaving_in_order_suspends_too():
    """Nobody finished, so there is no result; the state stays."""
    desk = Desk(2)
    desk.leave(*desk.start())
    assert desk.job.state is JobState.SUSPENDED


# -- shards that do not answer -------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["leave", "finish"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_removal_that_fails_does_not_leave_the_job_running_for_nobody(what, num_workers):
    """All are told, go, and the job can be taken up again."""
    desk = Desk(num_workers)
    members = desk.start()
    desk.held = True
    getattr(desk, what)(members[0])
    while desk.under_way:
        desk.carry_out(ServerNotReady("shard 1 is gone"))
    assert all(isinstance(desk.error(member), ServerNotReady) for member in members)
    assert not desk.job.roster.present()
    desk.held = False
    assert desk.join(0).state is MemberState.JOINED


@pytest.mark.parametrize("kind", ["open_table", "start_table"])
def test_nobody_joins_those_whose_table_failed(kind):
    """A newcomer would wait for ever: it is told the error, until all are gone and the job begins anew."""
    desk = Desk(2)
    zero = desk.join(0)
    if kind == "start_table":
        one = desk.join(1)
        desk.make(zero)
        desk.make(one)
        desk.leave(one)
        again = desk.join(1)
        desk.make(again)
    desk.held = True
    desk.do(desk.job.make_table(zero, table()) if kind == "open_table" else desk.job.starts.uploaded(zero, 0))
    desk.carry_out(ServerNotReady("shard 1 is gone"))
    if kind == "start_table":
        desk.lose(again)
    with pytest.raises(ServerNotReady):
        desk.join(1)
    desk.held = False
    desk.settle()
    assert isinstance(desk.error(zero), ServerNotReady)
    desk.start()
    assert desk.job.state is JobState.RUNNING


def test_a_worker_that_vanishes_while_the_first_table_starts_is_not_waited_for():
    """All were there: the job has begun."""
    desk = Desk(2)
    zero, one = desk.join(), desk.join()
    desk.make(zero)
    desk.make(one)
    desk.held = True
    desk.upload(zero)
    desk.lose(one)
    desk.held = False
    desk.settle()
    assert desk.job.state is JobState.RUNNING
    assert desk.last(zero, "table_started").table_started.step == 0


# -- notices -------------------------------------------------------------------------------------------


def test_a_job_that_is_stopped_ends_after_the_newest_epoch_though_another_began_an_older_one_since():
    desk = Desk(2)
    first, second = desk.start()
    assert desk.job.loops.begin(2)
    assert desk.job.loops.begin(1)
    (told,) = desk.job.stop(second, "enough")
    assert (told.worker, told.incarnation) == (first.worker, first.incarnation)
    assert desk.job.loops.last == 2
    assert desk.job.loops.begin(2)
    assert not desk.job.loops.begin(3)
