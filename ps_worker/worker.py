"""A worker: one member of one job, and everything that a script does through it."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.utils.data import Dataset

from ps_wire.allocator import keep_large_blocks
from ps_wire.consistency import BSP
from ps_wire.errors import PsError, UsageError
from ps_wire.staleness import merge_counts, summarize
from ps_wire.table import BucketOptions
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker import model_spec
from ps_worker.hyperparameters import OptimizerChoice
from ps_worker.link import Link
from ps_worker.loader import Loader
from ps_worker.settings import Settings
from ps_worker.stats import Stats
from ps_worker.table import Table
from ps_worker.wrapped import WrappedOptimizer

logger = logging.getLogger("ps_worker")
SETTLE_LIMIT_S = 5.0


class Worker:
    """Made by `connect`; a context manager that leaves the job when its block ends.

    The user's thread calls it; background threads receive frames and send heartbeats.

    Attributes:
        rank: this worker's number in the job, from 0.
        num_workers: that the job was made for.
        ended: the job had already ended: loaders are empty and the final weights are loaded.
    """

    def __init__(self, settings: Settings) -> None:
        """Checks the servers and joins.

        Raises:
            ServerUnreachable: a server does not answer; its address is named.
            ConfigurationRefused: the servers or the job refuse; the message says what differs.
        """
        keep_large_blocks(one_arena=False)
        self._settings = settings
        self._optimizers: list[WrappedOptimizer] = []
        self._tables: list[Table] = []
        self._metrics: dict[str, float] = {}
        self._samples = 0
        self._left = False
        self._finished = False
        self._link = Link(settings, progress=self._progress, say=self._say)
        self.rank = self._link.rank
        self.num_workers = settings.num_workers
        self.ended = self._link.ended
        atexit.register(self.leave)
        if self._link.resumed:
            self._say(f"job {settings.job} goes on where its workers left it")

    # -- tables ----------------------------------------------------------------------------------------

    def wrap(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        *,
        overlap: Literal["auto"] | bool = "auto",
        weight: Literal["equal", "samples"] = "equal",
        buckets: BucketOptions | None = None,
    ) -> WrappedOptimizer:
        """Puts the model's parameters on the servers, which run the optimizer from now on.

        Waits until all workers are here and the job has started; then the model has the job's weights.

        Args:
            optimizer: of torch.optim; its class and `param_groups` are sent as data.
            model: that owns the optimizer's parameters.
            overlap: push buckets while backward runs; "auto" begins after a first step in which nothing
                touched the gradients.
            weight: of a push in a BSP mean: "equal", or the "samples" that the loader handed out for it.
            buckets: sizes of buckets and partitions.

        Raises:
            ConfigurationRefused: the servers cannot run the optimizer or hold a parameter, the model or
                optimizer differs from the other workers', or it does not fit into a server's memory.
            StartLimitExceeded: the job did not start in time; who was missing is named.
            UsageError: the optimizer holds parameters that the model does not have.
        """
        if overlap not in ("auto", True, False):
            raise UsageError(f'overlap must be "auto", True or False, got {overlap!r}')
        if weight not in ("equal", "samples"):
            raise UsageError(f'weight must be "equal" or "samples", got {weight!r}')
        number = len(self._optimizers) + len(self._tables)
        parameters = model_spec.parameters_of(model, optimizer)
        spec = model_spec.model_table(number, parameters, optimizer, buckets or BucketOptions())
        outside = model_spec.outside_of(model, parameters.values())
        exchange, step = self._link.start_table(spec, parameters.values(), outside)
        wrapped = WrappedOptimizer(
            optimizer,
            parameters=parameters,
            exchange=exchange,
            step=step,
            overlap=overlap,
            weight=self._sample_weight() if weight == "samples" else _one,
            ended=self._ended_text() if self.ended else None,
            log=self._say,
            at_step=self._link.at_step_boundary,
        )
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
        number = len(self._optimizers) + len(self._tables)
        spec = model_spec.table_of(
            number,
            tensors,
            group_of={id(tensor): 0 for tensor in tensors.values()},
            optimizer=optimizer.spec(),
            buckets=buckets or BucketOptions(),
        )
        spec = replace(spec, clip_grad_norm=clip_grad_norm)
        exchange, step = self._link.start_table(spec, tensors.values(), {})
        made = Table(exchange, tuple(tensors), step, self._link.at_step_boundary)
        self._tables.append(made)
        return made

    # -- data ------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """This worker's share of a dataset; each iteration over it is one epoch.

        Over all workers every sample comes once per epoch. Under BSP all get equally many batches, of sizes
        that differ by at most one.

        Args:
            dataset: with a length and an index.
            batch_size: per worker.
            shuffle: another order each epoch, the same on all workers.
            seed: of that order; must be the same on all workers.
            drop_last: full batches only.
            options: of `torch.utils.data.DataLoader`: `collate_fn`, `num_workers`, `pin_memory`...

        Raises:
            UsageError: the dataset has fewer samples than the job workers, or an option makes no sense.
        """
        return Loader(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=self.rank,
            num_workers=self.num_workers,
            even=isinstance(self._settings.consistency, BSP),
            ended=self.ended,
            on_batch=self._count_samples,
            options=options,
        )

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of `count` epochs."""
        yield from range(count)

    # -- figures ---------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps that this worker has taken, over its tables the largest."""
        clocks = [optimizer.step_number for optimizer in self._optimizers]
        return max(clocks + [table.step for table in self._tables], default=0)

    def log(self, **metrics: float) -> None:
        """Keeps the latest value of each metric; they travel with heartbeats to whoever watches the job.

        Raises:
            UsageError: a value is not a number.
        """
        for name, value in metrics.items():
            number = value.detach() if isinstance(value, torch.Tensor) else value
            try:
                self._metrics[name] = float(number)
            except (TypeError, ValueError):
                raise UsageError(f"log({name}=...) takes a number, got {value!r}") from None

    def stats(self) -> Stats:
        """Figures so far; asks every shard for its part.

        Raises:
            ServerUnreachable: a shard does not answer.
        """
        tables = self._link.figures()
        gate_wait_s, max_gap = 0.0, 0
        for table in tables:
            mine = [entry for entry in table.workers if entry.worker == self.rank]
            gate_wait_s = max([gate_wait_s, *(entry.gate_wait_s for entry in mine)])
            max_gap = max([max_gap, *(entry.max_gap for entry in mine)])
        exchanges = self._link.exchanges
        spreads = [max(exchange.versions) - min(exchange.versions) for exchange in exchanges]
        return Stats(
            step=self.step,
            samples=self._samples,
            bytes_pushed=sum(exchange.bytes_pushed for exchange in exchanges),
            bytes_pulled=sum(exchange.bytes_pulled for exchange in exchanges),
            waited_s=self._waited_s,
            gate_wait_s=gate_wait_s,
            max_gap=max_gap,
            spread=max(spreads, default=0),
            staleness=summarize(merge_counts(table.tau for table in tables)),
        )

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Says that this worker has no more data, waits for all, and loads the final weights and buffers.

        Raises:
            PsError: the job cannot go on.
        """
        if self._finished:
            return
        for optimizer in self._optimizers:
            optimizer.abandon(SETTLE_LIMIT_S)
        if self.ended:
            self._say(self._ended_text())
        self._link.finish()
        for optimizer in self._optimizers:
            optimizer.refresh()
        self._finished = True

    def leave(self, reason: str = "") -> None:
        """Leaves the job; the others go on without this worker. Safe to call twice."""
        if self._left:
            return
        self._left = True
        atexit.unregister(self.leave)
        for optimizer in self._optimizers:
            try:
                optimizer.abandon(SETTLE_LIMIT_S)
            except PsError as error:
                logger.debug("a step could not be settled: %s", error)
            optimizer.detach()
        self._link.close(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave("" if kind is None else f"{kind.__name__}: {error}")

    # -- inside ----------------------------------------------------------------------------------------

    def _progress(self) -> pb.Progress:
        return pb.Progress(
            step=self.step,
            samples=self._samples,
            waited_s=self._waited_s,
            metrics=dict(self._metrics),
        )

    @property
    def _waited_s(self) -> float:
        return sum(optimizer.waited_s for optimizer in self._optimizers)

    def _count_samples(self, samples: int) -> None:
        self._samples += samples

    def _sample_weight(self) -> Callable[[], float]:
        """A function that gives the samples handed out since it was last called."""
        taken = self._samples

        def weight() -> float:
            nonlocal taken
            count, taken = self._samples - taken, self._samples
            return float(max(count, 1))

        return weight

    def _ended_text(self) -> str:
        return (
            f"job {self._settings.job} has ended: its final weights are loaded, there is nothing to train; "
            "start another --job to train again"
        )

    def _say(self, text: str) -> None:
        if not logger.handlers and not logging.getLogger().handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        rank = getattr(self, "rank", None)
        logger.info("worker%s: %s", "" if rank is None else f" {rank}", text)


def _one() -> float:
    return 1.0
