"""A worker: one member of one job, and everything that a script does through it."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat

import torch

from ps_wire.errors import RolledBack, UsageError
from ps_wire.process.allocator import keep_large_blocks
from ps_wire.spec.consistency import BSP
from ps_wire.spec.table import BucketOptions
from ps_wire.text import one_line
from ps_worker.data.script_data import ScriptData
from ps_worker.job.job_link import JobLink
from ps_worker.membership.together import Together
from ps_worker.metric import name_of, number_of
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from ps_worker.model.hyperparameters import OptimizerChoice, check_norm, spec_of
from ps_worker.model.registered import GroupsInForce
from ps_worker.optimizer.at_forward import AtForward
from ps_worker.optimizer.remote_state import StartedTable, StateAccess
from ps_worker.optimizer.wrapped import WrappedOptimizer
from ps_worker.process import console, stopping
from ps_worker.process.exit_reason import reason_of
from ps_worker.process.one_thread import OneThread
from ps_worker.process.waiting import LongWaits
from ps_worker.settings import Settings
from ps_worker.stats import Stats, gather
from ps_worker.table import Table
from ps_worker.worker_data import WorkerData
from ps_worker.worker_state import SETTLE_LIMIT_S, WorkerState

logger = logging.getLogger("ps_worker")


class Worker(WorkerData, WorkerState):
    """Made by `connect`; a context manager that leaves the job when its block ends.

    The user's thread calls it; background threads receive frames and send heartbeats.

    Attributes:
        rank: this worker's number in the job, from 0.
        num_workers: that the job was made for.
        ended: the job had already ended: loaders are empty and the final weights are loaded.
    """

    _link: JobLink

    def __init__(self, settings: Settings, on_rollback: Callable[[int], None] | None = None) -> None:
        """Checks the servers and joins; `on_rollback`: see `connect`.

        Raises:
            ServerUnreachable: a server does not answer; its address is named.
            ConfigurationRefused: the servers or the job refuse; the message says what differs.
        """
        keep_large_blocks(one_arena=False)
        self._settings = settings
        self._on_rollback = on_rollback
        self._optimizers: list[WrappedOptimizer] = []
        self._tables: list[Table] = []
        self._models: dict[int, torch.nn.Module] = {}  # by table, whose buffers go along with the first of it
        self._table_of: dict[int, tuple[torch.Tensor, int]] = {}  # by id; it keeps the tensor alive
        self._at_forwards: list[torch.utils.hooks.RemovableHandle] = []
        self._metrics: dict[str, float] = {}
        self._inside = OneThread()
        self._leaving = False
        self._left = False  # only once all of it is done: what was interrupted is done again
        self._pid = os.getpid()
        self._finishing = False
        self._finished = False
        self._waits = LongWaits(self._counted, self._whom, self._say)
        self._together = Together(
            self._collect,
            alone=self._has_no_others,
            step=lambda: self.step,
            incarnation=lambda: self._link.incarnation,
            returns=lambda: self._data.returns,
        )
        self._data = ScriptData(
            settings.consistency,
            begin_batch=self._begin_batch,
            begin_epoch=self._begin_epoch,
            behind=self._is_behind,
            clock=lambda: self.step,
            calls=self._together,
            loop_ended=self._loop_ended,
        )
        self._link = JobLink(settings, progress=self._progress, say=self._say)
        self._link.on_reentry = self._reentered
        self._link.on_restored = self._restored
        self._link.tell = self._announce
        self._link.dropping = lambda: any(optimizer.dropping for optimizer in self._optimizers)
        self._link.clocks = self._clocks
        self._link.taken = self._taken_steps
        self._link.sit_out = self._sit_out
        self._link.own.add("@worker", self._data)
        self._link.positions = self._positions
        if not self._link.resumed:
            self._together.begin()
        self._link.loops = lambda: self._data.used
        self._link.arrived = lambda: self._data.arrived
        self._link.on_taken = self._take_up
        self.rank = self._link.rank
        self.num_workers = settings.num_workers
        self.ended = self._link.ended
        atexit.register(self.leave)
        stopping.workers.add(self)
        if self._link.resumed:
            self._say(f"job {settings.job} is under way: this worker goes on from its weights and steps")

    # -- tables ----------------------------------------------------------------------------------------

    def wrap(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        *,
        overlap: Literal["auto"] | bool = "auto",
        weight: Literal["equal", "samples"] = "equal",
        clip_grad_norm: float | None = None,
        strict_hyperparameters: bool = False,
        gradient_as_bucket_view: bool = False,
        buckets: BucketOptions | None = None,
    ) -> WrappedOptimizer:
        """Puts the model's parameters on the servers, which run the optimizer from now on.

        Waits until all workers are here and the job has started; then the model has the job's weights.
        Parameters of bfloat16 and float16 have a float32 master on the servers; what arrives is rounded.

        Args:
            optimizer: of torch.optim; its class and `param_groups` are sent as data.
            model: that owns the optimizer's parameters.
            overlap: push buckets while backward runs; "auto" begins after a first step in which nothing
                touched the gradients.
            weight: of a push in a BSP mean: "equal", or the "samples" that the loader of the latest batch has
                handed out since the last step. So a validation pass in between has no say; of a step that
                draws from several loaders, the last one counts.
            clip_grad_norm: largest L2 norm of the gradient over all parameters, as
                `torch.nn.utils.clip_grad_norm_` bounds it. In BSP the servers clip the mean over all
                workers and overlap goes on; in SSP and ASP each worker's own gradient is clipped.
            strict_hyperparameters: in BSP, where a step takes the `param_groups` of another worker and they
                differ, this worker's next `step()` raises `HyperparametersDiffer`. Otherwise servers warn.
            gradient_as_bucket_view: as in DistributedDataParallel: after backward `p.grad` lies in the memory
                that is pushed, which saves the memory of a gradient; with `zero_grad(set_to_none=False)` its
                copy, too. With overlap, gradients must not be written to between backward and `step()`.
            buckets: sizes of buckets and partitions.

        Raises:
            ConfigurationRefused: the servers cannot run the optimizer or hold a parameter, the model or
                optimizer differs from the other workers', or it does not fit into a server's memory.
            StartLimitExceeded: the job did not start in time; who was missing is named.
            UsageError: the optimizer holds parameters that the model does not have, or a parameter that
                another table has.
        """
        if overlap not in ("auto", True, False):
            raise UsageError(f'overlap must be "auto", True or False, got {overlap!r}')
        if weight not in ("equal", "samples"):
            raise UsageError(f'weight must be "equal" or "samples", got {weight!r}')
        check_norm(clip_grad_norm)
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"wrap takes the model, a torch.nn.Module, got {type(model).__name__}")
        spec_of(optimizer)  # refuses a foreign one before anything is touched
        mean = isinstance(self._settings.consistency, BSP)

        def start_table(groups: list[dict[str, Any]]) -> StartedTable:
            parameters = model_table.parameters_of(model, groups)
            spec = model_table.model_table(
                self._next_table(parameters),
                parameters,
                optimizer,
                groups,
                buckets=buckets or BucketOptions(),
                clip_grad_norm=clip_grad_norm if mean else None,
            )
            outside = None
            if not any(known is model and table < spec.number for table, known in self._models.items()):
                outside = ModelExtras(model, parameters.values(), self._say)
            states = [optimizer.state.get(parameter, {}) for parameter in parameters.values()]
            exchange, step = self._link.start_table(
                spec, parameters.values(), outside, states, strict=strict_hyperparameters, pulls=True
            )
            self._models[spec.number] = model
            for parameter in parameters.values():
                optimizer.state.pop(parameter, None)
            self._table_of |= {id(item): (item, spec.number) for item in parameters.values()}
            return StartedTable(number=spec.number, exchange=exchange, parameters=parameters, step=step)

        by_samples = self._data.sample_weight() if weight == "samples" else lambda: 1.0
        wrapped = WrappedOptimizer(
            optimizer,
            model=model,
            start_table=start_table,
            access=StateAccess(dump=self._link.dump_state, share=self._link.share_state),
            overlap=overlap,
            clip_grad_norm=clip_grad_norm,
            clipped_by_servers=mean,
            as_views=gradient_as_bucket_view,
            weight=partial(self._weigh, len(self._optimizers), by_samples),
            closed=self._closed,
            log=self._say,
            at_step=self._stepped,
            rejoin=self._link.rejoin,
            announce=self._announce,
            waits=self._link.say_wait,
            inside=self._inside,
        )
        at_forward = AtForward(lambda: self._begin_forward(wrapped))
        self._at_forwards.append(model.register_forward_pre_hook(at_forward.before))
        self._link.registered.add(f"@optimizer {len(self._optimizers)}", GroupsInForce(wrapped))
        self._optimizers.append(wrapped)
        return wrapped

    def table(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        optimizer: OptimizerChoice,
        buckets: BucketOptions | None = None,
        clip_grad_norm: float | None = None,
    ) -> Table:
        """Puts tensors on the servers, for pushes and pulls without autograd.

        Args:
            tensors: name -> start value; worker 0's start the table. They are copied.
            optimizer: such as `ps.SGD(lr=1.0)`.
            buckets: sizes of buckets and partitions.
            clip_grad_norm: the mean gradient of a step is scaled down to this L2 norm (BSP only).

        Raises:
            What `wrap` raises.
        """
        check_norm(clip_grad_norm)
        number = self._next_table(tensors)
        spec = model_table.table_of(
            number,
            tensors,
            group_of={id(tensor): 0 for tensor in tensors.values()},
            optimizer=optimizer.spec(),
            buckets=buckets or BucketOptions(),
            clip_grad_norm=clip_grad_norm,
        )
        exchange, step = self._link.start_table(spec, tensors.values())
        self._table_of |= {id(tensor): (tensor, number) for tensor in tensors.values()}
        made = Table(
            exchange,
            tuple(tensors),
            step,
            self._steps,
            self._stepped,
            self._link.rejoin,
            self._announce,
            self._inside,
        )
        self._tables.append(made)
        return made

    # -- figures ---------------------------------------------------------------------------------------

    def log(self, **metrics: SupportsFloat) -> None:
        """Keeps the latest value of each metric; they travel with heartbeats to whoever watches the job.

        Args:
            metrics: numbers; tensors and arrays of one element are read without their graph.

        Raises:
            UsageError: a value is not a number, or its name cannot travel.
        """
        for name, value in metrics.items():
            self._metrics = {**self._metrics, name_of(name): number_of(name, value)}  # heartbeats read it

    def stats(self) -> Stats:
        """Figures so far; asks every shard for its part.

        Raises:
            UsageError: the worker has left.
            ServerUnreachable: a shard does not answer.
        """
        if self._leaving:
            raise UsageError(self._closed() or "")
        return gather(
            self._link.figures(),
            self._link.exchanges,
            self._link.epochs(),
            worker=self.rank,
            step=self.step,
            abstained=sum(optimizer.abstained for optimizer in self._optimizers),
            samples=self._data.samples,
            waited_s=self._waited_s,
        )

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Says that this worker has no more data, waits for all, and loads the final weights and buffers.

        Where Ctrl-C ended it, a second call waits again; no step comes between.

        Raises:
            RolledBack: servers lost state, and there are steps to take again: run all loops over
                `worker.epochs` again.
            UsageError: the worker has left, or was sent back and its loops have not gone there.
            PsError: the job cannot go on, or `WeightsChanged`: the script has written into a parameter.
        """
        if self._finished:
            return
        if self._leaving:
            raise UsageError(self._closed() or "")
        self._data.check_arrived()
        for optimizer in self._optimizers:
            optimizer.release(SETTLE_LIMIT_S)
        if self.ended:
            self._say(self._ended_text())
        self._say_untrained()
        stopping.step_ended()
        self._finishing = True
        try:
            self._link.finish()
        except RolledBack:
            self._finishing = False  # there is more to train
            self._renew()
            self._data.run_again()
            raise
        for optimizer in self._optimizers:
            optimizer.refresh()
        self._finished = True

    def is_in(self, settings: Settings) -> bool:
        """Whether this is a member, or finished and not gone, of the job that `settings` name."""
        mine = self._settings
        return not self._left and (mine.servers, mine.job) == (settings.servers, settings.job)

    def leave(self, reason: str = "") -> None:
        """Leaves the job; the others go on. Called again, it does what Ctrl-C left undone.

        Does nothing in a forked child. Raises `WeightsChanged`, when it has left, where `finish` would.
        """
        if self._left or os.getpid() != self._pid:
            return
        self._leaving = True
        if not reason:
            self._say_untrained()
        with ExitStack() as last_first:  # whatever one of them raises, the others are called
            last_first.callback(self._link.close, reason)
            last_first.callback(self._settle_pushes)
            for handle in self._at_forwards:
                last_first.callback(handle.remove)
            for optimizer in self._optimizers:
                last_first.callback(optimizer.detach)
                last_first.callback(self._let_go, optimizer)
        self._left = True
        atexit.unregister(self.leave)
        if self._link.written is not None and not reason:
            raise self._link.written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave(reason_of(error))

    # -- inside ----------------------------------------------------------------------------------------

    def _next_table(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """The number of the next table, if none of these is in another one."""
        closed = self._closed()
        if closed is not None and not self.ended:
            raise UsageError(closed)
        number = sum(optimizer.num_tables for optimizer in self._optimizers) + len(self._tables)
        for name, tensor in tensors.items():
            _, other = self._table_of.get(id(tensor), (tensor, number))
            if other < number:
                raise UsageError(f"{name!r} is in table {other} already: a parameter has one optimizer")
        return number

    def _say(self, text: str) -> None:
        console.show(logger)
        rank = getattr(self, "rank", None)
        logger.info("worker%s: %s", "" if rank is None else f" {rank}", one_line(text))
