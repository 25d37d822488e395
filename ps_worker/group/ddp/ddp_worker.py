"""A worker of a baseline: the face of a `Worker`, behind which DistributedDataParallel does the work.

The workers meet through a file, over gloo. Each has the whole optimizer and steps by itself on the mean of
all gradients. What needs servers is refused by name. SIGTERM ends it when its step is over; the others, who
wait for its gradient then, end with it. One thread uses it.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Never, Self, SupportsFloat

import torch
from torch import distributed, nn

from ps_wire.errors import StartLimitExceeded, UsageError
from ps_wire.text import one_line
from ps_worker.data import torch_loader
from ps_worker.data.loader import Loader
from ps_worker.group.ddp.even_data import EvenData
from ps_worker.group.ddp.replica import Replica
from ps_worker.group.ddp.shown import Shown
from ps_worker.process import console, stopping
from ps_worker.process.straggling import Straggling
from ps_worker.recording.metric import name_of, number_of
from ps_worker.recording.recorder import StepRecorder, StepTotals
from ps_worker.recording.scalar_log import ScalarLog
from ps_worker.settings import Settings

NAME = "ddp"
MEETING = "meeting"  # the file through which workers find each other, in the folder

logger = logging.getLogger("ps_worker")


class DdpWorker:
    """Made by `connect` with `PS_DDP`; a context manager that leaves when its block ends.

    Attributes:
        rank: this worker's number, from 0.
        num_workers: of all.
        group_rank: 0: it is in no group of ranks.
        group_size: 1, likewise.
        local_rank: its number on this host, which is that of all.
        group: None: it is in no group of ranks.
        ended: False: nobody was here before.
        step: steps that it has taken.
    """

    group_rank, group_size, group, ended = 0, 1, None, False
    group_ends: bool | None = None

    def __init__(self, settings: Settings) -> None:
        """Waits for all others.

        Raises:
            StartLimitExceeded: they have not come in time.
            UsageError: the script has made process groups of its own.
        """
        assert settings.ddp is not None
        assert settings.worker is not None
        self._settings = settings
        self.rank = self.local_rank = settings.worker
        self.num_workers = settings.num_workers
        self.step = 0
        self._optimizer: torch.optim.Optimizer | None = None
        self._replica: Replica | None = None
        self._shown: Shown | None = None
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._clip: Callable[[], None] = _not_clipped
        self._before = StepTotals()  # of the steps before
        self._finished = self._left = False
        self._data = EvenData(self.rank, self.num_workers, self._begin_batch)
        self._recorder = None if settings.record is None else StepRecorder(settings.record, warn=self._say)
        self._scalars = None
        if settings.log_dir is not None:
            self._scalars = ScalarLog(settings.log_dir, settings.job, warn=self._say)
        self._straggling = None
        if settings.stragglers.parts:
            self._straggling = Straggling(settings.stragglers, flush=self._flush)
        self._meet()
        if self._recorder is not None:
            self._recorder.enter(
                self._recorder.header(
                    job=self._settings.job,
                    worker=self.rank,
                    incarnation=1,
                    consistency=NAME,
                    num_workers=self.num_workers,
                )
            )
        if self._scalars is not None:
            self._scalars.enter(first=self.is_first, since=0)
        atexit.register(self.leave)
        stopping.workers.add(self)

    def _meet(self) -> None:
        folder = self._settings.ddp
        assert folder is not None
        if distributed.is_initialized():
            raise UsageError(
                f"PS_DDP: this script has made process groups of its own, and the baseline {NAME} makes the "
                "one for all workers: connect before, or run the script without PS_DDP"
            )
        folder.mkdir(parents=True, exist_ok=True)
        try:
            distributed.init_process_group(
                "gloo",
                init_method=(folder.absolute() / MEETING).as_uri(),
                rank=self.rank,
                world_size=self.num_workers,
                timeout=timedelta(seconds=self._settings.start_limit_s),
            )
        except distributed.DistStoreError as error:
            raise StartLimitExceeded(
                f"not all of {self.num_workers} workers have come to {folder} (PS_DDP) within "
                f"{self._settings.start_limit_s:g} s (PS_START_LIMIT): {one_line(str(error))}"
            ) from None

    # -- what a script calls ---------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """Whether this is worker 0, who writes files for all."""
        return self.rank == 0

    def wrap(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        overlap: Literal["auto"] | bool = "auto",
        weight: Literal["equal", "samples"] = "equal",
        clip_grad_norm: float | None = None,
        strict_hyperparameters: bool = False,
        gradient_as_bucket_view: bool = False,
        buckets: object = None,
    ) -> torch.optim.Optimizer:
        """Gives all workers worker 0's weights, and has gradients averaged in backward; the same optimizer.

        Args:
            optimizer: of the script, which each worker runs for itself.
            model: that the script calls: its forward prepares DDP's reduction.
            overlap: DDP always overlaps.
            weight: "equal" alone.
            clip_grad_norm: largest norm of the mean, over all parameters.
            strict_hyperparameters: says nothing here: each worker has its own.
            gradient_as_bucket_view: as in DDP.
            buckets: DDP has buckets of its own.

        Raises:
            UsageError: it was called before, or with what a baseline does not have.
        """
        del overlap, strict_hyperparameters, buckets
        if weight != "equal":
            raise UsageError(f"weight={weight!r}: in the baseline {NAME} all pushes are equal: leave it out")
        if self._optimizer is not None:
            raise UsageError(
                f"the baseline {NAME} takes one model with one optimizer: wrap was called before"
            )
        parameters = [it for group in optimizer.param_groups for it in group["params"]]
        self._optimizer = optimizer
        self._replica = Replica(model, as_views=gradient_as_bucket_view)
        if clip_grad_norm is not None:
            self._clip = lambda: _clip(parameters, clip_grad_norm)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if self.rank == 0:
            assert self._settings.ddp is not None
            self._shown = Shown(self._settings.ddp, model)
        return optimizer

    def register_state(self, name: str, kept: Any) -> None:
        """Nobody comes later who would need it: nothing is done."""

    def loader(
        self,
        dataset: torch.utils.data.Dataset[Any],
        *,
        batch_size: int = 1,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """See `Worker.loader`: the batches that this worker would have under `bsp`."""
        return self._data.make_loader(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            options=options,
        )

    def shard(self, loader: torch.utils.data.DataLoader[Any], *, seed: int | None = None) -> Loader:
        """See `Worker.shard`."""
        return self._data.make_loader(**torch_loader.read(loader, seed=seed))

    def epochs(self, count: int, *, start: int = 0) -> Iterator[int]:
        """See `Worker.epochs`."""
        return self._data.epochs(count, start)

    def log(self, **metrics: SupportsFloat) -> None:
        """See `Worker.log`; they go to the record and to TensorBoard."""
        for name, value in metrics.items():
            number = number_of(name_of(name), value)
            if self._recorder is not None:
                self._recorder.log(name, number)
            if self._scalars is not None:
                self._scalars.log(name, number, self.step)

    def synchronize(self) -> None:
        """Weights are always here."""

    def barrier(self, *, limit_s: float = 0.0) -> None:
        """Returns when all workers have called it; `limit_s` is gloo's own."""
        del limit_s
        distributed.barrier()

    def finish(self) -> None:
        """Waits for all; from then on the model computes alone."""
        distributed.barrier()
        self._finished = True
        self._detach()
        if self._shown is not None:
            self._shown.end(self.step)

    def leave(self, reason: str = "") -> None:
        """Leaves; the others cannot go on without it. Called again, it does nothing."""
        del reason
        if self._left:
            return
        self._left = True
        atexit.unregister(self.leave)
        self._detach()
        if self._recorder is not None:
            self._recorder.close(self._totals())
        if self._scalars is not None:
            self._scalars.close()
        with suppress(RuntimeError):  # others have left before
            distributed.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        if isinstance(error, RuntimeError) and stopping.asked():
            raise SystemExit(stopping.EXIT_CODE) from None  # its sum broke off, since others had left

    def __getattr__(self, name: str) -> Never:
        if name in _REFUSED:
            raise UsageError(f"worker.{name} needs servers, and the baseline {NAME} has none")
        raise AttributeError(f"a worker has no {name!r}")

    # -- steps -----------------------------------------------------------------------------------------

    @property
    def place(self) -> stopping.Place:
        """See `stopping`."""
        if self._finished:
            return stopping.Place.DONE
        return stopping.Place.BETWEEN if self._optimizer is None else stopping.Place.STEP

    def _begin_batch(self) -> None:
        if self._straggling is not None and self._replica is not None:
            self._straggling.batch(self.rank, self.step, self._replica.waited_s)
        if self._recorder is not None:
            self._recorder.batch()

    def _before_step(self, *_of_the_hook: object) -> None:
        """The script has computed, and all gradients are summed."""
        assert self._replica is not None
        if not self._replica.pop_buckets():
            raise UsageError(
                f"no gradient was averaged before this step: the baseline {NAME} prepares that where the "
                "script calls the model that it has given to wrap(), and not a part of it"
            )
        if self._straggling is not None:
            self._straggling.called(self.step, self._replica.waited_s)
        if self._recorder is not None:
            self._recorder.called()
            self._recorder.sending(self.step, self._before)  # this step's sums are over when it is sent
            self._recorder.asked()
            self._before = self._totals()
        self._clip()

    def _after_step(self, *_of_the_hook: object) -> None:
        self.step += 1
        if self._recorder is not None:
            self._recorder.stepped(self._data.latest)
        if self._shown is not None:
            self._shown.after_step(self.step)
        stopping.step_ended()

    def _totals(self) -> StepTotals:
        if self._replica is None:
            return StepTotals()
        count = self._replica.num_bytes
        return StepTotals(waited_s=self._replica.waited_s, bytes_up=count, bytes_down=count)

    # -- inside ----------------------------------------------------------------------------------------

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._replica is not None:
            self._replica.release()

    def _flush(self) -> None:
        if self._recorder is not None:
            self._recorder.flush()

    def _say(self, text: str) -> None:
        console.show(logger)
        logger.info("worker %d: %s", self.rank, one_line(text))


_REFUSED = ("all_reduce", "broadcast", "stats", "stop_job", "table")


def _not_clipped() -> None:
    """Leaves gradients as they are."""


def _clip(parameters: list[torch.Tensor], norm: float) -> None:
    nn.utils.clip_grad_norm_(parameters, norm)
