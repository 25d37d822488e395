"""Where in a step a wrapped optimizer is, and how it goes on from there; its base.

    no step     weights are here; hooks may copy and push
    sending     in `step()`: what has not left is leaving
    waiting     the weights of the next step were asked for, and `step()` waits for them
    arriving    the same, and `step()` has returned: the forward waits for them, module by module

Ctrl-C, an error or an eviction may end a call in any of them; `settle` goes on from wherever that was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ps_wire.errors import Evicted
from ps_worker.optimizer.arrival import Arrival
from ps_worker.optimizer.sender import Sender

NO_STEP, SENDING, WAITING, ARRIVING = "no step", "sending", "waiting", "arriving"


class StepCycle(Sender):
    """See the module's docstring."""

    _arrival: Arrival
    _model: torch.nn.Module
    _rejoin: Callable[[], None]
    _resume: torch.utils.hooks.RemovableHandle | None
    _stage: str

    @torch.no_grad()
    def settle(self) -> None:
        """Waits for weights; of a step that was interrupted, what has not left abstains."""
        try:
            if self._stage == SENDING:
                for table in self._tables:
                    table.abstain()
                self._ask()
            if self._stage in (WAITING, ARRIVING):
                self._await()
        except Evicted:
            self._rejoin()

    @torch.no_grad()
    def abandon(self) -> None:
        """Gives up a step whose backward was interrupted, as by Ctrl-C in a notebook, and clears gradients.

        What has already left counts, the rest abstains. Waits for the weights of the next step, or raises why
        the job cannot go on.
        """
        if self._stage == NO_STEP and any(table.left for table in self._tables):
            self._stage = SENDING
        self.settle()
        for table in self._tables:
            table.forget_arrivals()
        torch.optim.Optimizer.zero_grad(self)

    def refresh(self) -> None:
        """Makes autograd, other devices and smaller dtypes see that the weights are new."""
        self._arrival.finish()

    # -- inside ----------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._arrival.before_asking()
        for table in self._tables:
            table.pull()
        self.step_number, self._stage = self.step_number + 1, WAITING

    def _await(self) -> None:
        """May be called again where it was interrupted, and so may `_ask`."""
        self._arrival.wait()
        self._arrived(begin=self._stage == WAITING)

    def _arrived(self, *, begin: bool) -> None:
        """The weights of the next step are there; `begin`: they say which step it is."""
        self.refresh()
        if begin:
            self._begin()
        self._stage = NO_STEP
        if self._resume is not None:
            self._resume.remove()
            self._resume = None

    def _begin(self) -> None:
        self._step_weight = None
        for table in self._tables:
            table.begin(self._mode)
        self.step_number = self._tables[0].step

    @torch.no_grad()
    def _before_push(self) -> None:
        """A push of a step says that its weights are all here, and that nothing older is read any more."""
        if self._stage == ARRIVING:
            self._await()
            if self._arrival.late:  # at the end of this backward, which shows what its forward has read
                torch.autograd.Variable._execution_engine.queue_callback(self._check_read)

    def _check_read(self) -> None:
        self._arrival.check_read({id(it) for table in self._tables for it in table.arrived})

    def _broken_off(self, error: BaseException) -> None:
        """After an error the script may step again; after Ctrl-C whoever goes on gets whole weights first."""
        if isinstance(error, Exception):
            self._stage = self._stage if self._stage in (WAITING, ARRIVING) else NO_STEP
        elif self._stage not in (NO_STEP, ARRIVING) and self._resume is None:
            self._resume = self._model.register_forward_pre_hook(self._settle_first)

    def _settle_first(self, *_: Any) -> None:
        self.settle()
