"""What a step with backup workers takes, and where who is late goes on: one report after the other."""

from __future__ import annotations

from ps_server.agreement.attendance import Attendance, CatchUp, Choose, Late
from ps_server.agreement.chooser import Chooser
from ps_server.agreement.gate import gate_of
from ps_server.agreement.tally import CellStanding, StepTally
from ps_server.shard.partition.backup_machine import BackupStepMachine
from ps_server.shard.partition.inputs import Contribution
from ps_wire.spec.consistency import BSP

ALL = frozenset({0, 1, 2})
BOTH = (0, 1)  # shards
LATE = Late(worker=2, incarnation=1, clock=0)


def report(step: int, *ready: int, late: frozenset[Late] = frozenset()) -> Attendance:
    return Attendance(step=step, ready=frozenset(ready), members=ALL, wanted=True, late=late)


def chosen(step: int, *workers: int) -> Choose:
    return Choose(step=step, workers=frozenset(workers))


def test_a_step_takes_whose_pushes_are_whole_on_all_shards():
    """Those of two of three workers are enough."""
    chooser = Chooser(1, BOTH)
    assert chooser.reported(0, report(0, 0, 1, 2)) == []
    assert chooser.reported(1, report(0, 0)) == []
    assert chooser.reported(1, report(0, 0, 2)) == [(chosen(0, 0, 2), BOTH)]


def test_nothing_is_chosen_while_members_change():
    """What has been reported meanwhile counts when the change has ended."""
    chooser = Chooser(1, BOTH)
    chooser.hold()
    assert chooser.reported(0, report(0, 0, 1)) == []
    assert chooser.reported(1, report(0, 0, 1)) == []
    assert chooser.release() == [(chosen(0, 0, 1), BOTH)]


def test_a_choice_that_a_shard_has_not_heard_is_said_to_it_again():
    """Its report is of a step that is chosen; the other shard is not told again."""
    chooser = Chooser(1, BOTH)
    chooser.reported(0, report(0, 0, 1))
    chooser.reported(1, report(0, 0, 1))
    assert chooser.reported(1, report(0, 0, 1)) == [(chosen(0, 0, 1), (1,))]
    assert chooser.reported(1, report(1)) == []


def test_who_is_late_goes_on_behind_the_newest_choice_once_all_shards_have_told_of_it():
    """Until then something of it may be under way."""
    chooser = Chooser(1, BOTH)
    chooser.reported(0, report(0, 0, 1))
    chooser.reported(1, report(0, 0, 1))
    late = frozenset({LATE})
    assert chooser.reported(0, report(1, late=late)) == []
    assert chooser.reported(1, report(1, late=late)) == [(CatchUp(late=LATE, step=1), BOTH)]
    assert chooser.reported(1, report(1, late=late)) == [(CatchUp(late=LATE, step=1), (1,))]


def test_who_is_late_when_a_step_is_chosen_goes_on_behind_that_one():
    """Both come out together, the choice first."""
    chooser = Chooser(1, (0,))
    found = chooser.reported(0, report(0, 0, 1, late=frozenset({LATE})))
    assert found == [(chosen(0, 0, 1), (0,)), (CatchUp(late=LATE, step=1), (0,))]


def standing(step: int, *here: int) -> CellStanding:
    return CellStanding(step=step, here=frozenset(here), members=ALL, ahead=False, late=frozenset())


def test_no_report_is_made_while_a_choice_is_carried_out():
    """Cell after cell: some stand at the next step, some at the one that was chosen."""
    quorum = StepTally(2, 1)
    quorum.stands(0, standing(0, 0, 1))
    quorum.stands(1, standing(0, 0))
    assert quorum.poll() is None, "worker 1 is not everywhere"
    quorum.stands(1, standing(0, 0, 1))
    assert quorum.poll() == report(0, 0, 1)
    quorum.stands(0, standing(1))
    assert quorum.poll() is None
    assert quorum.now() is None
    quorum.stands(0, standing(1, 0, 1))
    assert quorum.now() is None
    quorum.stands(1, standing(1, 0, 1))
    assert quorum.poll() == report(1, 0, 1)


def push(worker: int, step: int) -> Contribution:
    return Contribution(worker=worker, incarnation=1, step=step, payload="g")


def test_a_push_of_a_step_that_is_chosen_comes_too_late():
    """Also before the step has closed: it is dropped, and its worker is late."""
    machine = BackupStepMachine(gate_of(BSP(1)))
    for worker in ALL:
        machine.join(worker, 1, 0, 0.0)
    machine.push(push(0, 0), 0.0)
    machine.push(push(1, 0), 0.0)
    machine.choose(0, frozenset({0, 1}), 0.0)
    machine.push(push(2, 0), 0.0)
    assert [item.worker for item in machine.staged] == [0, 1]
    assert machine.ledgers[2].dropped == 1
    machine.decide(0, frozenset({0, 1}), 1.0, 0.0)
    assert machine.version == 1
