"""The gradients of one table on their way to the shards: when its buckets leave, and what must hold then.

    watching     the first step with a gradient: hooks copy, nothing leaves before `step()`, which decides
    overlapping  a bucket leaves from the hook that completes it
    waiting      everything leaves in `step()`; there are no hooks

Overlap begins only if a watched step showed that nothing touches gradients after backward; every later step
is checked again, and a change then is an error, since what has left is final. It must not know loss scales,
closures or other tables; `sender` brings several tables of one optimizer together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from enum import Enum
from itertools import accumulate

import torch

from ps_wire.errors import Evicted, GradientChanged
from ps_wire.spec.table import Hyperparameters
from ps_worker.optimizer.bucket_gradients import BucketGradients, Unscale
from ps_worker.optimizer.gradient_changes import Sample
from ps_worker.optimizer.started_table import StartedTable
from ps_worker.step.first_push import FirstPush

SAMPLE = 16  # gradients of which a row is compared in a step: 4 us each
REMEDY = (
    "wrap the optimizer with overlap=False; after a Ctrl-C in backward, optimizer.abandon() gives the step up"
)

OF_ONE_RANK = (
    "In a group of ranks that is done to the gradient of one rank, before the mean over ranks is taken, and "
    "clip_grad_norm_ would bound another norm than under DistributedDataParallel: give clip_grad_norm= to "
    "wrap. What is meant for a rank's own gradient goes into the loss, or a hook (Tensor.register_hook)"
)


class Mode(Enum):
    """The moment at which buckets leave."""

    WATCHING = "watching"
    OVERLAPPING = "overlapping"
    WAITING = "waiting"


class TableGradients:
    """The gradients of one table: its buckets, when they leave, and the checks of what has left.

    Attributes:
        started: the table.
        exchange: of the table.
        step: this worker's clock on the table.
        mode: how buckets leave.
    """

    def __init__(
        self,
        started: StartedTable,
        *,
        mode: Mode,
        syncing: Callable[[], bool],
        hyperparameters: Callable[[], Hyperparameters],
        first: FirstPush,
        sending: AbstractContextManager[object],
        as_views: bool = False,
    ) -> None:
        """Puts hooks on the parameters as `mode` asks.

        Args:
            started: the table.
            mode: to begin with.
            syncing: False where a backward pass only accumulates.
            hyperparameters: what the table's param-groups say now.
            first: the first push of a step, of all tables of the optimizer.
            sending: held while a hook sends, see `OneThread`.
            as_views: gradients lie in the memory that is pushed.
        """
        self.started = started
        self.exchange = exchange = started.exchange
        self.step = self._next = started.step
        self.mode = mode
        self._parameters = list(started.parameters.values())
        self._syncing = syncing
        self._hyperparameters = hyperparameters
        self._first = first
        self._sending = sending
        self._seen: Hyperparameters | None = None  # at the first hook of a watched step
        self._turn = 0
        self._leaving: list[BucketGradients] = []  # an accelerator copies them
        names = list(started.parameters)
        self._buckets = [
            BucketGradients(exchange, bucket, self._parameters, names, as_views=as_views)
            for bucket in exchange.plan.buckets
        ]
        counts = [len(bucket.parameters) for bucket in self._buckets]
        self._before = [0, *accumulate(counts)]  # parameters of the buckets before each
        exchange.attach(self)
        try:
            self._hook()
        except BaseException:  # Ctrl-C: nobody has this object yet, to take its hooks off
            self.detach()
            raise

    @property
    def left(self) -> bool:
        """Whether pushes of this step have left."""
        return any(bucket.left for bucket in self._buckets)

    @property
    def seen(self) -> bool:
        """Whether a hook has fired in this step."""
        return any(bucket.arrived for bucket in self._buckets)

    @property
    def arrived(self) -> list[torch.Tensor]:
        """Parameters whose hooks have fired in this step."""
        return [parameter for bucket in self._buckets for parameter in bucket.arrived]

    @property
    def there(self) -> bool:
        """Whether a parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self._parameters)

    # -- what step() asks ------------------------------------------------------------------------------

    def change(self) -> str | None:
        """Says what changed between hooks and now in a watched step, which overlap would miss, or None."""
        for bucket in self._buckets:
            changed = bucket.changed_since_noted()
            if changed is not None:
                return changed
        if self._seen is not None and self._seen != self._hyperparameters():
            return "param_groups changed between backward and step()"
        return None

    def check_brought(self) -> bool:
        """Refuses a watched step in which gradients are not what backward has brought.

        Returns:
            Whether the script has written into some, with the same values: it may clip, and not have to yet.

        Raises:
            GradientChanged: naming the parameter, and what to do in a group of ranks.
        """
        for bucket in self._buckets:
            other = bucket.other_since_noted()
            if other is not None:
                raise GradientChanged(f"{other}. {OF_ONE_RANK}")
        return any(bucket.written_since_noted for bucket in self._buckets)

    def check_left(self, *, of_one_rank: bool = False) -> None:
        """Refuses a step whose gradients or hyper-parameters changed after buckets had left.

        Args:
            of_one_rank: they are those of one rank of a group.

        Raises:
            GradientChanged: naming the parameter.
        """
        for bucket in self._buckets:
            changed = bucket.changed_since_left() if bucket.left else None
            if changed is not None:
                raise changed_error(changed, OF_ONE_RANK if of_one_rank else "")
        if not self.exchange.takes(self._hyperparameters()):
            raise changed_error("param_groups changed between backward and step()")

    def send_rest(self, unscale: Unscale | None) -> None:
        """Sends every bucket that has not left, with what gradients there are now.

        Args:
            unscale: takes a loss scale out of what is sent, in place.
        """
        for bucket in self._buckets:
            if not bucket.left:
                bucket.copy(unscale)
                self._leave(bucket, late=True)
        self.flush()
        self.exchange.push_rest(step=self.step)

    def flush(self, *, wait: bool = True) -> None:
        """Sends the buckets that an accelerator has copied; with `wait` those that it still copies, too."""
        while self._leaving and (wait or self._leaving[0].ticket.query()):
            bucket = self._leaving.pop(0)
            weight = self._first.weigh()
            self._first.begin(self.started.number, self.step)
            bucket.push(step=self.step, weight=weight)

    def copy_all(self, unscale: Unscale | None) -> float:
        """Copies every bucket, sends none; returns the sum of squares of all elements."""
        squares = 0.0
        for bucket in self._buckets:
            bucket.copy(unscale)
            bucket.ticket.synchronize()
            flat = self.exchange.memory.gathered.tensors[bucket.bucket.index]
            squares += float(torch.linalg.vector_norm(flat, dtype=torch.float64)) ** 2
        return squares

    def push_all(self, factor: float) -> None:
        """Sends what `copy_all` has copied, times `factor`."""
        for bucket in self._buckets:
            self.exchange.memory.gathered.tensors[bucket.bucket.index].mul_(factor)
            self._leave(bucket, late=True)
        self.flush()
        self.exchange.push_rest(step=self.step)

    def abstain(self) -> None:
        """Takes this step with nothing to apply on what has not left. May be called again."""
        self._leaving.clear()
        self._first.begin(self.started.number, self.step)
        self.exchange.abstain(step=self.step)

    def pull(self) -> None:
        """The step's pushes are out: asks for the weights of the next. May be called again."""
        self._next = self.step + 1
        self.exchange.pull(step=self._next)

    def reenter(self, step: int) -> None:
        """The worker has joined again: what it pushed of a step under way is void. `begin` must follow."""
        self._next = step

    def begin(self, mode: Mode) -> None:
        """Gets ready for the gradients of the step that was pulled for. May be called again."""
        self.step = self.exchange.in_flight.step_of(self._next)
        if mode is not self.mode:
            for bucket in self._buckets:
                bucket.unhook()
        self.mode = mode
        self._hook()
        for bucket in self._buckets:
            bucket.begin()
        self._leaving.clear()
        self._seen = None
        self._turn += 1

    def forget_arrivals(self) -> None:
        """Forgets what hooks have seen so far: it was only accumulated."""
        self._seen = None
        for bucket in self._buckets:
            if not bucket.left:
                bucket.forget_arrivals()

    def detach(self) -> None:
        """Takes the hooks off."""
        for bucket in self._buckets:
            bucket.unhook()

    # -- hooks -----------------------------------------------------------------------------------------

    def _hook(self) -> None:
        for bucket in self._buckets:
            if self.mode is Mode.WATCHING:
                bucket.watch(self._noted)
            elif self.mode is Mode.OVERLAPPING:
                bucket.overlap(self._complete)

    def _noted(self) -> None:
        if self._seen is None:
            self._seen = self._hyperparameters()

    def _complete(self, bucket: BucketGradients) -> None:
        if self._syncing() and self.exchange.leaves_early:
            with self._sending, suppress(Evicted):  # step() joins again
                self._first.settle()
                bucket.copy()
                bucket.check_whole()
                self._leave(bucket, late=False)

    def _sample(self, bucket: BucketGradients) -> Sample:
        """Every `stride`-th parameter of the table, of which this bucket has some."""
        stride = -(-len(self._parameters) // SAMPLE)
        start = (self._turn - self._before[bucket.bucket.index]) % stride
        return Sample(slice(start, None, stride), self._turn // stride)

    def _leave(self, bucket: BucketGradients, *, late: bool) -> None:
        if not self.left:
            self.exchange.set_hyperparameters(self._hyperparameters())
        bucket.leave(late=late, sample=self._sample(bucket))
        self._leaving.append(bucket)
        self.flush(wait=False)


def changed_error(what: str, more: str = "") -> GradientChanged:
    """The error of something that changed after a bucket had left; `more`: a sentence behind it."""
    text = f"{what}, after gradients had already left (communication overlaps backward): {REMEDY}"
    return GradientChanged(f"{text}. {more}" if more else text)
