"""The optimizer that a script gets from `Worker.wrap`: gradients leave, weights arrive.

It is what torch's schedulers, `GradScaler` and frameworks take for an optimizer, and owns the order of a step
over its tables (one, and one more for each `add_param_group`). How gradients leave is `gradients`' affair,
which weights the next forward waits for is `arrival`'s; `stages` knows where in a step it is.

A step here: hooks copy and push full buckets -> step(): checks, pushes the rest or abstains -> pull -> wait;
with overlap modules wait instead, in the next forward, and for the rest its first push, or step()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch._compile import _disable_dynamo

from ps_wire.errors import Evicted, UsageError
from ps_wire.spec.table import Hyperparameters
from ps_worker.model.hyperparameters import check_sizes, read_groups, sizes_of
from ps_worker.optimizer.arrival import Arrival
from ps_worker.optimizer.remote_state import StartedTable, StateAccess
from ps_worker.optimizer.step_cycle import ARRIVING, NO_STEP, SENDING, StepCycle
from ps_worker.optimizer.table_gradients import Mode, TableGradients, changed_error
from ps_worker.process import stopping
from ps_worker.process.one_thread import OneThread

START = {"auto": Mode.WATCHING, True: Mode.OVERLAPPING, False: Mode.WAITING}


class WrappedOptimizer(StepCycle):
    """Made by `Worker.wrap`. Its `param_groups` are the wrapped optimizer's own, so schedulers work on both.

    Attributes:
        step_number: steps taken, abstentions included.
        abstained: steps of these in which this worker had nothing to push.
        behind: steps that the script takes again, and that the job has: nothing of them leaves.
    """

    behind = 0

    # GradScaler then always calls step(), with `grad_scale` and `found_inf` set: a worker that found an
    # overflow has to abstain, or the others of a BSP job would wait for it for ever.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        *,
        model: torch.nn.Module,
        start_table: Callable[[list[dict[str, Any]]], StartedTable],
        access: StateAccess,
        overlap: Literal["auto"] | bool,
        clip_grad_norm: float | None,
        clipped_by_servers: bool,
        as_views: bool,
        weight: Callable[[], float],
        closed: Callable[[], str | None],
        log: Callable[[str], None],
        at_step: Callable[[int], None],
        rejoin: Callable[[], None],
        announce: Callable[[], bool] = lambda: False,
        waits: Callable[[str], None] | None = None,
        inside: OneThread | None = None,
    ) -> None:
        """See `Worker.wrap`.

        Args:
            inner: the script's own, of the model's parameters.
            model: the script's.
            start_table: makes and starts a table of these param-groups.
            access: to the optimizer's state on the servers.
            overlap: as in `wrap`.
            clip_grad_norm: to clip gradients to.
            clipped_by_servers: they clip the mean; else this worker its own gradients, before they leave.
            as_views: gradients lie in the memory that is pushed.
            weight: of a step's pushes in a BSP mean; called once a step.
            closed: why no step can be taken any more, or None.
            log: says something to the person at the terminal.
            at_step: called at the end of each step, with the number of steps taken.
            rejoin: joins again after an eviction or a rollback; calls `reenter`.
            announce: says that steps are undone, once after each rollback: True, or an error for the script.
            waits: says, now and then, what is waited for; default: `log`.
            inside: the worker's, whose calls one thread at a time is inside of.
        """
        self._open = False
        self._inside = inside or OneThread()
        self._at_step, self._rejoin, self._announce = at_step, rejoin, announce
        self._void = self._replays = False
        super().__init__(inner.param_groups, inner.defaults)
        self._open = True
        self.abstained = 0
        self._model, self._start_table, self._access = model, start_table, access
        self._started = []
        self._one_norm = clip_grad_norm is not None
        self._clip = None if clipped_by_servers else clip_grad_norm
        self._as_views = as_views
        self._mode = START[overlap] if self._clip is None else Mode.WAITING
        self._weight = weight
        self._step_weight: float | None = None
        self._closed = closed
        self._log = log
        self._syncing = True
        self._tables: list[TableGradients] = []
        self._arrival = Arrival(model, report=waits or log, settle=self.settle)
        self._sizes = sizes_of(self.param_groups)
        self._stage = NO_STEP
        self._resume: torch.utils.hooks.RemovableHandle | None = None
        self._add_table(list(range(len(self.param_groups))))
        self._take_over(inner)  # at last: one that was refused is as it was

    # -- what a script calls ---------------------------------------------------------------------------

    @property
    def overlaps(self) -> bool:
        """Whether gradients leave while backward is still running."""
        return self._mode is Mode.OVERLAPPING

    @property
    def sends(self) -> bool:
        """Whether a part of a step has left, and a part has not."""
        return self._stage == SENDING or any(table.left for table in self._tables)

    @property
    def dropping(self) -> bool:
        """Whether the batch in hand is dropped: the worker has joined again since it came."""
        return self._void

    @property
    def num_tables(self) -> int:
        """That its parameters are in: one, and one for each group that was added."""
        return len(self._tables)

    @property
    def waited_s(self) -> float:
        """Seconds in which training had nothing to do but wait for weights, in all."""
        return self._arrival.waited_s

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends this step's gradients and asks for the weights of the next.

        Without overlap it waits for them. With overlap each module waits for its own in the next forward, as
        does `state_dict()`; whoever reads a parameter elsewhere calls `worker.synchronize()` before.

        With a `GradScaler` its scale is taken out of the gradients as they leave; if it found an overflow,
        this worker abstains from the step and the others go on.

        Args:
            closure: evaluated exactly once, with gradients on, before anything is sent.

        Returns:
            What the closure returned.

        Raises:
            GradientChanged: a gradient or hyper-parameter changed after its bucket had left.
            WeightsChanged: the script wrote into a parameter since the last step.
            RolledBack: servers lost state, and this worker is back at a snapshot; see `connect`.
            UsageError: the worker has left, or the job had ended before it came.
            PsError: the job cannot go on; the message says why.
        """
        if (closed := self._closed()) is not None:
            raise UsageError(closed)
        try:
            with self._inside:
                return self._step(closure)
        except BaseException as error:
            self._broken_off(error)
            raise

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._inner._opt_called = True  # type: ignore[attr-defined]  # for a scheduler made before wrap
        arriving = self._stage == ARRIVING
        self.settle()
        if self._announce():
            return self._drop()
        if arriving:
            self._check_read()
        check_sizes(self._sizes, self.param_groups)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._void:
            return self._drop(loss)
        try:
            self._take_step()
        except Evicted:
            self._rejoin()
            self._announce()
            return self._drop(loss)
        self._at_step(self.step_number)
        return loss

    def _drop(self, loss: Any = None) -> Any:
        """No step is taken: what was computed is of a batch that another incarnation was given."""
        for table in self._tables:
            table.forget_arrivals()
        self.behind -= self._replays
        self._void = self._replays = False
        return loss

    def _take_step(self) -> None:
        for table in self._tables:
            table.exchange.wait_acked(())  # raises what has come meanwhile
        self._arrival.check()
        scale, overflow = self._scaling()
        self._decide(scaled=scale is not None or overflow is not None)
        self._stage = SENDING
        self._send(None if scale is None else self._unscale(scale), overflow=bool(overflow))
        if any(table.seen for table in self._tables):
            self._arrival.plan()
        if self.overlaps and self._arrival.wanted and not self._as_views:  # which a script may write to
            self._arrival.expect()
            self._ask()
            stopping.step_ended()  # its pushes have left: they count, whatever the others do
            self._arrival.begin()
            self._begin()
            self._stage = ARRIVING
        else:
            self._ask()
            stopping.step_ended()
            self._await()
            if self.overlaps:
                self._arrival.watch()

    @torch.no_grad()
    def sit_out(self, *, again: bool) -> None:
        """Takes a step with nothing to push, for the others; gradients that are there stay. Not in a step.

        Args:
            again: the script takes it again later, so that its schedules count it.

        Raises:
            Evicted: the worker has to join again.
            PsError: the job cannot go on.
        """
        try:
            for table in self._tables:
                table.exchange.wait_acked(())
            self._stage = SENDING
            self.abstained += 1
            for table in self._tables:
                table.abstain()
            self._ask()
            stopping.step_ended()
            self._await()
        except BaseException as error:
            self._broken_off(error)
            raise
        self.behind += again
        self._at_step(self.step_number)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Raises `GradientChanged` where gradients of this step have already left."""
        if self._stage != ARRIVING:  # else none has, and weights may go on arriving
            self._between_steps("zero_grad()")
        super().zero_grad(set_to_none)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first one outside sends the sum."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before
            for table in self._tables:
                table.forget_arrivals()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters in mid-run: they become a table of their own. All workers must do the same.

        Waits until all workers have added the group; the lowest live worker's values start it.

        Raises:
            UsageError: with `clip_grad_norm`; nothing is changed then. Or what `wrap` raises.
        """
        if not self._open:
            super().add_param_group(param_group)
            return
        if self._one_norm:
            raise UsageError(
                "clip_grad_norm is one norm over all parameters of wrap, and a param-group that is added to "
                "it is a table with a norm of its own: add param-groups before wrap, or wrap without "
                "clip_grad_norm"
            )
        self._between_steps("add_param_group()")
        super().add_param_group(param_group)
        try:
            self._add_table([len(self.param_groups) - 1])
        except BaseException:
            self.param_groups.pop()
            raise

    def _between_steps(self, what: str) -> None:
        self.settle()
        if any(table.left for table in self._tables):
            raise changed_error(f"{what} was called between backward and step()")

    # -- what a worker calls ---------------------------------------------------------------------------

    @property
    def clocks(self) -> dict[int, int]:
        """Table -> the step that is under way or comes next."""
        return {started.number: table.step for started, table in zip(self._started, self._tables)}  # noqa: B905 - a table may be on its way

    def reenter(self, steps: Mapping[int, int], *, stepped: Collection[int] = ()) -> None:
        """The worker has joined again, and the weights are those of its first step there, by table.

        The batch in hand is dropped: until `step()` has been called, or `renew`, nothing of it leaves.

        Args:
            steps: by table.
            stepped: tables that the script has stepped on this batch; its next `step()` is of another one.
        """
        self.behind, self._replays = 0, False
        self._void = self.sends or not self.clocks.keys() <= set(stepped)
        for started, table in zip(self._started, self._tables, strict=True):
            table.reenter(steps[started.number])
        self.step_number = steps[self._started[0].number]
        self._arrival.replace()
        self._arrived(begin=True)

    def renew(self) -> None:
        """What is computed from now on counts; what is there of a batch that is dropped is cleared."""
        if self._void:
            self.abandon()
            self._void = self._replays = False

    def replay(self) -> None:
        """A batch has come that was used already: a step of it that is behind sends nothing."""
        self._void = self._replays = self.behind > 0

    def release(self, limit_s: float) -> None:
        """Before the end: what has not left of a step under way abstains, and no gate waits for it."""
        if self._stage == SENDING or (self._stage == NO_STEP and any(table.left for table in self._tables)):
            for table in self._tables:
                table.abstain()
                table.exchange.wait_acked(limit_s=limit_s)
        if self._stage == ARRIVING:
            self._arrival.stay(limit_s)
            self._stage = NO_STEP

    def detach(self) -> None:
        """Takes the hooks off; the model keeps its weights."""
        self._arrival.take_off()
        for table in self._tables:
            table.detach()
        if self._resume is not None:
            self._resume.remove()

    # -- inside ----------------------------------------------------------------------------------------

    def _add_table(self, groups: list[int]) -> None:
        started = self._start_table([self.param_groups[index] for index in groups])
        self._arrival.add(started)
        table = TableGradients(
            started.exchange,
            started.parameters,
            step=started.step,
            mode=self._mode if self._closed() is None else Mode.WAITING,
            syncing=lambda: self._syncing and not self._void,
            hyperparameters=lambda: self._read(groups),
            weight=self._weigh,
            sending=self._inside.sending,
            settle=self._before_push,
            as_views=self._as_views,
        )
        if not self._tables:
            self.step_number = started.step
        self._started, self._tables, self._sizes = (  # together: no Ctrl-C comes between
            [*self._started, started],
            [*self._tables, table],
            sizes_of(self.param_groups),
        )

    def _read(self, groups: list[int]) -> Hyperparameters:
        check_sizes(self._sizes, self.param_groups)
        return read_groups(self.defaults, [self.param_groups[index] for index in groups])
