"""The stage of a step that a wrapped optimizer is in, and how it goes on from there: a table of transitions.

    no step     weights are here; hooks may copy and push
    sending     in `step()`: what has not left is leaving
    waiting     the weights of the next step were asked for, and `step()` waits for them
    arriving    the same, and `step()` has returned: the forward waits for them, module by module

Ctrl-C, an error or an eviction may end a call in any of them; `settle` goes on from wherever that was. It
must not know how gradients are sent, nor who is a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn

import torch

from ps_wire.errors import Evicted
from ps_worker.optimizer.arrival import Arrival
from ps_worker.optimizer.remote_state import refuse_copy
from ps_worker.optimizer.sender import Sender
from ps_worker.process import stopping
from ps_worker.step.step_host import StepHost


class Stage(Enum):
    """The stage of a step that an optimizer is in; the module's table has the transitions."""

    NO_STEP = "no step"
    SENDING = "sending"
    WAITING = "waiting"
    ARRIVING = "arriving"


TRANSITIONS: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.NO_STEP: (
        Stage.SENDING,
        Stage.NO_STEP,
    ),  # step(), sit_out(), abandon(); the worker has joined again
    Stage.SENDING: (Stage.WAITING, Stage.NO_STEP),  # all has left; an error, or the worker has joined again
    Stage.WAITING: (Stage.NO_STEP, Stage.ARRIVING),  # all weights are here; the forward waits for them
    Stage.ARRIVING: (Stage.NO_STEP,),  # all weights are here
}


class StepCycle:
    """The steps of one optimizer: it asks for weights and waits for them, and settles what was broken off.

    Attributes:
        stage: where in a step it is.
        step_number: steps taken, abstentions included.
        arrival: of the weights of the next step.
    """

    def __init__(self, model: torch.nn.Module, sender: Sender, host: StepHost, *, step_number: int) -> None:
        """Is in no step.

        Args:
            model: whose modules wait for weights.
            sender: of the optimizer's gradients.
            host: the worker.
            step_number: steps that were taken before.
        """
        self.stage = Stage.NO_STEP
        self.step_number = step_number
        self.arrival = Arrival(model, report=host.say_wait, settle=self.settle)
        self._model = model
        self._sender = sender
        self._host = host
        self._resume: torch.utils.hooks.RemovableHandle | None = None  # settles before the next forward

    def __getstate__(self) -> NoReturn:
        """Refuses copies: a model whose step was interrupted refers to this."""
        refuse_copy()

    # -- a step ----------------------------------------------------------------------------------------

    def begin_sending(self) -> None:
        """Enters the stage in which what has not left of the step leaves, or is abstained from."""
        self._enter(Stage.SENDING)

    def go_on(self) -> None:
        """All of the step has left: asks for the weights of the next, and waits, or has modules wait."""
        if self._sender.seen:
            self.arrival.plan()
        overlaps = self._sender.overlaps
        if overlaps and self.arrival.wanted and self._sender.may_go_on:
            self.arrival.expect()
            self._ask()
            stopping.step_ended()  # its pushes have left: they count, whatever the others do
            self._sender.wait_given_back()
            self.arrival.begin()
            self._begin()
            self._enter(Stage.ARRIVING)
        else:
            self._ask()
            stopping.step_ended()
            self._await()
            if overlaps:
                self.arrival.watch()

    def sit_out(self) -> None:
        """Takes a step with nothing to push, and waits for the weights of the next."""
        self._sender.check_acked()
        self.begin_sending()
        self._sender.sit_out()
        self._ask()
        stopping.step_ended()
        self._await()

    @torch.no_grad()
    def settle(self) -> None:
        """Waits for weights; of a step that was interrupted, what has not left abstains."""
        try:
            if self.stage is Stage.SENDING:
                self._sender.abstain_rest()
                self._ask()
            if self.stage in (Stage.WAITING, Stage.ARRIVING):
                self._await()
        except Evicted:
            self._host.rejoin()

    @torch.no_grad()
    def before_push(self) -> None:
        """A push of a step says that its weights are all here, and that nothing older is read any more."""
        if self.stage is Stage.ARRIVING:
            self._await()
            if self.arrival.late:  # at the end of this backward, which shows what its forward has read
                torch.autograd.Variable._execution_engine.queue_callback(self.check_read)

    def check_read(self) -> None:
        """Refuses gradients of parameters that a forward read before they were waited for."""
        self.arrival.check_read(self._sender.arrived)

    # -- what ends a step otherwise --------------------------------------------------------------------

    def break_off(self, error: BaseException) -> None:
        """After an error the script may step again; after Ctrl-C whoever goes on gets whole weights first."""
        if isinstance(error, Exception):
            if self.stage is Stage.SENDING:
                self._enter(Stage.NO_STEP)
        elif self.stage in (Stage.SENDING, Stage.WAITING) and self._resume is None:
            self._resume = self._model.register_forward_pre_hook(self._settle_first)

    def abandon(self) -> None:
        """Gives up a step whose backward was interrupted: what has left counts, the rest abstains."""
        if self.stage is Stage.NO_STEP and self._sender.left:
            self.begin_sending()
        self.settle()
        self._sender.forget_arrivals()

    def reenter(self, steps: Mapping[int, int]) -> None:
        """The worker has joined again, and the weights are those of its first step there, by table."""
        self._sender.reenter(steps)
        self.step_number = steps[self._sender.tables[0].started.number]
        self.arrival.replace()
        self._arrived(begin=True)

    def release(self, limit_s: float) -> None:
        """Before the end: what has not left of a step under way abstains, and no gate waits for it."""
        if self.stage is Stage.SENDING or (self.stage is Stage.NO_STEP and self._sender.left):
            self._sender.release(limit_s)
        if self.stage is Stage.ARRIVING:
            self.arrival.stay(limit_s)
            self._enter(Stage.NO_STEP)

    def detach(self) -> None:
        """Takes the hooks off the model."""
        self.arrival.take_off()
        if self._resume is not None:
            self._resume.remove()

    # -- inside ----------------------------------------------------------------------------------------

    def _enter(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} to {stage}"
        self.stage = stage

    def _ask(self) -> None:
        """May be called again where it was interrupted, and so may `_await`."""
        assert Stage.WAITING in TRANSITIONS[self.stage], self.stage
        self.arrival.before_asking()
        for table in self._sender.tables:
            table.pull()
        self.step_number, self.stage = (
            self.step_number + 1,
            Stage.WAITING,
        )  # together: no Ctrl-C comes between

    def _await(self) -> None:
        self.arrival.wait()
        self._arrived(begin=self.stage is Stage.WAITING)

    def _arrived(self, *, begin: bool) -> None:
        """The weights of the next step are there; `begin`: they say which step it is."""
        self.arrival.finish()
        if begin:
            self._begin()
        self._enter(Stage.NO_STEP)
        if self._resume is not None:
            self._resume.remove()
            self._resume = None

    def _begin(self) -> None:
        self._sender.begin(wants_parts=self.arrival.wanted)
        self.step_number = self._sender.tables[0].step

    def _settle_first(self, *_: Any) -> None:
        self.settle()
