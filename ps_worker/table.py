"""Tables without autograd: push gradients by name, pull weights by name.

table = worker.table({"w": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0))
table.push({"w": gradient}).result()
values = table.pull().result().values
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar, cast

import torch

from ps_wire.errors import Evicted, PsError, UsageError
from ps_worker.exchange.exchange import Exchange
from ps_worker.process.waiting import waits
from ps_worker.step.batch_in_hand import BatchInHand
from ps_worker.step.first_push import FirstPush
from ps_worker.step.step_host import StepHost

Result = TypeVar("Result")
MIN_WEIGHT, MAX_WEIGHT = 1e-30, 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The weights that a pull brought.

    Attributes:
        values: name -> tensor, of the shapes and dtypes that the table was made with.
        version: the oldest over partitions.
        spread: newest minus oldest version over partitions; 0 under BSP.
        clocks: worker -> its clock, as the shards have shown it so far.
    """

    values: Mapping[str, torch.Tensor]
    version: int
    spread: int
    clocks: Mapping[int, int]


class Table:
    """Made by `Worker.table`: tensors on the servers, without autograd.

    A push takes one step of this worker's clock. One push and one pull are under way at most: the next one
    waits for the one before, and until what that one brought is copied.

    Any thread may call it, one at a time on all that belongs to one worker; where two do at once, one of them
    gets `UsageError`. Any thread may wait for the futures, which are done on a connection's thread: what
    `add_done_callback` has called there holds up answers, and must not push or pull.

    Attributes:
        number: of the table in its job.
        waited_s: seconds in `result()` of what `pull` has returned.
    """

    def __init__(self, exchange: Exchange, names: tuple[str, ...], step: int, host: StepHost) -> None:
        """Takes a table that has started.

        Args:
            exchange: of the table.
            names: of its parameters, in order.
            step: this worker's first.
            host: the worker.
        """
        self.number = exchange.number
        self._exchange = exchange
        self._index = {name: index for index, name in enumerate(names)}
        self._taken = step
        self._sending: int | None = None  # a step that is sent, or that Ctrl-C has broken off as it was
        self._host = host
        self._batch = BatchInHand(host.is_rewound)
        self._first = FirstPush(host, step=lambda: self.step)
        self.waited_s = 0.0

    @property
    def behind(self) -> int:
        """Steps that the script takes again, and that the job has: nothing of them leaves."""
        return self._batch.behind

    @property
    def step(self) -> int:
        """This worker's clock: the number of its next push."""
        return self._exchange.in_flight.step_of(self._taken)

    def push(self, gradients: Mapping[str, torch.Tensor], *, weight: float = 1.0) -> Future[None]:
        """Pushes one step: the given gradients; the others count as none.

        Under `ssp` it blocks while other workers are further behind than the bound allows, as a pull at this
        clock would.

        Args:
            gradients: name -> tensor of the parameter's shape and dtype. They are copied before this returns.
            weight: of the push in a BSP mean, in 1e-30..1e30: it travels as float32.

        Returns:
            Done when every shard has acknowledged the push.

        Raises:
            UsageError: an unknown name, or another shape or dtype; or the worker has left or finished, or the
                job had ended before it came; nothing has left.
            PsError: the job cannot go on.
        """
        self._check(gradients)
        if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise UsageError(f"the weight of a push must be in {MIN_WEIGHT}..{MAX_WEIGHT}, got {weight}")
        return self._take_step(lambda step: self._push(gradients, weight, step))

    def _push(self, gradients: Mapping[str, torch.Tensor], weight: float, step: int) -> None:
        exchange = self._exchange
        exchange.in_flight.wait_free()
        with torch.no_grad():
            for name, index in self._index.items():
                view = exchange.gradients.views[index]
                view.copy_(gradients[name]) if name in gradients else view.zero_()
        present = {self._index[name] for name in gradients}
        pieces = map(exchange.plan.pieces, exchange.partitions)
        flags = [[piece.parameter in present for piece in those] for those in pieces]
        exchange.push(exchange.partitions, step=step, weight=weight, present=flags)

    def abstain(self) -> Future[None]:
        """Takes one step with nothing to apply."""
        return self._take_step(self._abstain)

    def _abstain(self, step: int) -> None:
        self._exchange.in_flight.wait_acked()
        self._exchange.abstain(step=step)

    def sit_out(self, *, again: bool) -> None:
        """As `WrappedOptimizer.sit_out`."""
        step = self.step
        self.settle()
        if self.step == step:  # else what was broken off was this step
            self._exchange.pass_gate(step)
            self._first.begin(self.number, step)
            self._take(step, self._abstain)
        self._batch.sit_out(again=again)
        self._host.after_step(self.step)

    def pull(self, out: Mapping[str, torch.Tensor] | None = None) -> Future[Pulled]:
        """Asks for the weights at this worker's clock.

        Args:
            out: where to copy them to, by name; default: new tensors.

        Returns:
            Done when the gate has opened and all weights have arrived.

        Raises:
            UsageError: `out` has an unknown name, or another shape or dtype; or another thread is inside.
        """
        if out is not None:
            self._check(out)
        with self._host.inside:
            return self._pull(out)

    def _pull(self, out: Mapping[str, torch.Tensor] | None) -> Future[Pulled]:
        try:
            self.settle()
            self._exchange.wait_pulled()
            self._exchange.pull(step=self.step)
        except Evicted:
            self._rejoin()
            self._exchange.pull(step=self.step)
        reply = _Reply(
            lambda: self._again(lambda: self._pull(out)).result(), lambda: self._pulled(out), self._waited
        )
        self._exchange.in_flight.when_pulled(reply.end, reply.read)
        return reply

    def _waited(self, seconds: float) -> None:
        self.waited_s += seconds

    def _take(self, step: int, push: Callable[[int], None]) -> None:
        """Takes this step with what `push` sends."""
        self._sending = step
        push(step)
        self._taken, self._sending = step + 1, None

    def _rejoin(self) -> None:
        self._host.rejoin()
        self._host.announce()

    # -- what a worker calls ---------------------------------------------------------------------------

    @property
    def clocks(self) -> dict[int, int]:
        """As `WrappedOptimizer.clocks`."""
        return {self.number: self.step}

    @property
    def taken(self) -> dict[int, int]:
        """As `WrappedOptimizer.taken`."""
        return self.clocks

    def is_between_steps(self) -> bool:
        """True: a push is a whole step."""
        return True

    def fall_behind(self, steps: int) -> None:
        """As `WrappedOptimizer.fall_behind`."""
        self._batch.fall_behind(steps)

    def reenter(self, steps: Mapping[int, int], *, stepped: Collection[int] = ()) -> None:
        """The worker was evicted and has joined again: what it had pushed at its last step is void.

        Args:
            steps: its next one, by table.
            stepped: tables that the script has stepped in a round that it has begun; what it pushes next
                here, of that round, is void.
        """
        self._taken, self._sending = steps[self.number], None
        self._first.reenter()
        self._batch.reenter(void=bool(stepped) and self.number not in stepped)

    def renew(self) -> None:
        """Lets what is pushed from now on count."""
        self._batch.renew()

    def replay(self) -> None:
        """A batch has come that was used already: a push of it that is behind is not made."""
        self._batch.replay()

    def settle(self) -> None:
        """Ends what Ctrl-C has broken off: of a step, what has left counts, and the rest abstains.

        Raises:
            PsError: the job cannot go on, or this worker was evicted.
        """
        self._exchange.forget_broken_off()
        step, exchange = self._sending, self._exchange
        if step is not None:
            if any(exchange.in_flight.pushed_step(it.index) == step for it in exchange.partitions):
                self._take(step, lambda step: exchange.abstain(step=step))
            self._sending = None

    # -- inside ----------------------------------------------------------------------------------------

    def _take_step(self, push: Callable[[int], None]) -> Future[None]:
        """Takes a step; of a worker that was evicted meanwhile it is void, and it joins again."""
        if (closed := self._host.closed()) is not None:
            raise UsageError(closed)
        with self._host.inside:
            if self._host.announce() or self._batch.void:
                self._host.drop_step()
            elif self._opens():
                step = self.step
                self._first.end()  # of one that an error ended
                self._first.weigh()
                try:
                    self._first.begin(self.number, step)
                    self._take(step, push)
                except Evicted:
                    self._rejoin()
                self._host.after_step(self.step)
            self._batch.end()
        reply = _Reply(lambda: self._again(lambda: None), lambda: None)
        self._exchange.in_flight.when_acked(reply.end)
        return reply

    def _opens(self) -> bool:
        """Waits at the gate; False: this worker was evicted meanwhile, and has joined again."""
        try:
            self.settle()
            self._exchange.pass_gate(self.step)
        except Evicted:
            self._rejoin()
            return False
        return True

    def _again(self, call: Callable[[], Result]) -> Result:
        """Goes on where the answer is that this worker was evicted: any thread may wait for it."""
        with self._host.inside.turn:
            if self._exchange.in_flight.evicted:
                self._rejoin()
            return call()

    @torch.no_grad()
    def _pulled(self, out: Mapping[str, torch.Tensor] | None) -> Pulled:
        exchange = self._exchange
        views = exchange.weights.views
        if out is None:
            values = {name: views[index].clone() for name, index in self._index.items()}
        else:
            values = {name: tensor.copy_(views[self._index[name]]) for name, tensor in out.items()}
        return Pulled(
            values=values,
            version=min(exchange.in_flight.versions),
            spread=exchange.in_flight.spread,
            clocks=dict(exchange.in_flight.clocks),
        )

    def _check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            index = self._index.get(name)
            if index is None:
                raise UsageError(f"the table has no {name!r}; it has {', '.join(self._index)}")
            view = self._exchange.gradients.views[index]
            if tensor.shape != view.shape or tensor.dtype != view.dtype:
                raise UsageError(
                    f"{name!r} has shape {tuple(view.shape)} and dtype {view.dtype} in this table, "
                    f"got {tuple(tensor.shape)} and {tensor.dtype}"
                )


class _Reply(Future[Result]):
    """A future whose owner, if it was evicted meanwhile, joins again in `result`, and then gets `again`."""

    def __init__(
        self,
        again: Callable[[], Result],
        make: Callable[[], Result],
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`make` makes the result as soon as that can be; `waited` hears of seconds in `result`."""
        super().__init__()
        self._waited = waited
        self._again, self._make = again, make
        self._made: Result | None = None
        self._failed: Exception | None = None
        self.set_running_or_notify_cancel()  # what has been asked for cannot be called back

    @waits("the servers to answer about a table")
    def result(self, timeout: float | None = None) -> Result:
        started_s = time.monotonic()
        try:
            return super().result(timeout)
        except Evicted:
            return self._again()
        finally:
            self._waited(time.monotonic() - started_s)

    def read(self) -> None:
        """See `InFlight.when_pulled`."""
        try:
            self._made = self._make()
        except Exception as error:  # noqa: BLE001 - who asked gets it: its tensors may have changed meanwhile
            self._failed = error

    def end(self, error: PsError | None) -> None:
        """Sets the result: what was asked for has come, or never will."""
        failed = error or self._failed
        if failed is None:
            self.set_result(cast(Result, self._made))
        else:
            self.set_exception(failed)
