"""A worker's link to the service: its membership, a connection to every shard, an exchange for every table.

It starts tables, keeps what lies outside them (buffers, parameters without an optimizer) the same on all
workers, and ends in order. It must not know optimizers, loaders or hooks.

`_lock` guards `_exchanges`, which connections read while the user's thread adds tables, and `_failure`, which
a connection may have before there is a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ps_wire.errors import ConfigurationRefused, Evicted, PsError, UsageError, WeightsChanged
from ps_wire.frames.carrier import Carrier
from ps_wire.sockets.shared_memory import AVAILABLE, Layout
from ps_wire.spec.consistency import BSP, SSP
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2
from ps_worker.exchange.exchange import Exchange
from ps_worker.job.rejoiner import Rejoiner
from ps_worker.memory.os_memory import can_overlay
from ps_worker.memory.table_memory import Sharing
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from ps_worker.settings import Settings
from ps_worker.transport.server_check import check_servers

WORTH_MAPPING_BYTES = 8 << 10  # a parameter, on average: to show it elsewhere takes 1 us, as copying so much
FIGURES_LIMIT_S = 10.0  # for a shard to count; a script waits for it


class JobLink(Rejoiner):
    """See the module's docstring. A `Peer` of its connections.

    Attributes:
        rank: the worker's number.
        ended: the job had ended before this worker joined: it may only read.
        resumed: the job has its weights and steps, which this worker takes up.
        written: what `close` found: the script had written into a parameter, or weights cannot be kept.
    """

    written: PsError | None = None

    def __init__(
        self, settings: Settings, *, progress: Callable[[], pb.Progress], say: Callable[[str], None]
    ) -> None:
        """Has not joined."""
        super().__init__(settings, progress=progress, say=say)
        self._newest: tuple[TableSpec, Exchange] | None = None
        self._filled: set[int] = set()  # tables whose exchange has this worker's weights
        self._uploaded: set[int] = set()
        self._shares = (
            bool(settings.servers)
            and settings.carrier in (None, Carrier.SHM)
            and AVAILABLE
            and settings.shares
        )

    def open(self) -> None:
        """Checks the servers, joins and connects. Raises what `connect` raises."""
        try:
            check_servers(self._service, self._settings.connect_limit_s, self._say)
            self._enter(None)
        except BaseException:
            self._service.close()
            raise
        self._now.connect(self._carriers, self._places)

    # -- tables ----------------------------------------------------------------------------------------

    def start_table(
        self,
        spec: TableSpec,
        values: Iterable[torch.Tensor],
        outside: ModelExtras | None = None,
        states: Sequence[Mapping[str, Any]] = (),
        *,
        strict: bool = False,
        pulls: bool = False,
    ) -> tuple[Exchange, int]:
        """Makes a table and waits until it has started; then its weights, and `outside`, are the job's.

        Where Ctrl-C ended it, it may be called again for the same table, and goes on.

        Args:
            spec: its number must be the next one.
            values: this worker's weights, in the order of the table's parameters; the starter's are used.
            outside: what goes along with the table and is not in it; set in place.
            states: the optimizer's state of each parameter in torch's format, or none at all; the starter's
                are used.
            strict: a step that takes other hyper-parameters than this worker's is an error here.
            pulls: each step's weights are pulled and shown before the next push, so they need not be copied.

        Returns:
            The exchange, with the job's weights, and this worker's first step.

        Raises:
            UsageError: a call that was interrupted has made the table otherwise.
        """
        while True:
            try:
                return self._start_table(spec, values, outside, states, strict, pulls)
            except Evicted as error:
                self._newest = None
                self._uploaded.discard(spec.number)
                with self._lock:
                    self._exchanges.pop(spec.number, None)
                self._refused(error)

    def _start_table(
        self,
        spec: TableSpec,
        values: Iterable[torch.Tensor],
        outside: ModelExtras | None,
        states: Sequence[Mapping[str, Any]],
        strict: bool,
        pulls: bool,
    ) -> tuple[Exchange, int]:
        live = self._first_live() if self.resumed and outside is not None else {}
        exchange = self._made_again(spec)
        if exchange is None:
            self._membership.make_table(spec)
            maps = pulls and all(value.is_cpu for value in values)
            exchange = self._exchange(spec, strict=strict, pulls=maps)  # while the shards open it
            exchange.connect(self._connections)
            self._newest = spec, exchange
        upload = self._membership.wait_made(spec.number)
        with self._lock:
            self._exchanges[spec.number] = exchange
            failure = self._failure
        if failure is not None:
            exchange.fail(failure)
        exchange.sharing.share()
        if outside is not None:
            self._outside[spec.number] = outside
        step = None
        while step is None:
            if upload:
                if spec.number not in self._uploaded:
                    self._upload(exchange, spec.number, values, states)
                self._membership.uploaded(spec.number)
            step = self._membership.wait_started(spec.number)
            upload = upload or step is None
        self._get(exchange, step, read=self.ended)
        if outside and not upload:
            model_table.copy_into(self._live_or_kept(live, spec.number), outside.tensors())
        self._begun = [*self._begun[: spec.number], spec]
        return exchange, step

    def _exchange(self, spec: TableSpec, *, strict: bool, pulls: bool) -> Exchange:
        """Of a new table; its payloads travel where there can be no memory to share, as over `uds`."""
        plan = Plan(spec, len(self._connections))
        make = partial(
            Exchange,
            table=spec.number,
            plan=plan,
            worker=self.rank,
            incarnation=self._now.joined.incarnation,
            start=spec.optimizer.hyperparameters,
            strict=strict,
            wire_dtype=self._settings.wire_dtype,
            backup=getattr(self._settings.consistency, "backup", 0) > 0,
            bounded=isinstance(self._settings.consistency, SSP),
            begins=partial(self._begin_push, spec.number),
        )
        try:
            return make(sharing=self._sharing(plan, pulls=pulls))
        except OSError as error:
            if self._settings.carrier is Carrier.SHM:
                raise ConfigurationRefused(
                    f"table {spec.number} can share no memory: {error.strerror} (PS_CARRIER=shm)"
                ) from None
            self._say(f"table {spec.number} shares no memory ({error.strerror}): its payloads travel")
            return make(sharing=Sharing.PRIVATE)

    def _sharing(self, plan: Plan, *, pulls: bool) -> Sharing:
        plain = pulls and self._settings.consistency == BSP() and not self.ended
        if not self._shares:
            lends = plain and AVAILABLE and self._settings.shares and self._settings.carrier is Carrier.UDS
            return Sharing.LENT if lends else Sharing.PRIVATE
        worth = Layout(plan).nbytes >= len(plan.parameters) * WORTH_MAPPING_BYTES
        if worth and plain and can_overlay() and self._carriers.all_take(Carrier.SHM, plan.num_shards):
            return Sharing.MAPPED
        return Sharing.COPIED

    def _made_again(self, spec: TableSpec) -> Exchange | None:
        """The exchange of this table, if a start of it was interrupted."""
        if self._newest is None or self._newest[0].number != spec.number:
            return None
        made, exchange = self._newest
        if made != spec:
            raise UsageError(
                f"a call that was interrupted has made table {spec.number} of other parameters, optimizer or "
                "options: make it as it was, or leave the job and connect again"
            )
        return exchange

    def _upload(
        self,
        exchange: Exchange,
        number: int,
        values: Iterable[torch.Tensor],
        states: Sequence[Mapping[str, Any]],
    ) -> None:
        if number not in self._filled:
            with torch.no_grad():
                torch._foreach_copy_(exchange.memory.staging.views, list(values))
            self._filled.add(number)
        exchange.load()
        exchange.wait_acked()
        exchange.memory.staged()
        if any(states):
            self.load_state(number, states)
        outside = self._outside.get(number)
        blob = model_table.pack({} if outside is None else outside.tensors())
        self._membership.calls.put_state(f"start/{number}", blob)
        self._uploaded.add(number)

    def at_step_boundary(self, step: int) -> None:
        """To be called between steps by the thread that trains: uploads what a reader has asked for.

        Args:
            step: that this worker has taken.
        """
        if self._membership.live_wanted:
            try:
                self._membership.put_live(self._live_state(), step)
            except PsError as error:  # a reader's trouble: this worker trains on
                self._say(f"a reader does not get this worker's buffers: {error}")
        if self._membership.position_wanted:
            if self._overdue:  # no step of this script begins where that is seen
                self._put_position(step)
            else:
                self._overdue = True

    # -- optimizer state -------------------------------------------------------------------------------

    def dump_state(self, table: int) -> list[dict[str, torch.Tensor]]:
        """The optimizer's state on the shards, in torch's format: one dict per parameter of the table.

        Under BSP, between steps, it is that of one step. Else every partition is read at a step of its own:
        then the largest step counts, and the log says so once.

        Raises:
            PsError: a shard refuses, or cannot be reached within the retry limit.
        """
        exchange = self._exchanges[table]
        while True:
            try:
                exchange.wait_acked()
                return self._state.dump(table, exchange.plan)
            except Evicted as error:
                self._refused(error)

    def load_state(self, table: int, states: Sequence[Mapping[str, Any]]) -> None:
        """Sets the optimizer's state on the shards, in place of all that is there.

        Args:
            table: its number.
            states: in torch's format, one per parameter of the table; empty: none. They are copied.

        Raises:
            UsageError: a value has not its parameter's shape.
            PsError: a shard refuses, such as a state that the optimizer cannot have, or cannot be reached.
        """
        exchange = self._exchanges[table]
        exchange.wait_acked()
        self._state.load(table, exchange.plan, states)

    def share_state(self, table: int, number: int, states: Sequence[Mapping[str, Any]]) -> None:
        """Load `number` (from 1) of a table's state, which all workers call: worker 0's is set on the shards.

        The others wait until it is. In a job that had ended there is nothing to set any more.

        Raises:
            StartLimitExceeded: worker 0 has not called it within the start limit.
            PsError: as for `load_state`, or the job cannot go on.
        """
        if self.ended:
            return
        exchange = self._exchanges[table]
        try:
            exchange.wait_acked()
            self._state.share(table, exchange.plan, number, states)
        except Evicted as error:  # it comes back to what the others have set
            self._refused(error)

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Waits until all have finished, then loads the final weights and what lies outside tables.

        Raises:
            WeightsChanged: the script has written into a parameter; nobody was told of an end yet.
        """
        alone = self._settings.num_workers == 1  # then nobody trains on, and writes what is mapped here
        while True:
            self.announce()  # there is more to train
            try:
                for exchange in self.exchanges:
                    exchange.wait_acked()
                    exchange.sharing.check_written()
                for exchange in () if alone else self.exchanges:
                    exchange.sharing.own()
                if not self.ended:
                    self._membership.finish(self._final_state)
                break
            except Evicted as error:
                self._refused(error)
        for number, exchange in enumerate(self.exchanges):
            self._get(exchange, 0, read=True)
            exchange.sharing.own(ended=True)
            if outside := self._outside.get(number):
                outside.load(self._kept(number))

    def _final_state(self) -> bytes:
        return model_table.pack(self._outside_tensors())

    def _live_state(self) -> bytes:
        return model_table.pack(self._outside_tensors() | self.registered.tensors())

    def close(self, reason: str) -> None:
        """Leaves the job; `reason` is logged by the coordinator. See `written` afterwards."""
        for exchange in self.exchanges:
            for last in (exchange.sharing.check_written, exchange.sharing.own):
                try:
                    last()
                except (WeightsChanged, ConfigurationRefused) as error:
                    self.written = error
                    self._say(error.message)
        for connection in self._connections:
            connection.quiet()
        self._membership.leave(reason, self.taken())
        for connection in self._connections:
            connection.close()
        self._service.close()
        self._membership.wait_threads()
        self.fail(UsageError(f"this worker has left job {self._settings.job}: connect again to train on"))

    # -- figures ---------------------------------------------------------------------------------------

    def figures(self) -> list[shard_pb2.TableStatus]:
        """What every shard says of this job's tables.

        Raises:
            ServerUnreachable: a shard does not answer.
        """
        tables: list[shard_pb2.TableStatus] = []
        for shard in range(len(self._service.addresses)):
            reply = self._service.shard(shard).Tables(
                shard_pb2.TablesRequest(), timeout=FIGURES_LIMIT_S, wait_for_ready=True
            )
            tables += [table for table in reply.tables if table.job == self._settings.job]
        return tables
