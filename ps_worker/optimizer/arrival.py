"""The weights of the next step on their way, over all tables of an optimizer: the forward waits per module.

    nothing          weights are here; or `step()` waits for all, as it does where overlap is off
    watching         a step in which `module_hooks` sees which modules are called; weights are here
    under way        `step()` has returned: modules wait, each for its own, until `finish`

Nothing is read, or shown, before it is here: `begin` waits for what no module waits for. A wait in a forward
raises nothing: if the worker was evicted, or the servers are lost, the pass runs on with what is there, what
backward makes of it never leaves, and the next `step()` joins again or raises. Before a step's first push
everything is shown (`finish`), for this push tells the servers that nothing older is read any more.

It must not know gradients. Used by the thread that trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from ps_wire.errors import Evicted, PsError, UsageError
from ps_worker.exchange.exchange import Exchange
from ps_worker.optimizer.module_hooks import ModuleHooks, Parameters
from ps_worker.optimizer.shown_weights import ShownWeights
from ps_worker.optimizer.started_table import StartedTable

WORTH_WAITING_BYTES = 8 << 10  # a parameter, on average: its hook takes as long as so much travels


@dataclass(frozen=True, slots=True)
class _Table:
    exchange: Exchange
    weights: ShownWeights
    parameters: Mapping[str, torch.nn.Parameter]
    index_of: Mapping[int, int]  # id of a parameter -> its number in the table
    partitions_of: tuple[frozenset[int], ...]  # by that number


class Arrival:
    """The weights of an optimizer's next step on their way, and the modules that wait for them.

    Attributes:
        under_way: `step()` has returned, and not all weights are known to be here.
        waited_s: seconds in which training had nothing to do but wait for weights.
        late: the parameters for which no module had waited when the step's first push left: id -> name.
    """

    def __init__(
        self, model: torch.nn.Module, *, report: Callable[[str, str], None], settle: Callable[[], None]
    ) -> None:
        """Touches nothing yet.

        Args:
            model: whose modules wait.
            report: says what is waited for.
            settle: waits for everything and calls `finish`; joins again where the worker was evicted.
        """
        self.under_way = False
        self.waited_s = 0.0
        self.late: dict[int, str] = {}
        self._report = report
        self._settle = settle
        self._tables: list[_Table] = []
        self._hooks = ModuleHooks(model, enter=self._enter, settle=self._settle_all)
        self._uncovered: list[tuple[_Table, list[int]]] = []  # parameters for which no module waits
        self._planned = False
        self._worth = False
        self._entered = False

    def add(self, started: StartedTable) -> None:
        """One more table, whose weights are here: parameters show them."""
        exchange, parameters = started.exchange, started.parameters
        indices: list[set[int]] = [set() for _ in parameters]
        for partition in exchange.partitions:
            for piece in exchange.plan.placements(partition):
                indices[piece.parameter].add(partition.index)
        pairs = zip(parameters.values(), indices, strict=True)
        shown = set().union(*(of for parameter, of in pairs if not parameter.is_meta))
        partitions = [it for it in exchange.partitions if it.index in shown]
        weights = ShownWeights(exchange.memory, parameters, partitions)
        table = _Table(
            exchange,
            weights,
            parameters,
            {id(parameter): index for index, parameter in enumerate(parameters.values())},
            tuple(map(frozenset, indices)),
        )
        self._tables = [*self._tables, table]
        self._planned = False
        self._worth = all(
            _worth_waiting(it.parameters) and not it.exchange.in_flight.skips for it in self._tables
        )

    # -- a step ----------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether modules are to wait for the weights that are asked for next."""
        return self._worth and self._planned and bool(self._hooks.covered)

    def plan(self) -> None:
        """A step with gradients is over: who was watched is known."""
        if self._hooks.watching:
            self._hooks.plan([it for table in self._tables for it in table.parameters.values()])
            covered = self._hooks.covered
            self._uncovered = [
                (table, [index for key, index in table.index_of.items() if key not in covered])
                for table in self._tables
            ]
            self._planned = True

    def watch(self) -> None:
        """All weights are here: in the next step modules are watched, if they were not yet."""
        if self._worth and not self._planned:
            self._hooks.watch()

    def expect(self) -> None:
        """The weights of the next step are about to be asked for."""
        for table in self._tables:
            table.weights.expect()

    def before_asking(self) -> None:
        """The memory in which weights arrive is about to be written."""
        for table in self._tables:
            table.exchange.memory.stagings.wait_into()

    def begin(self) -> None:
        """They were asked for: modules wait from now on. Waits for those for which none does.

        Raises:
            PsError: an exchange has failed.
        """
        self.late.clear()
        self._entered = False
        for table, indices in self._uncovered:
            self._wait(table, indices)
        self._hooks.put_on()
        self.under_way = True

    def finish(self) -> None:
        """All weights are here, and are shown."""
        if self.under_way:
            for table in self._tables:
                ids = list(table.index_of)
                pending = sorted(table.weights.pending)
                self.late |= dict(
                    zip((ids[index] for index in pending), table.weights.names_of(pending), strict=True)
                )
        self._hooks.take_off()
        for table in self._tables:
            table.weights.refresh()
        self.under_way = False

    def replace(self) -> None:
        """The worker has joined again: what was asked for before never comes, all of it is other weights."""
        for table in self._tables:
            table.weights.replace()

    def check_read(self, arrived: Collection[int]) -> None:
        """Refuses gradients of parameters that a forward read before they were waited for.

        Args:
            arrived: ids of the parameters that such a forward gave a gradient.

        Raises:
            UsageError: naming one.
        """
        for key in self.late.keys() & arrived:
            raise UsageError(
                f"parameter {self.late[key]!r} was read before its new weights were here: not through the "
                "forward of a module that was called when modules were watched. Call worker.synchronize() "
                "after optimizer.step(), or wrap the optimizer with overlap=False"
            )

    def check(self) -> None:
        """See `ShownWeights.check`; between steps."""
        for table in self._tables:
            table.weights.check()

    def wait(self) -> None:
        """Waits until all weights that were asked for are here. Raises `PsError` where an exchange failed."""
        started_s = time.monotonic()
        for table in self._tables:
            table.exchange.wait_pulled(self._report)
        self.waited_s += time.monotonic() - started_s

    def stay(self, limit_s: float) -> None:
        """Before the end: waits for what is under way, but not for ever; else weights stay as they are."""
        whole = True
        if self.under_way:
            until_s = time.monotonic() + limit_s
            for table in self._tables:
                try:
                    whole &= table.exchange.all_pulled_within(max(until_s - time.monotonic(), 0.0))
                except PsError:
                    whole = False
        if whole:
            if self.under_way:
                self.finish()
        else:
            for table in self._tables:
                table.weights.stay()
        self.take_off()

    def take_off(self) -> None:
        """No hook is left on the model, and no module waits any more."""
        self._hooks.take_off()
        self.under_way = False

    # -- inside ----------------------------------------------------------------------------------------

    def _settle_all(self) -> None:
        if self.under_way:
            self._settle()

    def _enter(self, wanted: Parameters) -> None:
        first, self._entered = not self._entered, True
        if all(table.exchange.all_pulled for table in self._tables):
            self._settle()  # all at once costs less than module by module
            return
        try:
            for table in self._tables:
                self._wait(table, [table.index_of[key] for key in wanted if key in table.index_of])
        except Evicted:
            if first:  # nothing was read yet: the whole pass sees the weights of now
                with suppress(PsError):
                    self._settle()
        except PsError:
            return  # step() raises it

    def _wait(self, table: _Table, indices: list[int]) -> None:
        if not indices:
            return
        wanted = frozenset().union(*(table.partitions_of[index] for index in indices))
        started_s = time.monotonic()
        table.exchange.wait_pulled(self._report, wanted)
        self.waited_s += time.monotonic() - started_s
        table.weights.arrive(indices, table.exchange.in_flight.versions[min(wanted, default=0)])


def _worth_waiting(parameters: Mapping[str, torch.nn.Parameter]) -> bool:
    nbytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
    return nbytes >= len(parameters) * WORTH_WAITING_BYTES
