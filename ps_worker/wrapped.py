"""The optimizer that a script gets from `Worker.wrap`: gradients leave, weights arrive.

Legend: P = parameters of the table.

A hook on every parameter notes its gradient; with overlap it copies it into the flat bucket at once, and a
bucket whose gradients are all there leaves while backward goes on. `step()` sends the rest, asks for the new
weights and returns when the next forward may start. Nothing writes a weight at any other time.

A step here: hooks copy and push full buckets -> step() checks, pushes the rest or abstains -> pull -> wait
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from ps_wire.errors import UsageError
from ps_wire.plan import Bucket
from ps_wire.table import Hyperparameters
from ps_worker.departure import Watch, changed_error
from ps_worker.exchange import Exchange
from ps_worker.flat import bucket_of
from ps_worker.hyperparameters import read_groups


class WrappedOptimizer(torch.optim.Optimizer):
    """Made by `Worker.wrap`. Its `param_groups` are the wrapped optimizer's own, so schedulers work on both.

    Attributes:
        step_number: this worker's clock on the table: steps taken, abstentions included.
        waited_s: seconds in `step()` between the last push and the last weight, in all.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        *,
        parameters: Mapping[str, torch.nn.Parameter],
        exchange: Exchange,
        step: int,
        overlap: Literal["auto"] | bool,
        weight: Callable[[], float],
        ended: str | None,
        log: Callable[[str], None],
        at_step: Callable[[int], None] = lambda _step: None,
    ) -> None:
        """See `Worker.wrap`."""
        self._at_step = at_step
        self._growing = True
        super().__init__(inner.param_groups, inner.defaults)
        self._growing = False
        self.step_number = step
        self.waited_s = 0.0
        self._parameters = list(parameters.values())
        self._names = list(parameters)
        self._exchange = exchange
        self._overlap = overlap is True
        self._undecided = overlap == "auto"
        self._weight = weight
        self._step_weight = 1.0
        self._first_hyper: Hyperparameters | None = None
        self._ended = ended
        self._log = log
        self._syncing = True
        self._warned_abstention = False
        self._watch = Watch(self._parameters, self._names)
        self._bucket_of = bucket_of(exchange.plan)
        self._pieces = [exchange.plan.pieces(partition) for partition in exchange.partitions]
        self._present = [False] * len(self._parameters)
        self._zero = [True] * len(self._parameters)
        self._left: set[int] = set()
        self._remaining: dict[int, int] = {}
        self._hooked = [False] * len(self._parameters)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        for parameter, view in zip(self._parameters, exchange.weights.views, strict=True):
            if parameter.device.type == "cpu":
                parameter.data = view
        self.refresh()
        self._begin()

    # -- what a script calls ---------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends this step's gradients and waits for the weights of the next.

        Args:
            closure: evaluated exactly once, with gradients on, before anything is sent.

        Returns:
            What the closure returned.

        Raises:
            GradientChanged: a gradient or hyper-parameter changed after its bucket had left.
            PsError: the job cannot go on; the message says why.
        """
        if self._ended is not None:
            raise UsageError(self._ended)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._decide_overlap()
        self._send_rest()
        self.step_number += 1
        self._exchange.pull(step=self.step_number)
        self._at_step(self.step_number)
        self.waited_s += self._exchange.wait_pulled(self._log)
        self.refresh()
        self._begin()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch.

        Raises:
            GradientChanged: gradients of this step have already left.
        """
        if self._left:
            raise changed_error("zero_grad() was called between backward and step()")
        super().zero_grad(set_to_none)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first one outside sends the sum."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not after the table is made.

        Raises:
            UsageError: always, once wrapped.
        """
        if not self._growing:
            raise UsageError("a table's parameters are fixed when it is made: add param-groups before wrap")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Not available: the state lives on the servers.

        Raises:
            UsageError: always.
        """
        raise UsageError("the optimizer's state lives on the servers; a worker cannot read it yet")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: ARG002
        """Not available: the state lives on the servers.

        Raises:
            UsageError: always.
        """
        raise UsageError("the optimizer's state lives on the servers; a worker cannot set it yet")

    # -- what a worker calls ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Makes autograd and other devices see that the weights are new."""
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._exchange.weights.views, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    parameter.data.copy_(view)
        torch.autograd.graph.increment_version(self._parameters)

    def abandon(self, limit_s: float) -> None:
        """Settles a step that will not be finished: what has not left abstains, and no gate waits for it."""
        if not self._left:
            return
        rest = [partition for partition in self._exchange.partitions if partition.bucket not in self._left]
        self._exchange.abstain(rest, step=self.step_number)
        self.step_number += 1
        self._left.clear()
        self._exchange.wait_acked(limit_s=limit_s)

    def detach(self) -> None:
        """Takes the hooks off; the model keeps its weights."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # -- hooks -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Gets ready for the next step's gradients."""
        self._watch.next_step()
        self._left.clear()
        self._remaining.clear()
        for index, parameter in enumerate(self._parameters):
            self._present[index] = False
            if parameter.requires_grad and not self._hooked[index] and self._ended is None:
                self._hooked[index] = True
                handle = _on_gradient(parameter, self._hook_of(index))
                self._handles.append(handle)

    def _hook_of(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(_parameter: torch.Tensor) -> None:
            if self._syncing:
                self._arrived(index)

        return hook

    def _arrived(self, index: int) -> None:
        bucket = self._bucket_of[index]
        self._check_dense(index)
        if bucket.index in self._left:
            raise changed_error(f"a second backward added to the gradient of {self._names[index]!r}")
        if self._undecided and not self._watch.seen:
            self._first_hyper = read_groups(self)
        if not self._remaining:
            self._count_awaited()
        first_time = index not in self._watch.seen
        self._watch.note(index)
        if not self._overlap:
            return
        self._copy(index)
        self._remaining[bucket.index] -= first_time
        if self._remaining[bucket.index] == 0:
            for place in bucket.placements:
                if place.parameter not in self._watch.seen:
                    self._copy(place.parameter)  # frozen: zeros, not what an earlier step has left there
            self._push(bucket)

    def _count_awaited(self) -> None:
        """How many gradients each bucket waits for, as the script has set `requires_grad` by now.

        A parameter that was frozen and still has a gradient never fires: its bucket leaves in `step()`.
        """
        self._remaining = {bucket.index: 0 for bucket in self._exchange.plan.buckets}
        for index, parameter in enumerate(self._parameters):
            if parameter.requires_grad or parameter.grad is not None:
                self._remaining[self._bucket_of[index].index] += 1

    # -- sending ---------------------------------------------------------------------------------------

    def _copy(self, index: int) -> None:
        """Copies a gradient into the flat bucket, or zeros where there is none."""
        bucket = self._bucket_of[index]
        first, count = bucket.first_partition, bucket.num_partitions
        self._exchange.wait_acked(self._exchange.partitions[first : first + count])
        view, gradient = self._exchange.gradients.views[index], self._parameters[index].grad
        self._present[index] = gradient is not None
        if gradient is not None:
            self._check_dense(index)
            with torch.no_grad():  # a gradient may have a graph of its own
                view.copy_(gradient)
        elif not self._zero[index]:
            view.zero_()
        self._zero[index] = gradient is None

    def _check_dense(self, index: int) -> None:
        gradient = self._parameters[index].grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise UsageError(
                f"the gradient of {self._names[index]!r} is sparse: tables are dense "
                "(for an Embedding, sparse=False)"
            )

    def _push(self, bucket: Bucket) -> None:
        if not self._left:
            self._exchange.set_hyperparameters(read_groups(self))
            self._step_weight = self._weight()
        self._left.add(bucket.index)
        first, count = bucket.first_partition, bucket.num_partitions
        for partition in self._exchange.partitions[first : first + count]:
            pieces = self._pieces[partition.index]
            self._exchange.push(
                partition,
                step=self.step_number,
                weight=self._step_weight,
                present=[self._present[piece.parameter] for piece in pieces],
            )

    def _decide_overlap(self) -> None:
        """After the first step: overlap if nothing touched the gradients. Later: an error if so."""
        if not self._watch.seen:
            return
        if self._left:
            self._check_departed()
        elif self._undecided:
            changed = self._watch.changed()
            steady = read_groups(self) == self._first_hyper
            self._overlap = changed is None and not self._watch.fired_twice and steady
            self._undecided = False

    def _check_departed(self) -> None:
        changed = self._watch.changed()
        if changed is not None:
            raise changed_error(changed)
        if not self._exchange.takes(read_groups(self)):
            raise changed_error("param_groups changed between backward and step()")

    def _send_rest(self) -> None:
        rest = [bucket for bucket in self._exchange.plan.buckets if bucket.index not in self._left]
        if not self._left and all(parameter.grad is None for parameter in self._parameters):
            self._abstain()
            return
        for bucket in rest:
            for place in bucket.placements:
                self._copy(place.parameter)  # what is there now, whatever the hook saw
            self._push(bucket)

    def _abstain(self) -> None:
        if not self._warned_abstention:
            self._warned_abstention = True
            self._log(f"step {self.step_number} has no gradient: this worker abstains (said once)")
        self._weight()  # the samples of this step weigh in no other
        self._exchange.abstain(self._exchange.partitions, step=self.step_number)


def _on_gradient(
    parameter: torch.nn.Parameter, hook: Callable[[torch.Tensor], None]
) -> torch.utils.hooks.RemovableHandle:
    register: Callable[..., torch.utils.hooks.RemovableHandle] = parameter.register_post_accumulate_grad_hook
    return register(hook)
