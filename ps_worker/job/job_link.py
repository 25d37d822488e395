"""A worker's link to its job: it owns its presence there, the start of its tables, and what lies beside them.

It adds what takes several of them: calls that join again where the worker was evicted meanwhile, and the end.
It must not know optimizers, loaders or hooks. The thread that is inside the worker's calls uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from ps_wire.errors import ConfigurationRefused, Evicted, PsError, UsageError, WeightsChanged
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2
from ps_worker.data.position import Positions
from ps_worker.exchange.exchange import Exchange
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.exchange.traffic_listener import TrafficListener
from ps_worker.group.channel import Said
from ps_worker.group.group import Group
from ps_worker.group.stage_traffic import StageTable
from ps_worker.job.group_capture import CUT, FORETELLS, FORETELLS_STAGES, NOTE, GroupCapture
from ps_worker.job.job_presence import JobPresence
from ps_worker.job.link_listener import LinkListener
from ps_worker.job.optimizer_state_calls import OptimizerStateCalls
from ps_worker.job.presence import Presence
from ps_worker.job.rank_presence import RankPresence
from ps_worker.job.rejoiner import Rejoiner
from ps_worker.job.resumption import Resumption
from ps_worker.job.side_state import SideState
from ps_worker.job.side_uploads import SideUploads
from ps_worker.job.table_start import TableStart
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import Put, SnapshotPromise, put_beside
from ps_worker.model.extras import ModelExtras
from ps_worker.process.farewell import Farewell
from ps_worker.settings import Settings

ALONE = "no PS_SERVERS: running alone, with a server in this process"
FIGURES_LIMIT_S = 10.0  # for a shard to count; a script waits for it
SETTLE_S = 2.0  # for a note of the position that is on its way when the worker leaves

Result = TypeVar("Result")


class JobLink:
    """The link of one worker to its job. Has joined once `open` has returned.

    Attributes:
        presence: its live incarnation.
        side: what lies beside its tables.
        promise: to snapshots: when they capture that.
        notes: likewise, of a group: when its ranks capture what they note.
        rounds: where the script is, for others who join.
        resumption: where the script goes on.
        uploads: what others get of what lies beside tables.
        optimizer_state: that lies on the shards.
        start: of its tables.
        rejoiner: its way back.
        written: what `close` found: the script had written into a parameter, or weights cannot be kept.
    """

    def __init__(
        self,
        settings: Settings,
        listener: LinkListener,
        traffic: TrafficListener | None = None,
        group: Group | None = None,
    ) -> None:
        """Has not joined, and asks nothing of the listener.

        Args:
            settings: of the worker.
            listener: the worker.
            traffic: is told of the traffic of its tables.
            group: of which this process is one rank; None: it is the whole worker.

        Raises:
            PsError: see `open_service`.
        """
        self._settings = settings
        self._listener = listener
        self.written: PsError | None = None
        # Rank 0 of a pipeline has the buffers of all stages.
        self.side = SideState(listener.say, with_buffers=settings.ranks.leads or not settings.pipeline)
        self.rounds = RoundBarrier(listener.clocks)
        self.promise: SnapshotPromise
        self.notes: SnapshotPromise
        capture = self._capture = None
        foretells = 0
        if group is not None:
            promises = {CUT: lambda: self.promise, NOTE: lambda: self.notes}
            capture = self._capture = GroupCapture(group.channel, promises)
            if capture.leads:
                foretells = FORETELLS_STAGES if settings.pipeline else FORETELLS
        promise = partial(SnapshotPromise, listener.clocks, foretells=foretells)
        self.promise = promise(
            lambda: self.side.pack_cut(listener.positions()),
            hand=put_beside if capture is None else partial(_take_cut, capture),
        )
        self.notes = promise(
            lambda: self.side.pack_note(listener.positions()),
            hand=put_beside if capture is None else partial(capture.take, NOTE),
        )
        self._group = group
        self.presence: JobPresence
        if group is None or group.ranks.leads:
            self.presence = Presence(settings, listener, self.promise, self.rounds, group)
        else:
            self.presence = RankPresence(settings, group, listener.say)
        self.resumption = Resumption(
            self.presence, self.side, listener, rank=0 if group is None else settings.ranks.rank
        )
        self.uploads = SideUploads(self.presence, self.side, listener, capture)
        self.optimizer_state = OptimizerStateCalls(
            settings,
            lambda: self.presence.membership,
            calls_of=self.presence.shard,
            say=listener.say,
        )
        self.start = TableStart(
            settings,
            self.presence,
            self.side,
            self.resumption,
            self.optimizer_state,
            say=listener.say,
            traffic=traffic,
            group=group,
            rider=capture,
        )
        self.rejoiner = Rejoiner(
            self.presence, self.start, self.resumption, listener, promise=self.promise, rounds=self.rounds
        )

    def open(self) -> None:
        """Checks the servers, joins and connects. Raises what `connect` raises."""
        if not self._settings.servers:
            self._listener.say(ALONE)
        self.presence.open()

    # -- who it is -------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The worker's number."""
        return self.presence.joined.worker

    @property
    def ended(self) -> bool:
        """The job had ended before this worker joined: it may only read."""
        return self.presence.joined.ended

    @property
    def resumed(self) -> bool:
        """The job has its weights and steps, which this worker takes up."""
        return self.presence.resumed

    @property
    def incarnation(self) -> int:
        """The live one of this worker."""
        return self.presence.joined.incarnation

    @property
    def exchanges(self) -> Exchanges:
        """Of all its tables."""
        return self.presence.exchanges

    # -- tables ----------------------------------------------------------------------------------------

    def start_table(
        self,
        spec: TableSpec,
        values: Iterable[torch.Tensor],
        extras: ModelExtras | None = None,
        states: Sequence[Mapping[str, Any]] = (),
        *,
        strict: bool = False,
        pulls: bool = False,
        stage: StageTable | None = None,
        max_norm: float | None = None,
    ) -> tuple[Exchange, int]:
        """Makes a table and waits until it has started; then its weights, and `extras`, are the job's.

        Where Ctrl-C ended it, it may be called again for the same table, and goes on.

        Args:
            spec: its number must be the next one.
            values: this worker's weights, in the order of the table's parameters; the starter's are used.
            extras: what goes along with the table and is not in it; set in place.
            states: the optimizer's state of each parameter in torch's format, or none at all; the starter's
                are used.
            strict: a step that takes other hyper-parameters than this worker's is an error here.
            pulls: each step's weights are pulled and shown before the next push, so they need not be copied.
            stage: what this process holds of the table, in a pipeline; None: all of it.
            max_norm: to which the ranks of a group clip the mean of their gradients; None: they do not.

        Returns:
            The exchange, with the job's weights, and this worker's first step.

        Raises:
            UsageError: a call that was interrupted has made the table otherwise.
            RolledBack: the job went back, and the script has yet to go there.
        """
        if self._listener.went_back():
            raise self._listener.sent_back(f"table {spec.number} is made before the script has gone there")
        while True:
            try:
                return self.start.start(
                    spec,
                    values,
                    extras,
                    states,
                    strict=strict,
                    pulls=pulls,
                    stage=stage,
                    max_norm=max_norm,
                )
            except Evicted as error:
                self.start.give_up(spec.number)
                self.rejoiner.refused(error)

    def begin_step(self, tables: Iterable[int] | None = None) -> None:
        """A step is about to begin, or has begun, on these tables, None: all; see `SnapshotPromise.begin`."""
        self.resumption.begin_step()
        self.promise.begin(tables)
        if self._capture is not None:
            self.notes.begin(tables)

    def begin_push(self, table: int) -> None:
        """The first push of a step on this table is about to leave; waits where none may."""
        self.rounds.begin(table)
        self.begin_step((table,))

    # -- optimizer state -------------------------------------------------------------------------------

    def dump_state(self, table: int) -> list[dict[str, torch.Tensor]]:
        """The optimizer's state on the shards, in torch's format: one dict per parameter of the table.

        Under BSP, between steps, it is that of one step. Else every partition is read at a step of its own:
        then the largest step counts, and the log says so once.

        Raises:
            PsError: a shard refuses, or cannot be reached within the retry limit.
        """
        exchange = self.exchanges[table]

        def dump() -> list[dict[str, torch.Tensor]]:
            exchange.in_flight.wait_acked()
            return self.optimizer_state.dump(table, exchange.plan)

        return self._again(dump)

    def load_state(self, table: int, states: Sequence[Mapping[str, Any]]) -> None:
        """Sets the optimizer's state on the shards, in place of all that is there.

        Args:
            table: its number.
            states: in torch's format, one per parameter of the table; empty: none. They are copied.

        Raises:
            UsageError: a value has not its parameter's shape.
            PsError: a shard refuses, such as a state that the optimizer cannot have, or cannot be reached.
        """
        exchange = self.exchanges[table]
        exchange.in_flight.wait_acked()
        self.optimizer_state.load(table, exchange.plan, states)

    def share_state(self, table: int, number: int, states: Sequence[Mapping[str, Any]]) -> None:
        """Load `number` (from 1) of a table's state, which all workers call: worker 0's is set on the shards.

        The others wait until it is. In a job that had ended there is nothing to set any more, and nothing is
        set by a script that has yet to go back with its job.

        Raises:
            StartLimitExceeded: worker 0 has not called it within the start limit.
            PsError: as for `load_state`, or the job cannot go on.
        """
        if self.ended:
            return
        if self._listener.went_back():
            self._listener.say("load_state_dict() sets nothing: the job goes back to its snapshot's state")
            return
        exchange = self.exchanges[table]

        def share(_: list[Said]) -> Said:
            self.optimizer_state.share(table, exchange.plan, number, states)
            return Said()

        try:
            exchange.in_flight.wait_acked()  # on all ranks, before the leader sets anything
            if self._group is None:
                share([])
            else:
                self._group.channel.relay(f"load_state_dict() of table {table}", share)
        except Evicted as error:  # it comes back to what the others have set
            self.rejoiner.refused(error)

    # -- what lies beside tables -----------------------------------------------------------------------

    def register(self, name: str, kept: object) -> None:
        """See `Registered.add`; what comes late gets what a worker that trains has."""
        self.side.registered.add(name, kept)
        if self.resumed and not self.start.begun:
            self.resumption.first(live=True)

    def note_taken(self, at: Positions) -> None:
        """This worker stands where another process was: if it goes at once, that is what is taken up."""
        if self.resumption.state:
            self.uploads.note_taken(self.resumption.whole, at)

    # -- calls to the coordinator ----------------------------------------------------------------------

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        """Asks what of an epoch of a loader this worker hands out next.

        Raises:
            PsError: the coordinator refuses, or cannot be reached.
        """
        while True:
            try:
                return self.presence.calls.share(request)
            except Evicted as error:
                self.rejoiner.refused(error)
                if self._listener.announce() or not self._listener.arrived():
                    return pb.ShareReply()  # the script's loop goes back first
                for mark in (request.mark, request.rest):  # of the incarnation that is gone
                    mark.samples = mark.pace = 0

    def use(self, request: pb.UseRequest) -> None:
        """How far this worker has come in it; see `share` for errors.

        Where it was evicted nothing of the step leaves: a shard that has not heard of it yet would count the
        step, of which nobody knows what it was made of.
        """
        try:
            self.presence.calls.use(request)
        except Evicted as error:
            self.presence.exchanges.fail(error)
            raise

    def begin_epoch(self, epoch: int, *, loop: int, stop: int) -> pb.EpochReply:
        """Whether the script's loop is to begin an epoch; `last` is set where it is not.

        Where this worker joined again meanwhile, and its loop is to go elsewhere, nothing is begun.

        Args:
            epoch: its number.
            loop: number of the loop, from 0.
            stop: the epoch before which that loop ends.

        Raises:
            PsError: the coordinator refuses, or cannot be reached.
        """
        while True:
            try:
                return self.presence.calls.begin_epoch(epoch, loop=loop, stop=stop)
            except Evicted as error:
                self.rejoiner.refused(error)
                self._listener.announce()
                if not self._listener.arrived():  # else the job would have an epoch that nobody begins
                    return pb.EpochReply()

    def stop_job(self, reason: str) -> pb.EpochReply | None:
        """Ends the job for all after the same epoch; see `begin_epoch` for errors.

        Returns:
            None: what has led to that is undone, perhaps meanwhile, and the job goes on.
        """
        while not self._listener.is_undone():
            try:
                return self.presence.calls.stop_job(reason)
            except Evicted as error:
                self.rejoiner.refused(error)
        return None

    def collect(self, request: pb.CollectRequest, limit_s: float) -> pb.CollectReply | None:
        """A call that all workers make together; see `CoordinatorCalls.collect` for errors.

        While it waits it takes the steps that others need of it (`LinkListener.sit_out`).

        Returns:
            None: this worker joined again meanwhile, and its script goes on elsewhere.
        """
        until_s, can_step = time.monotonic() + limit_s, True
        while True:
            request.ClearField("clocks")
            request.clocks.update(self._listener.clocks() if can_step else {})
            try:
                reply = self.presence.calls.collect(request, until_s=until_s, limit_s=limit_s)
                if reply.done or not reply.steps:
                    return reply
                can_step = self._sit_out(reply.steps)
            except Evicted as error:
                self.rejoiner.refused(error)
                if self._listener.announce() or self.ended:
                    return None
                until_s, can_step = time.monotonic() + limit_s, True

    def _sit_out(self, steps: Mapping[int, int]) -> bool:
        try:
            with self.resumption.paused():
                return self._listener.sit_out(steps)
        finally:
            self.rounds.pause()

    def epochs(self) -> list[pb.EpochUse]:
        """Asks what became of the samples of the job's last epochs; see `share` for errors."""
        return self.presence.calls.epochs()

    def _again(self, call: Callable[[], Result]) -> Result:
        """Makes a call; again where the worker was evicted meanwhile and has joined again."""
        while True:
            try:
                return call()
            except Evicted as error:
                self.rejoiner.refused(error)

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Waits until all have finished, then loads the final weights and what lies outside tables.

        Raises:
            WeightsChanged: the script has written into a parameter; nobody was told of an end yet.
        """
        alone = self._settings.num_workers == 1  # then nobody trains on, and writes what is mapped here
        while True:
            self.rejoiner.announce()  # there is more to train
            try:
                for exchange in self.exchanges:
                    exchange.in_flight.wait_acked()
                    exchange.wait_decided()
                    exchange.sharing.check_written()
                for exchange in () if alone else self.exchanges:
                    exchange.sharing.own()
                if not list(self.exchanges):  # shards forget a job that has no table
                    for connection in self.presence.connections:
                        connection.quiet()
                if not self.ended:
                    self.presence.membership.finish(self.side.pack_final)
                break
            except Evicted as error:
                self.rejoiner.refused(error)
        for exchange in self.exchanges:
            self.start.fetch(exchange, 0, read=True)
            exchange.sharing.own(ended=True)
        self.side.load_final(self.presence.calls.kept)

    def close(self, reason: str, farewell: Farewell) -> None:
        """Leaves the job; `reason` is logged by the coordinator. See `written` afterwards."""
        for exchange in self.exchanges:
            for last in (exchange.sharing.check_written, exchange.sharing.own):
                try:
                    last()
                except (WeightsChanged, ConfigurationRefused) as error:
                    self.written = error
                    self._listener.say(error.message)
        self.uploads.noting.settle(farewell.left_s(SETTLE_S))
        self.presence.leave(reason, self._listener.taken(), farewell)
        left = f"this worker has left job {self._settings.job}: connect again to train on"
        self.exchanges.fail(UsageError(left))

    # -- figures ---------------------------------------------------------------------------------------

    def figures(self) -> list[shard_pb2.TableStatus]:
        """Asks every shard for its figures of this job's tables.

        Raises:
            ServerUnreachable: a shard does not answer.
        """
        tables: list[shard_pb2.TableStatus] = []
        for shard in range(self.presence.num_shards):
            reply = self.presence.shard(shard).Tables(
                shard_pb2.TablesRequest(), timeout=FIGURES_LIMIT_S, wait_for_ready=True
            )
            tables += [table for table in reply.tables if table.job == self._settings.job]
        return tables


def _take_cut(capture: GroupCapture, number: int, blob: bytes, put: Put) -> None:
    """The ranks of a group have captured; what all of them have is put beside training."""
    capture.take(CUT, number, blob, partial(put_beside, put=put))
