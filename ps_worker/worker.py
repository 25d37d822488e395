"""A worker: one member of one job, and everything that a script does through it.

The face alone: what a script asks is checked here, and done by `Steps`, `ScriptData` and `JobLink`.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat

import torch
from torch.utils.data import DataLoader, Dataset

from ps_wire.access.access import OPEN, read
from ps_wire.errors import UsageError
from ps_wire.metrics.endpoint import MetricsEndpoint
from ps_wire.process.allocator import keep_large_blocks
from ps_wire.spec.table import BucketOptions
from ps_worker.data import torch_loader
from ps_worker.data.loader import Loader
from ps_worker.group.group import Group
from ps_worker.job.own_servers import OwnServers
from ps_worker.job.stats import Stats, gather
from ps_worker.job.worker_metrics import WorkerMetrics
from ps_worker.membership.together import LIMIT_S, Op, Value
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from ps_worker.model.hyperparameters import OptimizerChoice, check_norm, spec_of
from ps_worker.optimizer.started_table import StartedTable
from ps_worker.optimizer.wrapped import WrappedOptimizer
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.cuts import cuts_of
from ps_worker.pipeline.pipeline import Pipeline
from ps_worker.process import stopping
from ps_worker.process.exit_reason import reason_of
from ps_worker.recording.metric import name_of, number_of
from ps_worker.settings import Settings
from ps_worker.steps import Steps
from ps_worker.table import Table

logger = logging.getLogger("ps_worker")

ON_GROUP = "use torch.distributed on worker.group, which reaches the ranks of this group"


class Worker:
    """Made by `connect`; a context manager that leaves the job when its block ends.

    The user's thread calls it; background threads receive frames and send heartbeats.

    Attributes:
        rank: this worker's number in the job, from 0.
        num_workers: that the job was made for.
        group_rank: of this process in its group of ranks, from 0; rank 0 leads.
        group_size: ranks of the group; 1: the worker is this process alone.
        local_rank: of this process among those of its host, for its device.
        group: a process group of `torch.distributed` with these ranks; None: there is one rank, or the script
            has made process groups of another size before.
    """

    def __init__(
        self,
        settings: Settings,
        on_rollback: Callable[[int], None] | None = None,
        group: Group | None = None,
        own_servers: OwnServers | None = None,
    ) -> None:
        """Checks the servers and joins.

        Args:
            settings: of the worker.
            on_rollback: see `connect`.
            group: whose rank this process is; None: it is the whole worker.
            own_servers: of the group, which end when this worker has left; None: it has none.

        Raises:
            ServerUnreachable: a server does not answer; its address is named.
            ConfigurationRefused: the servers or the job refuse; the message says what differs.
        """
        keep_large_blocks(one_arena=False)
        self._settings = settings
        self._own_servers = own_servers
        self._models: dict[int, torch.nn.Module] = {}  # by table, whose buffers go along with the first of it
        self._table_of: dict[int, tuple[torch.Tensor, int]] = {}  # by id; it keeps the tensor alive
        self._interrupted = False  # its block is left after Ctrl-C
        self._left = False  # only once all of it is done: what was interrupted is done again
        self._pid = os.getpid()
        self._group = group
        self._steps = Steps(settings, on_rollback, group)
        self._data, self._link = self._steps.data, self._steps.link
        self.num_workers = settings.num_workers
        self.group_rank, self.group_size = settings.ranks.rank, settings.ranks.size
        self.local_rank = settings.ranks.local_rank
        self.group = None if group is None else group.torch_group
        self._metrics = self._open_metrics()
        try:
            self._steps.join()
            self._metrics.begin()
            self.rank = self._link.rank
            stopping.workers.add(self._steps)
            atexit.register(self.leave)
        except BaseException as error:  # in a notebook the process lives on
            self.give_up(error)
            raise

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0 of worker 0, who writes files for all."""
        return self.rank == 0 and self.group_rank == 0

    @property
    def ended(self) -> bool:
        """The job had already ended: loaders are empty and the final weights are loaded."""
        return self._link.ended

    @property
    def step(self) -> int:
        """Steps that this worker has taken, over its tables the largest."""
        return self._steps.step

    # -- tables ----------------------------------------------------------------------------------------

    def pipeline(
        self,
        model: torch.nn.Module,
        *,
        example: torch.Tensor | Sequence[torch.Tensor],
        microbatches: int,
        schedule: str = "1f1b",
        stages: int | None = None,
        cuts: Sequence[str] | None = None,
        by: str = "parameters",
        checkpoint: str = "never",
    ) -> Pipeline:
        """Cuts a model into stages, one for each process of this worker, and keeps this process's part of it.

        Parameters of other stages go to the meta device. An optimizer over the whole model, made before or
        after, goes to `wrap` with the pipeline. All stages of a worker make the same calls, with the same
        batches. A model that is on the meta device gets its first values stage by stage, from its modules'
        `reset_parameters`.

        Args:
            model: on the CPU or the meta device, the same on all stages.
            example: the model's inputs of one batch; all batches have its shapes, and its device, on which
                this process's stages run: each process may have a GPU of its own.
            microbatches: parts of each batch that go through the stages one after the other; one, with
                schedule "gpipe", is the naive split.
            schedule: "gpipe", "1f1b", "interleaved1f1b", "zero-bubble" or "zero-bubble-v", as torch has them.
            stages: of the pipeline. Default: one for each process; interleaved schedules take a multiple.
            cuts: the name of the first block of each stage but the first. Default: they are computed, so that
                the largest stage is as small as it can be.
            by: the cost that a computed cut shares out: "parameters", or by a short profile of forward and
                backward of each block on stage 0's process, "time" or "memory".
            checkpoint: activations are computed again in backward, which saves their memory: of micro-batches
                "never", "always", or "except_last".

        Raises:
            UsageError: this worker is no pipeline (`--pipeline-stages`, `PS_PIPELINE_STAGES`).
            PipelineError: the model cannot be cut so, or stages differ; what and on which hosts is named.
        """
        group = self._group
        if group is None or group.stages is None:
            raise UsageError(
                "worker.pipeline() needs one process for each stage: start ps-worker with --pipeline-stages, "
                "or give pipeline_stages to connect() (PS_PIPELINE_STAGES)"
            )
        blocks, stages = blocks_of(model), stages or self.group_size
        return Pipeline(
            model,
            blocks,
            group,
            asked_stages=stages,
            asked_cuts=cuts,
            cuts=cuts_of(
                blocks,
                group,
                model,
                stages=stages,
                names=cuts,
                by=by,
                example=example,
                schedule=schedule,
                microbatches=microbatches,
            ),
            schedule=schedule,
            microbatches=microbatches,
            example=example,
            checkpoint=checkpoint,
            seed=self._settings.job,
        )

    def wrap(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | Pipeline,
        *,
        overlap: Literal["auto"] | bool = "auto",
        weight: Literal["equal", "ranks", "samples"] = "equal",
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
            model: that owns the optimizer's parameters; or a pipeline of it, whose stages each push and pull
                the parameters that they have.
            overlap: push buckets while backward runs; "auto" begins after a first step in which nothing
                touched the gradients. In a group not with `gradient_as_bucket_view`, unless it is True.
            weight: of a push in a BSP mean: "equal", or the "samples" that the loader of the latest batch has
                handed out since the last step. So a validation pass in between has no say; of a step that
                draws from several loaders, the last one counts. Or "ranks", the size of this worker's group,
                where groups differ in it: with equal batches the mean is then that over all ranks. A pipeline
                counts as one.
            clip_grad_norm: largest L2 norm of the gradient over all parameters, as
                `torch.nn.utils.clip_grad_norm_` bounds it. In BSP the servers clip the mean over all
                workers and overlap goes on; in SSP and ASP each worker's own gradient is clipped, in a group
                the mean of its ranks.
            strict_hyperparameters: in BSP, where a step takes the `param_groups` of another worker and they
                differ, this worker's next `step()` raises `HyperparametersDiffer`. Otherwise servers warn.
            gradient_as_bucket_view: as in DistributedDataParallel: after backward `p.grad` lies in the memory
                that is pushed, which saves the memory of a gradient; with `zero_grad(set_to_none=False)` its
                copy, too. With overlap, gradients must not be written to between backward and `step()`. In a
                group `step()` leaves there what it reduced: the ranks' mean, or this rank's own; with
                overlap backward does, so that they must not be read in between, either. In a pipeline the
                gradient of weights that are tied over two stages is there the sum of both.
            buckets: sizes of buckets and partitions.

        Raises:
            ConfigurationRefused: the servers cannot run the optimizer or hold a parameter, the model or
                optimizer differs from the other workers', or it does not fit into a server's memory.
            StartLimitExceeded: the job did not start in time; who was missing is named.
            UsageError: the optimizer holds parameters that the model does not have, or a parameter that
                another table has; or the two are the other way round, or wrap has returned the optimizer.
        """
        if overlap not in ("auto", True, False):
            raise UsageError(f'overlap must be "auto", True or False, got {overlap!r}')
        if weight not in ("equal", "ranks", "samples"):
            raise UsageError(f'weight must be "equal", "ranks" or "samples", got {weight!r}')
        check_norm(clip_grad_norm)
        overlap = self._check_group_wrap(overlap, clip_grad_norm)
        if isinstance(optimizer, torch.nn.Module) and isinstance(model, torch.optim.Optimizer):
            raise UsageError("wrap takes the optimizer first: worker.wrap(optimizer, model)")
        if isinstance(optimizer, WrappedOptimizer):
            raise UsageError(
                "this optimizer is what worker.wrap has returned: call wrap once, and step() of its result"
            )
        pipe = model if isinstance(model, Pipeline) else None
        model = model.model if isinstance(model, Pipeline) else model
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"wrap takes the model, a torch.nn.Module, got {type(model).__name__}")
        spec_of(optimizer)  # refuses a foreign one before anything is touched
        self._check_pipeline_wrap(optimizer, model, pipe)
        mean = self._settings.consistency.aggregates

        def start_table(groups: list[dict[str, Any]]) -> StartedTable:
            parameters = model_table.parameters_of(model, groups)
            spec = model_table.model_table(
                self._next_table(parameters),
                parameters,
                optimizer,
                groups,
                buckets=buckets or BucketOptions(),
                clip_grad_norm=clip_grad_norm if mean else None,
                stages=None if pipe is None else pipe.stages_of([*parameters]),
            )
            outside = None
            if not any(known is model and table < spec.number for table, known in self._models.items()):
                outside = ModelExtras(model, parameters.values(), self._steps.say)
            states = [optimizer.state.get(parameter, {}) for parameter in parameters.values()]
            exchange, step = self._link.start_table(
                spec,
                parameters.values(),
                outside,
                states,
                strict=strict_hyperparameters,
                pulls=True,
                stage=None if pipe is None else pipe.table_of(parameters),
                max_norm=None if mean or self.group_size == 1 else clip_grad_norm,
            )
            self._models[spec.number] = model
            for parameter in parameters.values():
                optimizer.state.pop(parameter, None)
            self._table_of |= {id(item): (item, spec.number) for item in parameters.values()}
            return StartedTable(number=spec.number, exchange=exchange, parameters=parameters, step=step)

        even = float(self.group_size) if weight == "ranks" and pipe is None else 1.0
        wrapped = WrappedOptimizer(
            optimizer,
            model=model if pipe is None else pipe.modules[0],
            start_table=start_table,
            access=self._link,
            host=self._steps,
            overlap=overlap,
            clip_grad_norm=clip_grad_norm,
            clipped_as_it_leaves=mean or self.group_size > 1,
            as_views=gradient_as_bucket_view,
            weight=self._data.sample_weight() if weight == "samples" else lambda: even,
            scales=pipe is None,
            of_one_rank=self.group_size > 1 and pipe is None,
        )
        self._steps.add_optimizer(wrapped, model if pipe is None else pipe.modules[0])
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
        self._refuse_in_group("worker.table()", "use worker.wrap(), or torch.distributed on worker.group")
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
        made = Table(exchange, tuple(tensors), step, self._steps)
        self._steps.add_table(made)
        return made

    def register_state(self, name: str, kept: Any) -> None:
        """Keeps something with the job that each worker has for itself, such as a scheduler.

        Whoever comes to a job that has begun gets it, when it registers it and again where its loop begins:
        from the worker with the lowest number that trains, or, where all had gone, as it was then. So a
        scheduler goes on where the job is. Random generators stay a worker's own. All workers should register
        the same names. Buffers of wrapped models and `param_groups` go along without it.

        Args:
            name: of it, up to 200 characters.
            kept: with `state_dict()` and `load_state_dict()`, or a `torch.Generator`, or a tensor, which is
                written in place.

        Raises:
            UsageError: the name is taken or cannot travel, or what is kept is of no such kind.
        """
        if name.startswith("@"):
            raise UsageError(f"register_state: {name!r}: names with @ are the library's own")
        self._link.register(name, kept)

    def synchronize(self) -> None:
        """Waits until all weights that were asked for are here. Raises `PsError` where the job cannot go on.

        To be called before the weights are read outside the model's forward: for an average, a checkpoint.
        """
        self._steps.synchronize()

    # -- figures ---------------------------------------------------------------------------------------

    def log(self, **metrics: SupportsFloat) -> None:
        """Keeps the latest value of each metric; they travel with heartbeats to whoever watches the job.

        Args:
            metrics: numbers; tensors and arrays of one element are read without their graph.

        Raises:
            UsageError: a value is not a number, or its name cannot travel.
        """
        for name, value in metrics.items():
            self._steps.log(name_of(name), number_of(name, value))

    def stats(self) -> Stats:
        """Figures so far; asks every shard for its part.

        Raises:
            UsageError: the worker has left.
            ServerUnreachable: a shard does not answer.
        """
        if self._steps.leaving:
            raise UsageError(self._steps.closed() or "")
        if self.group_rank:
            self._refuse_in_group("stats() of a rank above 0", "ask where worker.group_rank == 0")
        return gather(
            self._link.figures(),
            self._link.exchanges,
            self._link.epochs(),
            worker=self.rank,
            step=self.step,
            abstained=sum(optimizer.abstained for optimizer in self._steps.optimizers),
            samples=self._data.samples,
            waited_s=self._steps.waited_s,
        )

    # -- data ------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int = 1,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """This worker's share of a dataset; each iteration over it is one epoch.

        An epoch is shared by the workers who are in the job when the first of them asks for a batch of it;
        over these every sample comes once. What a worker has not used that leaves, or is evicted, in the
        middle of an epoch, goes to whoever next comes to the end of its share; so an iteration may give more
        batches than `len`. Used is a batch whose step is committed; see `Stats.epochs`. Who joins later has a
        part of the next epoch, unless others have come to its end before it asks, and before that what is
        left over. Who goes on from a state that is some steps
        older than the job gets the batches of these steps once more, and what it makes of them is not pushed.
        Under BSP several workers get equally many batches in their shares; those of a map-style dataset
        differ in size by at most one, so 500 samples with `batch_size=64` are four batches of 63 and 62 for
        each of two workers. A group's share is that of its ranks together (`docs/groups.md`). One that has an
        epoch alone gets torch's batches. An iterable dataset is read whole by every worker, and by every
        process of its DataLoader: it must give the same stream everywhere, and is not to deal itself. If it
        has `set_epoch(epoch)`, that is called before each epoch. Its batches are full but for the last (under
        BSP one may have `batch_size + 1`).

        Never waits for another worker. All workers make their loaders in the same order. The first batch of
        each compares seed, `shuffle`, length and, of torch's `Subset` and `TensorDataset`, what is in it with
        the other workers', under BSP `batch_size` and `drop_last`, too: where they differ, `JobMismatch`
        names both workers and both values. Give every worker the whole dataset, not a part of it.

        Args:
            dataset: with a length and an index (map-style), or a `torch.utils.data.IterableDataset`.
            batch_size: per worker; of a group, per rank.
            shuffle: another order each epoch, the same on all workers. Default: for map-style datasets;
                an iterable one shuffles inside.
            seed: of that order; must be the same on all workers.
            drop_last: full batches only.
            options: of `torch.utils.data.DataLoader`: `collate_fn`, `num_workers`, `pin_memory`...

        Raises:
            UsageError: the dataset has fewer samples than the job workers, or ranks (of an iterable dataset
                without a length this is known, and raised, when it ends), or an option makes no sense.
            JobMismatch: when it is iterated; see above.
        """
        return self._make_loader(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            options=options,
        )

    def shard(self, loader: DataLoader[Any], *, seed: int | None = None) -> Loader:
        """This worker's share of a loader that exists; see `loader` for what that is.

        The dataset is shuffled if the loader shuffles. Everything else of it is kept: `batch_size` (now per
        worker), `drop_last`, `collate_fn`, and the options for its processes.

        Args:
            loader: made by torch with `batch_size` and, if at all, `shuffle`.
            seed: of the order, the same on all workers; default: of the loader's generator, else 0.

        Raises:
            UsageError: the loader has a sampler or batches of its own, or what `loader` raises.
        """
        return self._make_loader(**torch_loader.read(loader, seed=seed))

    def epochs(self, count: int, *, start: int = 0) -> Iterator[int]:
        """The numbers of the epochs of a run; inside the loop, loaders give the order of that epoch.

        So a run that goes on at `start` sees the orders that an uninterrupted one would. A script may have
        several such loops, one after the other: a process that comes to the job goes on in the one where the
        job is, and the bodies of those before do not run. The epochs of a later loop come after those of the
        loops before: loaders, `stop_job` and `stats()` count them all. In a job that has begun, the loop
        begins at the job's epoch, whatever `start` is: the body for an earlier one does not run. Where the
        job goes back to a snapshot, or others went on while this worker was evicted, the loop goes to their
        epoch once its body is left, by `continue`, too. It ends early where `stop_job` was called, and at
        once where the job has ended.

        Args:
            count: of the whole run.
            start: the first one that is left to do.

        Returns:
            An iterator over `start`, ..., `count - 1`.

        Raises:
            RolledBack: when it is iterated: the job went back into a loop that the script has left. As
                wherever it is raised, run all loops of the script again, from the first.
            UsageError: one is negative.
        """
        if count < 0 or start < 0:
            raise UsageError(f"epochs({count}, start={start}): both must be >= 0")
        return self._data.epochs(range(start, count))

    def stop_job(self, reason: str) -> int:
        """Ends the job for all workers, after the same epoch: the newest that one of them has begun.

        The loops over `worker.epochs` of all end after it, and loaders hand out nothing of a later one; then
        the scripts go on behind their loops, and finish. Who is behind trains to that epoch's end. Any
        worker may call it, in the middle of an epoch, too, and several may: the first one counts. Where the
        job has ended meanwhile, as for a worker that was evicted and comes back, it changes nothing. Neither
        does it where this worker was sent elsewhere, as when the job goes back to a snapshot, until its
        script goes there: what has led to the decision is undone, and comes again if it holds.

        Args:
            reason: which all are told, in one line.

        Returns:
            The last epoch; where it changes nothing, the newest that is known here.

        Raises:
            UsageError: the worker has left or finished, or another thread is inside.
        """
        with self._steps.inside:
            return self._steps.stop_job(reason)

    # -- calls that all workers make -------------------------------------------------------------------

    def all_reduce(
        self, values: Mapping[str, Value] | Value, op: Op = "mean", *, limit_s: float = LIMIT_S
    ) -> Any:
        """Reduces numbers over all workers: metrics, and decisions that are the same on all.

        All workers get the same bits: the coordinator computes in float64, in the order of workers' numbers.
        All make the same calls of this kind, of `broadcast` and of `barrier` in the same order; it waits for
        all who are in the job, under `ssp` and `asp`, too. Who leaves, finishes or is evicted is not waited
        for, and its value does not count. Who takes steps again, as after a rollback or when it joins a job
        under way, gets what the others got, as long as that is kept: the last 64 calls, and 16 of before the
        first step. Its own values it gets alone, where the job has ended, and where it was sent back and has
        not begun there yet.

        Under `bsp` and `ssp` others may need steps of one that waits here: it abstains from those. Between
        `backward()` and `step()` it cannot.

        Args:
            values: by name, or one: numbers and small tensors, 4096 numbers in all. The same names and shapes
                on all workers.
            op: "mean", "sum", "min" or "max". NaN of one worker is NaN for all.
            limit_s: seconds to wait for the others.

        Returns:
            As `values`: floats for numbers, tensors for tensors (float64 where they are no floats).

        Raises:
            CallLimitExceeded: the others have not made the call in time; who was missing is named.
            JobMismatch: another worker makes another call; raised on all of them.
            RolledBack: the job went back, and the script has no loop of ours that goes back with it.
            UsageError: what is given cannot be reduced, or the worker has finished or left.
        """
        with self._steps.inside:
            self._steps.begin_call()
            self._refuse_in_group("all_reduce()", ON_GROUP)
            return self._steps.together.reduce(values, op, limit_s)

    def broadcast(self, value: Any, src: int = 0, *, limit_s: float = LIMIT_S) -> Any:
        """Gives all workers the value of one of them; see `all_reduce` for order, waiting and errors.

        Args:
            value: what JSON has, 32 KiB of it at most; that of the others does not matter.
            src: the worker whose value all get.
            limit_s: seconds to wait for the others.

        Returns:
            The value as JSON gives it back, on `src`, too: tuples are lists, keys are texts.

        Raises:
            JobUnknown: the worker `src` is not there.
        """
        if not 0 <= src < self._settings.num_workers:
            raise UsageError(f"broadcast: src must be a worker from 0 to {self._settings.num_workers - 1}")
        with self._steps.inside:
            self._steps.begin_call()
            self._refuse_in_group("broadcast()", ON_GROUP)
            return self._steps.together.broadcast(value, source=src, own=src == self.rank, limit_s=limit_s)

    def barrier(self, *, limit_s: float = LIMIT_S) -> None:
        """Returns when all workers have called it; see `all_reduce` for order, waiting and errors."""
        with self._steps.inside:
            self._steps.begin_call()
            self._refuse_in_group("barrier()", ON_GROUP)
            self._steps.together.barrier(limit_s)

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
        self._steps.finish()

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
        self._metrics.close()
        self._steps.leave(reason, hurried=self._interrupted or stopping.interrupted())
        if self._own_servers is not None:
            self._own_servers.close(in_order=not reason)
        self._left = True
        atexit.unregister(self.leave)
        if self._link.written is not None and not reason:
            raise self._link.written

    def give_up(self, error: BaseException) -> None:
        """Leaves the job, as far as it has come there, where this ended `connect`."""
        self._metrics.close()
        if not self._link.presence.entered:
            return
        self._interrupted = isinstance(error, KeyboardInterrupt)
        try:
            self.leave(reason_of(error))
        except BaseException:  # Ctrl-C once more: no heartbeat goes on, and its lease ends the rest
            self._link.presence.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._interrupted = isinstance(error, KeyboardInterrupt)
        self.leave(reason_of(error))
        if isinstance(error, RuntimeError) and self._group is not None:
            self._group.check()  # it was of a call of torch.distributed, which ended with the group

    # -- inside ----------------------------------------------------------------------------------------

    def _refuse_in_group(self, what: str, instead: str) -> None:
        if self.group_size > 1:
            raise UsageError(
                f"{what} is not built for groups of ranks (group_size {self.group_size}): {instead}"
            )

    def _check_group_wrap(
        self, overlap: Literal["auto"] | bool, clip_grad_norm: float | None
    ) -> Literal["auto"] | bool:
        """Refuses what `wrap` cannot do in a group; gives `overlap` as it is there."""
        if self.group_size == 1:
            return overlap
        stages = self._group is not None and self._group.stages is not None
        if stages and overlap is True:
            self._refuse_in_group("overlap=True in a pipeline", "leave overlap out, or give overlap=False")
        if stages and clip_grad_norm is not None and not self._settings.consistency.aggregates:
            self._refuse_in_group(  # a stage has not the whole norm
                f"clip_grad_norm in a pipeline under {self._settings.consistency}", "take bsp"
            )
        return False if stages else overlap

    def _check_pipeline_wrap(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, pipe: Pipeline | None
    ) -> None:
        """Refuses what `wrap` cannot do in a pipeline."""
        if pipe is None:
            if self._group is not None and self._group.stages is not None:
                raise UsageError(
                    "the processes of this worker are the stages of a pipeline (PS_PIPELINE_STAGES): wrap "
                    "takes pipe = worker.pipeline(model, ...) in place of the model"
                )
            return
        if any(optimizer.state.values()):
            raise UsageError("an optimizer that has taken steps is wrapped before it has, in a pipeline")
        grouped = {id(it) for group in optimizer.param_groups for it in group["params"]}
        for name, parameter in model.named_parameters():
            if id(parameter) not in grouped:
                raise UsageError(
                    f"parameter {name!r} is not in the optimizer, and in a pipeline all are: what is not to "
                    "be trained has requires_grad=False"
                )

    def _open_metrics(self) -> MetricsEndpoint:
        """Listens before the worker joins: who has no port is told before others wait for it."""
        chosen = self._settings
        access = OPEN
        if chosen.metrics_port is not None:
            access = read(token_file=chosen.token_file, tls_dir=chosen.tls_dir, complain=self._steps.say)
        return MetricsEndpoint(
            chosen.metrics_host,
            chosen.metrics_port,
            WorkerMetrics(chosen, self._steps).text,
            access=access,
            log=logger,
        )

    def _make_loader(self, **given: Any) -> Loader:
        return self._data.make_loader(
            self._link, rank=self.rank, num_workers=self.num_workers, ended=self.ended, **given
        )

    def _next_table(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """The number of the next table, if none of these is in another one."""
        closed = self._steps.closed()
        if closed is not None and not self.ended:
            raise UsageError(closed)
        steps = self._steps
        number = sum(optimizer.num_tables for optimizer in steps.optimizers) + len(steps.tables)
        for name, tensor in tensors.items():
            _, other = self._table_of.get(id(tensor), (tensor, number))
            if other < number:
                raise UsageError(f"{name!r} is in table {other} already: a parameter has one optimizer")
        return number
