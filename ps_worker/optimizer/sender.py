"""The gradients of all tables of one optimizer: what of them leaves in a step, unscaled and clipped.

It knows how gradients leave (`Mode`), with which weight, and the tables; it must not know when a step begins
or ends, nor weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ps_wire.spec.table import Hyperparameters
from ps_worker.optimizer.bucket_gradients import Unscale
from ps_worker.optimizer.started_table import StartedTable
from ps_worker.optimizer.table_gradients import Mode, TableGradients, changed_error
from ps_worker.step.batch_in_hand import BatchInHand
from ps_worker.step.first_push import FirstPush
from ps_worker.step.step_host import StepHost

NORM_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


class Sender:
    """The gradients of an optimizer on their way to the servers, over all its tables.

    Attributes:
        tables: gradients by table, in the order in which the tables were made.
        sizes: parameters of each param-group of the optimizer when the newest table was made.
        as_views: gradients lie in the memory that is pushed.
        abstained: steps in which there was nothing to push.
        of_one_rank: they are those of one rank of a group.
    """

    def __init__(
        self,
        host: StepHost,
        batch: BatchInHand,
        *,
        mode: Mode,
        clip_norm: float | None,
        first: FirstPush,
        divides: bool,
        as_views: bool,
        of_one_rank: bool = False,
        may_overlap: bool = True,
    ) -> None:
        """Has no tables.

        Args:
            host: the worker.
            batch: nothing of one that is void leaves.
            mode: how buckets leave, to begin with.
            clip_norm: that this worker clips its own gradients to, before they leave.
            first: the first push of a step, of all its tables.
            divides: loss scales are taken out by a division, as fused kernels do.
            as_views: gradients lie in the memory that is pushed.
            of_one_rank: they are those of one rank of a group, whose mean is taken as they leave: the script
                must not change them, which is looked at until a step in which it does not write into them.
            may_overlap: after a watched step in which nothing touched them, gradients leave in backward.
        """
        self.of_one_rank = of_one_rank
        self._may_overlap = may_overlap
        self.tables: Sequence[TableGradients] = ()
        self.sizes: list[int] = []
        self.as_views = as_views
        self.abstained = 0
        self._host = host
        self._batch = batch
        self._mode = mode
        self._clip_norm = clip_norm
        self._first = first
        self._divides = divides
        self._syncing = True

    def add(
        self,
        started: StartedTable,
        *,
        sizes: list[int],
        hyperparameters: Callable[[], Hyperparameters],
    ) -> None:
        """One more table, whose parameters get hooks.

        Args:
            started: the table.
            sizes: parameters of each param-group of the optimizer now.
            hyperparameters: what the table's param-groups say, when that is asked.
        """
        table = TableGradients(
            started,
            mode=self._mode if self._host.closed() is None else Mode.WAITING,
            syncing=self._may_leave,
            hyperparameters=hyperparameters,
            first=self._first,
            sending=self._host.inside.sending,
            as_views=self.as_views,
        )
        self.tables, self.sizes = (*self.tables, table), sizes  # together: no Ctrl-C comes between

    # -- what there is ---------------------------------------------------------------------------------

    @property
    def overlaps(self) -> bool:
        """Whether gradients leave while backward is still running."""
        return self._mode is Mode.OVERLAPPING and all(table.exchange.leaves_early for table in self.tables)

    @property
    def may_go_on(self) -> bool:
        """Whether the script may go on before all weights are here that are asked for after this step."""
        exchanges = [table.exchange for table in self.tables]
        by_part = all(exchange.by_part for exchange in exchanges)
        return by_part and (not self.as_views or all(exchange.gives_back for exchange in exchanges))

    @property
    def left(self) -> bool:
        """Whether pushes of this step have left."""
        return any(table.left for table in self.tables)

    @property
    def seen(self) -> bool:
        """Whether a hook has fired in this step."""
        return any(table.seen for table in self.tables)

    @property
    def arrived(self) -> set[int]:
        """The parameters whose hooks have fired in this step, by id."""
        return {id(parameter) for table in self.tables for parameter in table.arrived}

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Nothing leaves while it is open; what hooks have seen meanwhile was only accumulated."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before
            self.forget_arrivals()

    def forget_arrivals(self) -> None:
        """Forgets what hooks have seen so far: it was only accumulated, or is given up."""
        for table in self.tables:
            table.forget_arrivals()

    # -- a step ----------------------------------------------------------------------------------------

    def check_acked(self) -> None:
        """Raises what answers have brought meanwhile, such as `Evicted`; waits for none."""
        for table in self.tables:
            table.exchange.in_flight.wait_acked(())

    def wait_given_back(self) -> None:
        """Waits until the script may write to gradients of a step that has left.

        Raises:
            PsError: an exchange has failed.
        """
        if self.as_views:
            for table in self.tables:
                table.exchange.in_flight.wait_free()

    def decide(self, *, scaled: bool) -> None:
        """After a watched step: overlap if nothing touched the gradients. Later: an error if so.

        Args:
            scaled: a `GradScaler` calls.

        Raises:
            GradientChanged: something touched gradients that had left.
        """
        if self.left:
            for table in self.tables:
                table.flush()
            if scaled:
                raise changed_error("step() was called by a GradScaler")
            for table in self.tables:
                table.check_left(of_one_rank=self.of_one_rank)
        elif scaled:
            self._mode = Mode.WAITING
        elif self._mode is Mode.WATCHING and self.seen:
            if self.of_one_rank:
                written = [table.check_brought() for table in self.tables]
                if any(written):
                    return  # it may clip, and not have to yet
            untouched = self._may_overlap and all(table.change() is None for table in self.tables)
            self._mode = Mode.OVERLAPPING if untouched else Mode.WAITING

    def send(self, scale: float | None, *, overflow: bool) -> None:
        """Sends what has not left, or abstains where there is nothing to send.

        Args:
            scale: of the loss, which gradients still have.
            overflow: gradients hold infinities, and this worker abstains.
        """
        unscale = None if scale is None else self._unscale(scale)
        if overflow or not any(table.there or table.left for table in self.tables):
            self._abstain(overflow=overflow)
        elif self._clip_norm is None:
            for table in self.tables:
                table.send_rest(unscale)
        else:
            norm = sum([table.copy_all(unscale) for table in self.tables]) ** 0.5
            ratio = self._clip_norm / torch.tensor(norm + NORM_EPSILON, device="cpu")
            factor = torch.clamp(ratio, max=1.0).item()
            for table in self.tables:
                table.push_all(factor)

    def sit_out(self) -> None:
        """A step with nothing to push, for the others."""
        self.abstained += 1
        self.abstain_rest()

    def abstain_rest(self) -> None:
        """Abstains with what has not left of this step. May be called again."""
        for table in self.tables:
            table.abstain()

    def begin(self, *, wants_parts: bool = False) -> None:
        """Gets ready for the gradients of the next step, whose weights were asked for.

        Args:
            wants_parts: modules wait for the weights after that step, each for its own, if it overlaps.
        """
        self._first.end()
        for table in self.tables:
            table.begin(self._mode)
            table.exchange.want_by_bucket(wants_parts and self.overlaps and not self.as_views)

    def reenter(self, steps: Mapping[int, int]) -> None:
        """The worker has joined again, at these steps by table: what of a step had left is void."""
        self._first.reenter()
        for table in self.tables:
            table.reenter(steps[table.started.number])

    def release(self, limit_s: float) -> None:
        """Before the end: what has not left abstains, and is acknowledged within the limit."""
        for table in self.tables:
            table.abstain()
            table.exchange.in_flight.wait_acked(limit_s=limit_s)

    def detach(self) -> None:
        """Takes the hooks off the parameters."""
        for table in self.tables:
            table.detach()

    # -- inside ----------------------------------------------------------------------------------------

    def _may_leave(self) -> bool:
        return self._syncing and not self._batch.void

    def _unscale(self, scale: float) -> Unscale:
        """As plain torch does: kernels that take a scale divide by it, for others a scaler multiplies."""
        if self._divides:
            return lambda flat: flat.div_(scale)
        inverse = torch.tensor(scale, dtype=torch.float64, device="cpu").reciprocal().float().item()
        return lambda flat: flat.mul_(inverse)

    def _abstain(self, *, overflow: bool) -> None:
        if not self.abstained and not overflow:
            step = self.tables[0].step
            self._host.say(
                f"step {step} has no gradient: this worker abstains (said once). If that is not meant: is "
                "the model that the loss is computed with the one that was wrapped?"
            )
        self.abstained += 1
        self._first.weigh()  # the samples of this step weigh in no other
        self.abstain_rest()


def loss_scale(optimizer: Any) -> tuple[float | None, bool | None]:
    """Reads what a `GradScaler` has set on an optimizer for the step that it calls.

    Returns:
        The scale, if gradients still have it, and whether it found an overflow; None each where none calls.
    """
    scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    return None if scale is None else float(scale), None if overflow is None else bool(float(overflow))
