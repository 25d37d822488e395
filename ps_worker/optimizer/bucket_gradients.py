"""The gradients of one bucket: gathered while backward runs, copied into flat memory, pushed.

Legend: K = parameters of the bucket, in the order in which backward reaches them.

With overlap, a bucket leaves from the hook that completes it. What leaves is final, so what the gradients
looked like then is kept, and `changed_since_left` compares it with what `step()` finds: the tensors
themselves, their version counters, and the bytes of a sample against what was sent (an `unscale_` on a CPU,
`p.grad.data` and numpy views change bytes and bump no counter). Where ranks of a group write their sum over
what was sent, the sample is kept by itself. It must not know param-groups, loss scales or other buckets.

Cost, 5,000 parameters: a hook that only notes its parameter 0.4 us, the copy 0.3 us a parameter; so all hooks
but one per bucket are `list.append`, and the one that looks whether the bucket is complete sits on the
parameter that came last when the bucket was last complete too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter, is_
from typing import TypeAlias

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable imports dynamo, 2 s

from ps_wire.errors import Evicted, ParameterUnsupported, UsageError
from ps_wire.process import trace
from ps_wire.spec.plan import Bucket
from ps_worker.exchange.exchange import Exchange
from ps_worker.memory.staging import DONE, Ticket
from ps_worker.memory.tensor_list import TensorList
from ps_worker.optimizer.gradient_changes import Sample, changed, cleared, replaced, same

MANY = 1000  # hooks in a bucket that together take a millisecond
HOOK_BYTES = 1 << 10  # travel in the time that a hook takes

_version_of = attrgetter("_version")
_gradient_of = attrgetter("grad")

Handle = torch.utils.hooks.RemovableHandle
Unscale: TypeAlias = Callable[[torch.Tensor], object]


class BucketGradients:
    """The gradients of one bucket: hooks that note them, the copy that leaves, and what is kept of it.

    Attributes:
        bucket: of the table's plan.
        left: what it has in this step is final: it is being copied, under way, or there.
        arrived: the parameters whose hooks have fired in this step, in order, again for each time.
        ticket: of the copy that `copy` began.
    """

    def __init__(
        self,
        exchange: Exchange,
        bucket: Bucket,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        *,
        as_views: bool = False,
    ) -> None:
        """Takes the table's parameters and names; picks its own by the bucket's placements.

        With `as_views` gradients lie in flat memory from the copy on, where their dtype and device are its.
        """
        self._as_views = as_views
        self.bucket = bucket
        self.left = False
        self.arrived: list[torch.Tensor] = []
        self.ticket: Ticket = DONE
        self._exchange = exchange
        mine = [placement.parameter for placement in bucket.placements]
        self.parameters = [parameters[number] for number in mine]
        self._names = [names[number] for number in mine]
        self._views = [exchange.memory.gathered.views[number] for number in mine]
        self._tensors = TensorList(self.parameters)
        self._places = TensorList(self._views)
        first, count = bucket.first_partition, bucket.num_partitions
        self.partitions = exchange.partitions[first : first + count]
        self._indices = frozenset(partition.index for partition in self.partitions)
        index_of = {number: index for index, number in enumerate(mine)}
        self._pieces = [
            [index_of[placement.parameter] for placement in exchange.plan.placements(partition)]
            for partition in self.partitions
        ]
        self._all = [(True,) * len(pieces) for pieces in self._pieces]
        self._zeros = set(range(len(mine)))  # parameters whose flat memory holds zeros, by index
        self._absent: list[int] = []
        self._sent: list[torch.Tensor | None] = []
        self._sent_there: list[torch.Tensor] = []
        self._sent_versions: list[int] = []
        self._sent_rows: Sequence[torch.Tensor | None] = ()
        self._sample = Sample(slice(0), 0)
        self._sent_arrivals = 0
        # A hook takes as long as 1 KiB takes to travel: many small parameters leave sooner without.
        self._overlaps = len(mine) < MANY or bucket.numel * bucket.item_bytes >= len(mine) * HOOK_BYTES
        self._hooked = [False] * len(mine)
        self._handles: list[Handle] = []
        self._trigger = len(mine) - 1
        self._late = False  # the bucket left in step(), though all its gradients were there
        self._noted: dict[int, tuple[torch.Tensor, int]] = {}

    # -- hooks -----------------------------------------------------------------------------------------

    def watch(self, on_note: Callable[[], None]) -> None:
        """Hooks that copy each gradient as it is complete, for `changed_since_noted`."""
        if not self._overlaps:
            return
        for index, parameter in self._unhooked():
            self._hook(parameter, index, partial(self._note, index, on_note))

    def overlap(self, on_complete: Callable[[BucketGradients], None]) -> None:
        """Hooks that call back once the gradients of all parameters that require one are there."""
        if not self._overlaps:
            return
        if self._late and self.arrived and self._distinct() == self._awaited():
            trigger = self._index_of(self.arrived[-1])
            if trigger != self._trigger:
                self._trigger = trigger
                self.unhook()
        for index, parameter in self._unhooked():
            if index == self._trigger:
                self._hook(parameter, index, partial(self._arrive, on_complete))
            else:
                self._hook(parameter, index, self.arrived.append)

    def unhook(self) -> None:
        """Takes all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked = [False] * len(self._hooked)

    def _unhooked(self) -> list[tuple[int, torch.nn.Parameter]]:
        """Parameters without a hook that can have one, by index: it may have been unfrozen since."""
        return [
            (index, self.parameters[index])
            for index, hooked in enumerate(self._hooked)
            if not hooked and self.parameters[index].requires_grad
        ]

    def _hook(self, parameter: torch.nn.Parameter, index: int, hook: Callable[[torch.Tensor], None]) -> None:
        register: Callable[..., Handle] = parameter.register_post_accumulate_grad_hook
        self._handles.append(register(hook))
        self._hooked[index] = True

    @_disable_dynamo  # in a compiled train step it would trace hooks
    def _note(self, index: int, on_note: Callable[[], None], parameter: torch.Tensor) -> None:
        on_note()
        gradient = parameter.grad
        if gradient is None:
            raise cleared(self._names[index])
        self.arrived.append(parameter)
        self._check_dense(gradient, index)
        try:
            self._exchange.in_flight.wait_free(self._indices)
        except Evicted:  # step() joins again
            return
        self._zeros.discard(index)
        with torch.no_grad():  # a gradient may have a graph of its own
            self._views[index].copy_(gradient)
        self._noted[index] = (gradient, gradient._version)

    @_disable_dynamo
    def _arrive(self, on_complete: Callable[[BucketGradients], None], parameter: torch.Tensor) -> None:
        self.arrived.append(parameter)
        if not self.left and len(self.arrived) == self._awaited() == self._distinct():
            on_complete(self)

    def _awaited(self) -> int:
        """How many gradients backward will bring, as the script has set `requires_grad` by now."""
        return sum([parameter.requires_grad for parameter in self.parameters])

    def _distinct(self) -> int:
        return len(set(map(id, self.arrived)))

    # -- a step ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forgets the step before."""
        self.left = False
        self.arrived.clear()
        self._noted.clear()
        self._sent = []
        self._sent_there = []

    def forget_arrivals(self) -> None:
        """Forgets what has arrived so far: it was only accumulated."""
        self.arrived.clear()
        self._noted.clear()

    @trace.traced("copy gradients")
    def copy(self, unscale: Unscale | None = None) -> None:
        """Copies what gradients there are into flat memory, zeros where there is none.

        Blocks until the exchange has given the memory back, not until an accelerator has copied: `ticket`.

        Args:
            unscale: takes a loss scale out of the copies, in place.

        Raises:
            ParameterUnsupported: a gradient is sparse, or its parameter has another shape now.
        """
        self._noted.clear()  # it was compared: gradients that move into flat memory go, bucket by bucket
        if not self._exchange.in_flight.all_free:
            self._exchange.in_flight.wait_free(self._indices)
        self._absent = []
        if unscale is None and self._lie_there():
            self.ticket.synchronize()
            self._zeros = set()
            self._sent, self._sent_there = [*self._views], self._views
            return
        gradients = [parameter.grad for parameter in self.parameters]
        there = [gradient for gradient in gradients if gradient is not None]
        views = self._views
        if len(there) < len(views):
            self._absent = [index for index, gradient in enumerate(gradients) if gradient is None]
            views = [self._views[index] for index, gradient in enumerate(gradients) if gradient is not None]
        self.ticket.synchronize()
        if self._exchange.sums:  # what lay there was of all ranks
            self._zeros.clear()
        with torch.no_grad():
            for index in self._absent:
                if index not in self._zeros:
                    self._views[index].zero_()
            self._zeros = set(self._absent)
            try:
                if self._as_views:
                    there = self._move(gradients)
                else:
                    self._copy_out(views, there)
            except RuntimeError:
                self._check_all(gradients)
                raise
            if unscale is not None and there:
                self.ticket.synchronize()
                unscale(self._exchange.memory.gathered.tensors[self.bucket.index])
        self._sent, self._sent_there = gradients, there

    def _lie_there(self) -> bool:
        """Whether each gradient is its view of flat memory: nothing is to be copied."""
        return self._as_views and self._tensors.have_gradients(self._places)

    def _move(self, gradients: list[torch.Tensor | None]) -> list[torch.Tensor]:
        """Copies what does not lie in flat memory yet, where it lies from then on; returns what is there."""
        moved = [
            (index, gradient)
            for index, gradient in enumerate(gradients)
            if gradient is not None and gradient is not self._views[index]
        ]
        self._copy_out([self._views[index] for index, _ in moved], [gradient for _, gradient in moved])
        for index, gradient in moved:
            view = self._views[index]
            if gradient.dtype is view.dtype and gradient.device == view.device:
                self.parameters[index].grad = gradients[index] = view
        return [gradient for gradient in gradients if gradient is not None]

    def _copy_out(self, views: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        if gradients:
            self.ticket = self._exchange.memory.stagings.of(gradients[0].device).out(views, gradients)

    def leave(self, *, late: bool, sample: Sample) -> None:
        """Makes what was copied final; `late` where backward is over. `sample`: see `changed_since_left`."""
        self.left, self._late, self._sample = True, late, sample
        if not late:
            self.keep()

    @property
    def early(self) -> bool:
        """Whether it has left while backward is running."""
        return self.left and not self._late

    @trace.traced("push")
    def push(self, *, step: int, weight: float) -> None:
        """Sends what `copy` has copied and `leave` has made final."""
        self.ticket.synchronize()
        absent = set(self._absent)
        present: Sequence[Sequence[bool]] = self._all
        if absent:
            present = [[index not in absent for index in pieces] for pieces in self._pieces]
        if self.early and self._exchange.sums:
            self._sent_rows = [self._copied_row(*it) for it in self._sampled()]
        self._exchange.push(self.partitions, step=step, weight=weight, present=present, early=self.early)

    def _copied_row(self, index: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """A copy of the row that is compared, as it was sent; None: the gradient lies there itself."""
        row = None if gradient is self._views[index] else self._sample.row(self._views[index])
        return None if row is None else row.clone()

    @property
    def _sent_indices(self) -> Sequence[int]:
        """The parameters whose gradients were sent, by index."""
        if not self._absent:
            return range(len(self._sent))
        return [index for index, gradient in enumerate(self._sent) if gradient is not None]

    def _sampled(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Of those the ones that are compared."""
        every = self._sample.every
        return zip(self._sent_indices[every], self._sent_there[every], strict=True)

    # -- checks ----------------------------------------------------------------------------------------

    def check_whole(self) -> None:
        """Refuses a bucket, complete and copied, of which a hook of the script's has cleared a gradient.

        Raises:
            UsageError: naming the parameter.
        """
        if self._absent:
            arrived = set(map(id, self.arrived))
            for index in self._absent:
                if id(self.parameters[index]) in arrived:
                    raise cleared(self._names[index])

    def keep(self) -> None:
        """Notes what `changed_since_left` compares with."""
        self._sent_versions = list(map(_version_of, self._sent_there))
        self._sent_arrivals = len(self.arrived)

    def changed_since_noted(self) -> str | None:
        """Says what happened to a gradient between its hook and now, exactly, or None."""
        if self._distinct() != len(self.arrived):
            return "a gradient accumulated over several backward passes"
        for index, (gradient, version) in self._noted.items():
            now = self.parameters[index].grad
            if now is not gradient:
                return replaced(self._names[index])
            if now._version != version or not same(now.detach(), self._views[index]):
                return changed(self._names[index])
        return None

    def other_since_noted(self) -> str | None:
        """Says which gradient has other values than backward has brought, in however many passes, or None."""
        for index, (gradient, _) in self._noted.items():
            now = self.parameters[index].grad
            if now is not gradient:
                return replaced(self._names[index])
            if not same(now.detach(), self._views[index]):
                return changed(self._names[index])
        return None

    @property
    def written_since_noted(self) -> bool:
        """Whether somebody has written into a gradient since, with other values or the same."""
        return any(gradient._version != version for gradient, version in self._noted.values())

    def changed_since_left(self) -> str | None:
        """Says what happened to a gradient since the bucket left, as far as the checks see, or None.

        All are looked at; the bytes of a row are compared of those in the sample with which it left.
        """
        kept = list(map(is_, map(_gradient_of, self.parameters), self._sent))
        if not all(kept):
            return replaced(self._names[kept.index(False)])
        if len(self.arrived) != self._sent_arrivals:
            index = self._index_of(self.arrived[-1])
            return f"a second backward added to the gradient of {self._names[index]!r}"
        versions = list(map(_version_of, self._sent_there))
        if versions != self._sent_versions:
            pairs = zip(versions, self._sent_versions, self._sent_indices, strict=True)
            return changed(self._names[next(index for now, then, index in pairs if now != then)])
        for place, (index, gradient) in enumerate(self._sampled()):
            now = self._sample.row(gradient.detach())
            sent = self._sent_rows[place] if self._exchange.sums else self._sample.row(self._views[index])
            if now is not None and sent is not None and not same(now, sent):
                return changed(self._names[index])
        return None

    def _index_of(self, parameter: torch.Tensor) -> int:
        return next(index for index, mine in enumerate(self.parameters) if mine is parameter)

    def _check_all(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                self._check_dense(gradient, index)

    def _check_dense(self, gradient: torch.Tensor, index: int) -> None:
        if gradient.layout is not torch.strided:
            raise UsageError(
                f"the gradient of {self._names[index]!r} is sparse: tables are dense "
                "(for an Embedding, sparse=False)"
            )
        view = self._views[index]
        if gradient.shape != view.shape:
            raise ParameterUnsupported(
                f"the gradient of {self._names[index]!r} has shape {tuple(gradient.shape)}; the parameter "
                f"had {tuple(view.shape)} when it was wrapped"
            )
