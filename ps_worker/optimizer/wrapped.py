"""The optimizer that a script gets from `Worker.wrap`: gradients leave, weights arrive.

It is what torch's schedulers, `GradScaler` and frameworks take for an optimizer, and owns what a script may
call: a step over its tables (one, and one more for each `add_param_group`). Its `Sender` knows how gradients
leave, its `StepCycle` where in a step it is and which weights are waited for. It must not know sockets, or
who is a member.

A step here: hooks copy and push full buckets -> step(): checks, pushes the rest or abstains -> pull -> wait;
with overlap modules wait instead, in the next forward, and for the rest its first push, or step()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo

from ps_wire.errors import Evicted, UsageError
from ps_wire.spec.table import Hyperparameters
from ps_worker.model.hyperparameters import check_sizes, read_groups, sizes_of
from ps_worker.optimizer.remote_state import RemoteStateOptimizer, StateAccess
from ps_worker.optimizer.sender import Sender, loss_scale
from ps_worker.optimizer.started_table import StartedTable
from ps_worker.optimizer.step_cycle import Stage, StepCycle
from ps_worker.optimizer.table_gradients import Mode, changed_error
from ps_worker.step.batch_in_hand import BatchInHand
from ps_worker.step.first_push import FirstPush
from ps_worker.step.step_host import StepHost

START = {"auto": Mode.WATCHING, True: Mode.OVERLAPPING, False: Mode.WAITING}

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _calls_hooks(step: Callable[Given, Result]) -> Callable[Given, Result]:
    """The step that calls a script's hooks before and behind it.

    torch does that to a class when its first instance is made. Two threads that make theirs at one time would
    do it twice, and each hook be called twice in every step.
    """
    calling = torch.optim.Optimizer.profile_hook_step(step)
    calling.hooked = True  # type: ignore[attr-defined]  # torch's constructor leaves it as it is
    return calling


class WrappedOptimizer(RemoteStateOptimizer):
    """Made by `Worker.wrap`. Its `param_groups` are the wrapped optimizer's own, so schedulers work on both.

    Its state is on the servers: `state` is empty, and `state_dict()` asks for it.
    """

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
        host: StepHost,
        overlap: Literal["auto"] | bool,
        clip_grad_norm: float | None,
        clipped_as_it_leaves: bool,
        as_views: bool,
        weight: Callable[[], float],
        scales: bool = True,
        of_one_rank: bool = False,
    ) -> None:
        """See `Worker.wrap`.

        Args:
            inner: the script's own, of the model's parameters.
            model: the script's.
            start_table: makes and starts a table of these param-groups.
            access: to the optimizer's state on the servers.
            host: the worker.
            overlap: as in `wrap`.
            clip_grad_norm: to clip gradients to.
            clipped_as_it_leaves: servers clip the mean, or a group that of its ranks; else this worker clips
                its own gradients, before they leave.
            as_views: gradients lie in the memory that is pushed.
            weight: of a step's pushes in a BSP mean; called once a step.
            scales: a `GradScaler` may call steps.
            of_one_rank: gradients are those of one rank of a group; see `Sender`.
        """
        self._scales = scales
        self._open = False  # torch's constructor adds the param-groups
        super().__init__(inner, access, tables=lambda: [table.started for table in self._sender.tables])
        self._open = True
        self._host = host
        self._start_table = start_table
        self._one_norm = clip_grad_norm is not None
        self._batch = BatchInHand(host.is_rewound)
        clip_norm = None if clipped_as_it_leaves else clip_grad_norm
        watched = of_one_rank and not overlap  # whether the script changes what is one rank's alone
        start = Mode.WATCHING if watched else START[overlap]
        self._sender = Sender(
            host,
            self._batch,
            mode=start if clip_norm is None else Mode.WAITING,
            clip_norm=clip_norm,
            first=FirstPush(
                host,
                step=lambda: self._sender.tables[0].step,
                weight=weight,
                settle=self._settle_weights,
            ),
            divides="fused" in self.defaults,
            as_views=as_views,
            of_one_rank=of_one_rank,
            may_overlap=overlap is True or (overlap == "auto" and not (of_one_rank and as_views)),
        )
        groups = list(range(len(self.param_groups)))
        started = self._start(groups)
        self._cycle = StepCycle(model, self._sender, host, step_number=started.step)
        self._add(started, groups)
        self._take_over()  # at last: one that was refused is as it was

    # -- what a script calls ---------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Steps taken, abstentions included."""
        return self._cycle.step_number

    @property
    def abstained(self) -> int:
        """Steps of these in which this worker had nothing to push."""
        return self._sender.abstained

    @property
    def behind(self) -> int:
        """Steps that the script takes again, and that the job has: nothing of them leaves."""
        return self._batch.behind

    @property
    def overlaps(self) -> bool:
        """Whether gradients leave while backward is still running."""
        return self._sender.overlaps

    @property
    def sends(self) -> bool:
        """Whether a part of a step has left, and a part has not."""
        return self._cycle.stage is Stage.SENDING or self._sender.left

    @property
    def dropping(self) -> bool:
        """Whether the batch in hand is dropped: the worker has joined again since it came."""
        return self._batch.void

    @property
    def num_tables(self) -> int:
        """That its parameters are in: one, and one for each group that was added."""
        return len(self._sender.tables)

    @property
    def waited_s(self) -> float:
        """Seconds in which training had nothing to do but wait for weights, in all."""
        return self._cycle.arrival.waited_s

    @_calls_hooks
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
        if (closed := self._host.closed()) is not None:
            raise UsageError(closed)
        try:
            with self._host.inside:
                return self._step(closure)
        except BaseException as error:
            self._cycle.break_off(error)
            raise

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._note_step()
        arriving = self._cycle.stage is Stage.ARRIVING
        self.settle()
        if self._host.announce():
            return self._drop()
        if arriving:
            self._cycle.check_read()
        check_sizes(self._sender.sizes, self.param_groups)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._batch.void:
            return self._drop(loss)
        try:
            self._take_step()
        except Evicted:
            self._host.rejoin()
            self._host.announce()
            return self._drop(loss)
        self._host.after_step(self.step_number)
        return loss

    def _drop(self, loss: Any = None) -> Any:
        """No step is taken: what was computed is of a batch that another incarnation was given."""
        self._sender.forget_arrivals()
        self._batch.end()
        self._host.drop_step()
        return loss

    def _take_step(self) -> None:
        self._sender.check_acked()
        self._cycle.arrival.check()
        scale, overflow = loss_scale(self)
        scaled = scale is not None or overflow is not None
        if scaled and not self._scales:
            raise UsageError(
                "a GradScaler is not built for pipelines: each stage would find overflows of its own, and "
                "the stages' scales would part; take bfloat16, which needs none"
            )
        if scaled and scale is None and self._sender.of_one_rank:
            raise UsageError(
                "scaler.unscale_() in a group of ranks shows the gradient of one rank, not the mean that is "
                "pushed: leave it out (the scale is taken out as gradients leave), and let wrap clip "
                "(clip_grad_norm=)"
            )
        self._sender.decide(scaled=scaled)
        self._cycle.begin_sending()
        self._sender.send(scale, overflow=bool(overflow))
        self._cycle.go_on()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Raises `GradientChanged` where gradients of this step have already left."""
        if self._cycle.stage is not Stage.ARRIVING:  # else none has, and weights may go on arriving
            self._between_steps("zero_grad()")
        super().zero_grad(set_to_none)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first one outside sends the sum."""
        with self._sender.accumulating():
            yield

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
            groups = [len(self.param_groups) - 1]
            self._add(self._start(groups), groups)
        except BaseException:
            self.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """As torch has it; the state is read from the servers, on the CPU.

        Under BSP it is that of one step. Under SSP and ASP every partition is read as it is by then.

        Raises:
            GradientChanged: gradients of this step have already left.
            PsError: a server refuses, or cannot be reached.
        """
        self._between_steps("state_dict()")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, on the servers. All workers call it; worker 0's state is set, the others wait for it.

        Each worker takes the `param_groups` that it is given.

        Raises:
            GradientChanged: gradients of this step have already left.
            StartLimitExceeded: worker 0 did not call it in time.
            UsageError: a state has not its parameter's shape.
        """
        self._between_steps("load_state_dict()")
        super().load_state_dict(state_dict)

    def _between_steps(self, what: str) -> None:
        self.settle()
        if self._sender.left:
            raise changed_error(f"{what} was called between backward and step()")

    # -- what a worker calls ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Waits for weights; of a step that was interrupted, what has not left abstains."""
        self._cycle.settle()

    @torch.no_grad()
    def abandon(self) -> None:
        """Gives up a step whose backward was interrupted, as by Ctrl-C in a notebook, and clears gradients.

        What has already left counts, the rest abstains. Waits for the weights of the next step, or raises why
        the job cannot go on.
        """
        self._cycle.abandon()
        super().zero_grad()

    def refresh(self) -> None:
        """Makes autograd, other devices and smaller dtypes see that the weights are new."""
        self._cycle.arrival.finish()

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
            self._cycle.sit_out()
        except BaseException as error:
            self._cycle.break_off(error)
            raise
        self._batch.sit_out(again=again)
        self._host.after_step(self.step_number)

    @property
    def clocks(self) -> dict[int, int]:
        """Table -> the step that is under way or comes next."""
        return {table.started.number: table.step for table in self._sender.tables}

    @property
    def taken(self) -> dict[int, int]:
        """Table -> steps whose pushes have left; one that SIGTERM ends has taken a step that has no end."""
        clocks = self.clocks
        more = self.step_number - next(iter(clocks.values()), 0)
        return {table: clock + max(more, 0) for table, clock in clocks.items()}

    def is_between_steps(self) -> bool:
        """Waits for weights; False where a part of a step has left, and a part has not."""
        self.settle()
        return not self.sends

    def fall_behind(self, steps: int) -> None:
        """The script goes on so many steps before the job: it takes them again."""
        self._batch.fall_behind(steps)

    def reenter(self, steps: Mapping[int, int], *, stepped: Collection[int] = ()) -> None:
        """The worker has joined again, and the weights are those of its first step there, by table.

        The batch in hand is dropped: until `step()` has been called, or `renew`, nothing of it leaves.

        Args:
            steps: by table.
            stepped: tables that the script has stepped on this batch; its next `step()` is of another one.
        """
        self._batch.reenter(void=self.sends or not self.clocks.keys() <= set(stepped))
        self._cycle.reenter(steps)

    def renew(self) -> None:
        """Lets what is computed from now on count; what is there of a batch that is dropped is cleared."""
        if self._batch.void:
            self.abandon()
            self._batch.renew()

    def replay(self) -> None:
        """A batch has come that was used already: a step of it that is behind sends nothing."""
        self._batch.replay()

    def release(self, limit_s: float) -> None:
        """Before the end: what has not left of a step under way abstains, and no gate waits for it."""
        self._cycle.release(limit_s)

    def detach(self) -> None:
        """Takes the hooks off; the model keeps its weights."""
        self._cycle.detach()
        self._sender.detach()

    # -- inside ----------------------------------------------------------------------------------------

    def _settle_weights(self) -> None:
        self._cycle.before_push()

    def _start(self, groups: list[int]) -> StartedTable:
        return self._start_table([self.param_groups[index] for index in groups])

    def _add(self, started: StartedTable, groups: list[int]) -> None:
        self._cycle.arrival.add(started)
        self._sender.add(
            started,
            sizes=sizes_of(self.param_groups),
            hyperparameters=lambda: self._read(groups),
        )

    def _read(self, groups: list[int]) -> Hyperparameters:
        check_sizes(self._sender.sizes, self.param_groups)
        return read_groups(self.defaults, [self.param_groups[index] for index in groups])
