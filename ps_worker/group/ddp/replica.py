"""A model that torch's DistributedDataParallel keeps alike on all workers; the script calls it as before.

Its `forward` is DDP's as long as gradients are computed, since it is there that DDP prepares for backward.
Gradients are summed over gloo in DDP's own buckets, through a hook that also measures: bytes by the formula
of a ring, 2 (N - 1) / N of a bucket each way, and the time from the last bucket's start to the end of the
last sum, in which backward has nothing more to compute.

`_lock` guards the times and counts, which threads of gloo write, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


class _Bucket(Protocol):
    """A bucket of DDP."""

    def buffer(self) -> torch.Tensor:
        """Its gradients."""


class _Computes(nn.Module):
    """The model with its own forward, as DDP sees it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.own = model.forward

    def forward(self, *values: Any, **named: Any) -> Any:
        """The output of the model's own forward."""
        return self.own(*values, **named)


class Replica:
    """One worker's copy of the model."""

    def __init__(
        self, model: nn.Module, *, as_views: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Gives the model worker 0's weights; all workers make theirs together.

        Args:
            model: that the script calls.
            as_views: gradients lie in DDP's buckets.
            clock: seconds.
        """
        self._clock = clock
        self._size = distributed.get_world_size()
        self._lock = threading.Lock()
        self._ready_s = self._summed_s = 0.0
        self._waited_s = 0.0
        self._bytes = 0
        self._buckets = 0
        self._model = model
        computes = _Computes(model)
        ddp = DistributedDataParallel(computes, gradient_as_bucket_view=as_views)
        # DDP looks at its parameters: one is to be called `bucket`, and to have no annotation of another kind
        ddp.register_comm_hook(None, lambda _, bucket: self._sum(bucket))

        def forward(*values: Any, **named: Any) -> Any:
            return (ddp if torch.is_grad_enabled() else computes)(*values, **named)

        model.forward = forward

    def release(self) -> None:
        """The model computes alone again."""
        if "forward" in vars(self._model):
            del self._model.forward

    @property
    def waited_s(self) -> float:
        """Seconds in all in which backward had nothing to do but wait for sums."""
        with self._lock:
            return self._waited_s + max(self._summed_s - self._ready_s, 0.0)

    @property
    def num_bytes(self) -> int:
        """That a ring of all workers has sent from here, and got here, so far."""
        with self._lock:
            return self._bytes

    def pop_buckets(self) -> int:
        """How many were summed since this was called last."""
        with self._lock:
            count, self._buckets = self._buckets, 0
            self._waited_s += max(self._summed_s - self._ready_s, 0.0)
            self._ready_s = self._summed_s = 0.0
            return count

    def _sum(self, bucket: _Bucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's own reduction: divided by the number of workers, then summed."""
        gradients = bucket.buffer().div_(self._size)
        with self._lock:
            self._ready_s = self._clock()
            self._buckets += 1
            self._bytes += 2 * (self._size - 1) * gradients.nbytes // self._size
        work = distributed.all_reduce(gradients, async_op=True)
        assert work is not None
        summed: torch.futures.Future[torch.Tensor] = work.get_future().then(self._summed)
        return summed

    def _summed(self, done: torch.futures.Future[Any]) -> torch.Tensor:
        with self._lock:
            self._summed_s = self._clock()
        found: torch.Tensor = done.value()[0]
        return found
