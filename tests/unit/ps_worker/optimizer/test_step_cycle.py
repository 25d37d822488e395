"""The stages of a step, by a cycle whose optimizer has no table: its transitions, and what ends one."""

from __future__ import annotations

import copy

import pytest
import torch

from ps_wire.errors import UsageError
from ps_worker.optimizer.sender import Sender
from ps_worker.optimizer.step_cycle import TRANSITIONS, Stage, StepCycle
from ps_worker.optimizer.table_gradients import Mode
from ps_worker.step.batch_in_hand import BatchInHand
from ps_worker.step.first_push import FirstPush
from tests.component.hosts import Host


@pytest.fixture(name="cycle")
def _cycle() -> StepCycle:
    host = Host()
    sender = Sender(
        host,
        BatchInHand(),
        mode=Mode.WAITING,
        clip_norm=None,
        first=FirstPush(host, step=lambda: 0),
        divides=False,
        as_views=False,
    )
    return StepCycle(torch.nn.Linear(1, 1), sender, host, step_number=3)


def test_from_each_stage_there_is_a_way_back_to_no_step():
    """And each but that has been come to from another."""
    assert TRANSITIONS.keys() == set(Stage)
    assert all(Stage.NO_STEP in following for following in TRANSITIONS.values())
    assert {stage for following in TRANSITIONS.values() for stage in following} == set(Stage)


def test_a_step_does_not_begin_inside_another(cycle: StepCycle):
    cycle.begin_sending()
    with pytest.raises(AssertionError):
        cycle.begin_sending()


def test_after_an_error_while_gradients_leave_the_script_may_step_again(cycle: StepCycle):
    cycle.begin_sending()
    cycle.break_off(ValueError())
    assert cycle.stage is Stage.NO_STEP
    cycle.begin_sending()


def test_after_ctrl_c_while_gradients_leave_the_next_one_settles_the_step(cycle: StepCycle):
    cycle.begin_sending()
    cycle.break_off(KeyboardInterrupt())
    assert cycle.stage is Stage.SENDING
    assert cycle.step_number == 3


def test_a_cycle_is_not_copied(cycle: StepCycle):
    """A model whose step was interrupted refers to it."""
    with pytest.raises(UsageError, match=r"call worker\.synchronize\(\) before saving the model"):
        copy.deepcopy(cycle)
