"""The start of a worker's tables: each is made on the servers, uploaded by who is asked, and entered by all.

It must not know how a worker joins again that was evicted meanwhile. Used by the thread that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ps_wire.errors import ConfigurationRefused, UsageError
from ps_wire.frames.carrier import Carrier
from ps_wire.sockets.shared_memory import AVAILABLE, Layout
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec
from ps_worker.exchange.exchange import Exchange
from ps_worker.exchange.traffic_listener import TrafficListener
from ps_worker.group.group import SHM, Group
from ps_worker.group.stage_traffic import StageTable
from ps_worker.group.step_header import Rider
from ps_worker.job.job_presence import JobPresence
from ps_worker.job.optimizer_state_calls import OptimizerStateCalls
from ps_worker.job.resumption import Resumption
from ps_worker.job.side_state import SideState, of_table
from ps_worker.memory.os_memory import can_overlay
from ps_worker.memory.table_memory import Sharing, stays
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from ps_worker.settings import Settings

WORTH_MAPPING_BYTES = 8 << 10  # a parameter, on average: to show it elsewhere takes 1 us, as copying so much


@dataclass(frozen=True, slots=True)
class _Made:
    """The newest table: as this worker has asked for it, and as the job cuts it."""

    asked: TableSpec
    cut: TableSpec
    exchange: Exchange


class TableStart:
    """The tables of one worker: how each starts here, and is entered again.

    Attributes:
        begun: those that have started here.
    """

    def __init__(
        self,
        settings: Settings,
        presence: JobPresence,
        side: SideState,
        resumption: Resumption,
        optimizer_state: OptimizerStateCalls,
        *,
        say: Callable[[str], None],
        traffic: TrafficListener | None = None,
        group: Group | None = None,
        rider: Rider | None = None,
    ) -> None:
        """Has no tables.

        Args:
            settings: of the worker.
            presence: whose live incarnation makes the tables.
            side: what goes along with them.
            resumption: where the script goes on.
            optimizer_state: of the tables.
            say: tells the person at the terminal something.
            traffic: is told of the traffic of all of them.
            group: whose ranks start them together; None: this process is the whole worker.
            rider: what goes along with the headers of its steps.
        """
        self._rider = rider
        self._group = group
        self.begun: list[TableSpec] = []
        self._settings = settings
        self._presence = presence
        self._side = side
        self._resumption = resumption
        self._optimizer_state = optimizer_state
        self._say = say
        self._traffic = traffic
        self._newest: _Made | None = None
        self._filled: set[int] = set()  # tables whose exchange has this worker's weights
        self._uploaded: set[int] = set()
        self._lends = group is not None and group.how == SHM
        self._shares = (
            bool(settings.servers)
            and settings.carrier in (None, Carrier.SHM)
            and AVAILABLE
            and settings.shares
        )

    def start(
        self,
        spec: TableSpec,
        values: Iterable[torch.Tensor],
        extras: ModelExtras | None,
        states: Sequence[Mapping[str, Any]],
        *,
        strict: bool,
        pulls: bool,
        stage: StageTable | None = None,
        max_norm: float | None = None,
    ) -> tuple[Exchange, int]:
        """See `JobLink.start_table`; where the worker was evicted, `give_up` comes next.

        Raises:
            Evicted: the worker was evicted meanwhile.
            PsError: the table cannot start.
        """
        presence = self._presence
        live: Mapping[str, torch.Tensor] = {}
        if presence.resumed and extras is not None:
            live = self._resumption.first(live=not self.begun)  # before a table is entered: then none waits
        found = self._made_again(spec)
        device = None
        if found is None and self._group is not None and stage is None:
            device = self._group.device_of(spec.number, values)
        maps = pulls and device is None and all(value.is_cpu or value.is_meta for value in values)
        make = partial(
            self._make, spec, strict=strict, pulls=maps, stage=stage, max_norm=max_norm, device=device
        )
        if found is None:
            presence.membership.make_table(spec)
            found = make(spec)  # while the shards open it
        made = presence.membership.wait_made(spec.number)
        if found.cut.stages != tuple(made.stages):  # the job's first worker has cut it elsewhere
            cut = replace(spec, stages=tuple(made.stages))
            found = make(cut)
        exchange, upload = found.exchange, made.upload
        presence.exchanges.add(exchange)
        exchange.sharing.share()
        if extras is not None:
            self._side.add(spec.number, extras)
        step = None
        while step is None:
            if upload:
                if spec.number not in self._uploaded and (self._settings.ranks.leads or stage is not None):
                    self._upload(exchange, values, states)
                presence.membership.uploaded(spec.number)
            step = presence.membership.wait_started(spec.number)
            upload = upload or step is None
        self.fetch(exchange, step, read=presence.joined.ended)
        if extras and (not upload or self._group is not None):  # its other ranks take them up
            kept = of_table(live, spec.number) or presence.calls.kept(spec.number)
            model_table.copy_into(kept, extras.tensors())
        self.begun = [*self.begun[: spec.number], found.cut]
        return exchange, step

    def give_up(self, table: int) -> None:
        """The worker was evicted while this table started: it is made anew."""
        self._newest = None
        self._uploaded.discard(table)
        self._presence.exchanges.remove(table)

    def check(self, num_tables: int) -> None:
        """Refuses to go back to a snapshot that has fewer tables than have started here.

        Raises:
            ConfigurationRefused: naming the first of them that it has not.
        """
        if len(self.begun) > num_tables:
            raise _made_later(num_tables)

    def enter_again(self) -> dict[int, int]:
        """Enters all tables that had started, with the weights of the first step there: by table.

        Raises:
            PsError: one cannot be entered, or the worker was evicted meanwhile.
        """
        steps = {}
        for spec in self.begun:
            exchange = self._presence.exchanges[spec.number]
            membership = self._presence.membership
            membership.make_table(spec)
            upload = membership.wait_made(spec.number).upload
            step = None
            if not upload:
                exchange.sharing.share()
                step = membership.wait_started(spec.number)
            if step is None:  # someone's weights are to start it
                raise _made_later(spec.number)
            steps[spec.number] = step
            self.fetch(exchange, step, read=self._presence.joined.ended)
        return steps

    def fetch(self, exchange: Exchange, step: int, *, read: bool) -> None:
        """Waits for the weights of a table at this clock; `read`: past the gate, for the job has ended."""
        exchange.pull(step=step, read=read)
        exchange.wait_pulled(self._presence.say_wait)

    # -- inside ----------------------------------------------------------------------------------------

    def _make(
        self,
        spec: TableSpec,
        cut: TableSpec,
        *,
        strict: bool,
        pulls: bool,
        stage: StageTable | None,
        max_norm: float | None,
        device: torch.device | None,
    ) -> _Made:
        exchange = self._exchange(
            cut, strict=strict, pulls=pulls, stage=stage, max_norm=max_norm, device=device
        )
        exchange.connect(self._presence.connections)
        self._newest = _Made(spec, cut, exchange)
        return self._newest

    def _exchange(
        self,
        spec: TableSpec,
        *,
        strict: bool,
        pulls: bool,
        stage: StageTable | None,
        max_norm: float | None,
        device: torch.device | None,
    ) -> Exchange:
        """Of a new table; its payloads travel where there can be no memory to share, as over `uds`."""
        plan = Plan(spec, self._presence.num_shards)
        sharing = self._sharing(plan, pulls=pulls)
        on_host = device is None and spec.clip_grad_norm is None
        make = partial(
            Exchange,
            table=spec.number,
            plan=plan,
            worker=self._presence.joined.worker,
            incarnation=self._presence.joined.incarnation,
            rank=self._settings.ranks.rank,
            start=spec.optimizer.hyperparameters,
            strict=strict,
            wire_dtype=self._settings.wire_dtype,
            backup=getattr(self._settings.consistency, "backup", 0) > 0,
            bounded=self._settings.consistency.bounded,
            decided=getattr(self._settings.consistency, "backup", 0) > 0 or spec.clip_grad_norm is not None,
            traffic=self._traffic,
            held=None if stage is None else stage.buckets_of(self._settings.ranks.rank, plan),
            device=device,
            ranks=None
            if self._group is None
            else self._group.traffic(
                spec.number,
                plan,
                stage,
                self._settings.consistency,
                rider=self._rider,
                max_norm=max_norm,
            ),
        )
        try:
            return make(
                sharing=sharing,
                lends=self._lends and device is None,
                ahead=sharing is Sharing.PRIVATE and on_host and self._plain(pulls=pulls),
            )
        except OSError as error:
            if self._settings.carrier is Carrier.SHM:
                raise ConfigurationRefused(
                    f"table {spec.number} can share no memory: {error.strerror} (PS_CARRIER=shm)"
                ) from None
            self._say(f"table {spec.number} shares no memory ({error.strerror}): its payloads travel")
            return make(sharing=Sharing.PRIVATE)

    def _sharing(self, plan: Plan, *, pulls: bool) -> Sharing:
        plain = self._plain(pulls=pulls)
        if not self._shares:
            lends = plain and AVAILABLE and self._settings.shares and self._settings.carrier is Carrier.UDS
            return Sharing.LENT if lends and self._group is None else Sharing.PRIVATE
        worth = stays(plan) or Layout(plan).nbytes >= len(plan.parameters) * WORTH_MAPPING_BYTES
        if worth and plain and can_overlay() and self._presence.can_map():
            return Sharing.MAPPED
        return Sharing.COPIED

    def _plain(self, *, pulls: bool) -> bool:
        """Whether weights that are pulled are those of the step that all have pushed."""
        return pulls and self._settings.consistency.lockstep and not self._presence.joined.ended

    def _made_again(self, spec: TableSpec) -> _Made | None:
        """This table, if a start of it was interrupted."""
        if self._newest is None or self._newest.asked.number != spec.number:
            return None
        if self._newest.asked != spec:
            raise UsageError(
                f"a call that was interrupted has made table {spec.number} of other parameters, optimizer or "
                "options: make it as it was, or leave the job and connect again"
            )
        return self._newest

    def _upload(
        self, exchange: Exchange, values: Iterable[torch.Tensor], states: Sequence[Mapping[str, Any]]
    ) -> None:
        number = exchange.number
        staging = exchange.memory.staging.views
        mine = [(view, value) for view, value in zip(staging, values, strict=True) if not value.is_meta]
        if number not in self._filled:
            with torch.no_grad():
                torch._foreach_copy_([view for view, _ in mine], [value for _, value in mine])
            self._filled.add(number)
        exchange.load()
        exchange.memory.staged(exchange.brings, [view for view, _ in mine])
        if self._settings.ranks.leads:
            if any(states):
                exchange.in_flight.wait_acked()
                self._optimizer_state.load(number, exchange.plan, states)
            self._presence.calls.put_state(f"start/{number}", self._side.pack_start(number))
        self._uploaded.add(number)


def _made_later(table: int) -> ConfigurationRefused:
    return ConfigurationRefused(
        f"table {table} was made after the snapshot that the job went back to: start the script again"
    )
