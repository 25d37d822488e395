"""A worker that was evicted joins again, as another incarnation: the base of `JobLink`.

It was held up for longer than its lease, and the others went on. It takes what they have by now: the weights,
and of the lowest worker that trains the buffers and what is registered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from ps_wire.errors import ConfigurationRefused, Evicted, JobUnknown, PsError, RolledBack
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.position import Positions
from ps_worker.exchange.exchange import Exchange
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.job.optimizer_state_calls import OptimizerStateCalls
from ps_worker.membership.incarnation import Incarnation
from ps_worker.membership.noting import SMALL_BYTES, Noting
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from ps_worker.model.random_state import RandomState
from ps_worker.model.registered import Registered
from ps_worker.process.exit_reason import sendable
from ps_worker.settings import Settings
from ps_worker.transport.carrier_choice import CarrierChoice
from ps_worker.transport.reach import reach
from ps_worker.transport.shard_addresses import ShardAddresses

ALONE = "no PS_SERVERS: running alone, with a server in this process"


class Rejoiner(Exchanges):
    """See the module's docstring.

    Attributes:
        rank: the worker's number.
        registered: what goes along with the state outside tables.
        own: what only this worker goes on with, from a snapshot.
        random: generators without a name.
        positions: where the script is in its data, and in its steps.
        loops: whether it has a loader, or a loop over epochs.
        arrived: whether it is where it was sent.
        on_taken: called when it is to go on where another process was, with that position and the steps of
            that one which count; returns whether it does.
        clocks: table -> the step that is under way or comes next.
        taken: table -> steps whose pushes have left.
        capture: of all of this for snapshots.
        rounds: where the script is, for others who join.
        on_reentry: called when the worker has joined again, with its first step by table.
        tell: tells the script that steps of it are undone, if they are; an error, or whether it did.
        sit_out: takes steps with nothing to push, up to these by table; whether it could.
        dropping: whether the script is still busy with a batch of before.
        on_restored: called when it goes on from a snapshot, with what it had saved.
        resumed: the job has its weights and steps, which this worker takes up.
    """

    def __init__(
        self, settings: Settings, *, progress: Callable[[], pb.Progress], say: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.registered = Registered(say)
        self.own = Registered(say)
        self.random = RandomState()
        self.own.add("@random", self.random)
        self.clocks: Callable[[], Mapping[int, int]] = dict
        self.taken: Callable[[], Mapping[int, int]] = dict
        self.positions: Callable[[], Positions] = lambda: Positions(epoch=None, loaders=())
        self.loops: Callable[[], bool] = lambda: False
        self.arrived: Callable[[], bool] = lambda: True
        self.on_taken: Callable[[Positions, Mapping[int, int]], bool] = lambda _at, _clocks: True
        self.capture = SnapshotPromise(self._clocks, self._captured)
        self.capture.before = self.begin_again
        self.rounds = RoundBarrier(self._clocks)
        self._again: _Again | None = None
        self.noting = Noting(self._note, self._put_note, say)
        self._overdue = False  # a position, by one step
        self.on_reentry: Callable[[dict[int, int]], None] = lambda _: None
        self.on_restored: Callable[[Mapping[str, torch.Tensor]], None] = lambda _: None
        self._settings = settings
        self._progress = progress
        self._say = say
        self._outside: dict[int, ModelExtras] = {}
        self._begun: list[TableSpec] = []  # that have started here
        self._live: dict[str, torch.Tensor] | None = None
        self.tell: Callable[[], bool] = lambda: False
        self.sit_out: Callable[[Mapping[int, int]], bool] = lambda _: False
        self._sits_out = False
        self.dropping: Callable[[], bool] = lambda: False
        self._undone: tuple[RolledBack, Mapping[str, torch.Tensor] | None] | None = None
        if not settings.servers:
            say(ALONE)
        self._service = reach(settings, say)
        self._places = ShardAddresses(self._service)
        self._carriers = CarrierChoice(self._service, settings.carrier, say, shares=settings.shares)

    def _enter(self, evicted: pb.Joined | None) -> None:
        """Joins as a new incarnation."""
        now = Incarnation(self._settings, self._service, peer=self, progress=self._report, say=self._say)
        now.membership.capture, self.capture.put = self.capture, now.membership.put_cut
        now.membership.rounds, self.rounds.say = self.rounds, now.membership.held
        try:
            joined = now.membership.join(evicted)
        except BaseException:  # in a notebook the process lives on, and nobody could leave for it
            now.membership.leave("it never came to know that it had joined")
            now.membership.wait_threads()
            raise
        self._now, self._membership, self._connections = now, now.membership, now.connections
        self.rank: int = joined.worker
        self.ended: bool = joined.ended
        self.resumed: bool = joined.resumed or joined.rolled_back
        self._state = OptimizerStateCalls(
            self._settings, self._membership, calls_of=self._service.shard, say=self._say
        )

    def _report(self) -> pb.Progress:
        progress = self._progress()
        progress.passed_over = sendable(self._carriers.passed_over())
        return progress

    # -- evicted ---------------------------------------------------------------------------------------

    def rejoin(self) -> None:
        """To be called by the thread that got `Evicted`: joins again, with the weights and the state of now.

        What this worker had computed meanwhile is void. Does nothing if another call has done it.

        Raises:
            WorkerNumberTaken: another process has this worker's number by now.
            PsError: the job cannot go on.
        """
        while isinstance(evicted := self._failure, Evicted):
            self._say(f"{evicted.message}; joining again")
            try:
                with suppress(Evicted):  # again
                    self._reenter(evicted)
            except Exception:
                raise
            except BaseException:  # Ctrl-C: whoever goes on does it again
                self.fail(evicted)
                raise

    def announce(self) -> None:
        """To be called by the thread that trains, where it takes a step: whether steps of it are undone.

        Raises:
            RolledBack: once after each rollback.
        """
        undone, self._undone = self._undone, None
        if undone is not None:
            error, saved = undone
            if saved is not None:  # a pass that has run since, or a batch, has changed what was set
                self._set(saved, own=True)
                self.on_restored(saved)
                self._again = _Again(saved, own=True)
            raise error

    @property
    def undone(self) -> bool:
        """Whether steps are undone that the script has not heard of: until `announce`, nothing counts."""
        return self._undone is not None

    def _reenter(self, evicted: Evicted) -> None:
        before = self._now
        before.abandon()
        self.capture.end()
        try:
            self._enter(before.joined)
        except PsError as error:
            self.fail(error)
            raise
        restored = self._now.joined.rolled_back
        if restored and len(self._begun) > self._now.joined.num_tables:
            raise _made_later(self._now.joined.num_tables)
        with self._lock:
            self._failure = None
        for exchange in self.exchanges:
            exchange.reenter(self._now.joined.incarnation)
            exchange.connect(self._connections)
        self._now.connect(self._carriers, self._places)
        saved = self._saved() if restored else {}
        live, clocks = saved, dict[int, int]()
        if not saved and self._has_more and not self.ended:  # of a snapshot: it joined after that
            live, clocks = self._membership.calls.position(live=not restored)
        self._live = live
        steps = self._enter_tables()
        if saved:
            self._set(saved, own=True)
            self.on_restored(saved)
        else:
            self._take_up(live, clocks)
        self.on_reentry(steps)
        self.rounds.begin_anew()
        if restored or isinstance(evicted, RolledBack) or self.undone:
            step = max(steps.values(), default=0)
            undone = RolledBack(f"{evicted.message}; this worker goes on at step {step}", step=step)
            self._undone = undone, saved or None
        self._say(f"joined again, as incarnation {self._now.joined.incarnation}, at steps {steps}")

    def _enter_tables(self) -> dict[int, int]:
        """All that it had, again, with the weights of its first step there; returns that by table."""
        steps = {}
        for spec in self._begun:
            exchange = self._exchanges[spec.number]
            self._membership.make_table(spec)
            upload = self._membership.wait_made(spec.number)
            step = None
            if not upload:
                exchange.sharing.share()
                step = self._membership.wait_started(spec.number)
            if step is None:  # someone's weights are to start it
                raise _made_later(spec.number)
            steps[spec.number] = step
            self._get(exchange, steps[spec.number], read=self.ended)
        return steps

    def _take_up(self, live: Mapping[str, torch.Tensor], clocks: Mapping[int, int]) -> None:
        """The script goes on where another process was; `clocks`: see `CoordinatorCalls.position`."""
        at = Positions.unpack(live)
        if at is not None and not self.on_taken(at, clocks):
            return
        own = at is not None and at.worker == self.rank
        self._set(live, own=own)
        if live:
            self._again = _Again(live, own=own, inside=at is None or at.inside)

    def _set(self, live: Mapping[str, torch.Tensor], *, own: bool) -> None:
        """What lies beside tables is as another worker has it, or as this one had it: `own`."""
        for number, outside in self._outside.items():
            if found := _of_table(live, number):
                outside.load(found)
            elif self.ended:
                outside.load(self._kept(number))
        self.registered.load(live, own=own)
        if own:
            self.own.load(live, own=True)

    def begin_again(self) -> None:
        """The script begins a step: it may have gone on to the end of one that is undone, or is another's."""
        if self._sits_out:
            return
        if self._again is not None and self.arrived():
            self._set(self._again.state, own=self._again.own)
            self._again = self._again if self.dropping() else None
        self.random.apply()

    def at_epoch(self) -> bool:
        """The script's loop is about to begin an epoch: where it was sent, it takes what was there.

        Returns:
            Whether it goes on inside that epoch.
        """
        again = self._again
        if again is None or not self.arrived():
            return False
        if again.begun:  # there was no batch in the epoch before
            self._again = None
            return False
        self._set(again.state, own=again.own)
        if again.inside:
            self._again = replace(again, begun=True)
        else:
            self._again = None
            self.random.apply()
        return again.inside

    def at_step_begin(self, step: int) -> None:
        """To be called where a step begins: gives its position to one who joins, and notes it, where due."""
        if self._membership.position_wanted:
            self._put_position(step)
        if self._has_more:
            self.noting.at_step()

    def _put_position(self, step: int) -> None:
        self._overdue = False
        state = self._outside_tensors() | self.registered.tensors() | self.positions().pack()
        try:
            self._membership.put_position(model_table.pack(state), step)
        except PsError as error:  # another's trouble: this worker trains on
            self._say(f"one who joins does not get this worker's position: {error}")

    def note_taken(self, at: Positions) -> None:
        """This worker stands where another process was: if it goes at once, that is what is taken up."""
        if self._live:
            with suppress(PsError):  # its own first note follows
                self._put_note(model_table.pack({**self._live, **at.pack()}))

    def _put_note(self, blob: bytes) -> None:
        self._membership.put_note(blob)

    def _note(self) -> bytes:
        outside = self._outside_tensors()
        if sum(tensor.nbytes for tensor in outside.values()) > SMALL_BYTES:
            outside = {}  # who takes the note up has them as at the start
        return model_table.pack(
            outside | self.registered.tensors() | self.own.tensors() | self.positions().pack()
        )

    def _begin_push(self, table: int) -> None:
        self.rounds.begin(table)
        self.capture.begin((table,))

    def _clocks(self) -> Mapping[int, int]:
        return self.clocks()

    def _captured(self) -> bytes:
        return model_table.pack(
            self._outside_tensors() | self.registered.tensors() | self.own.tensors() | self.positions().pack()
        )

    def _outside_tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"{number}/{name}": tensor
            for number, outside in self._outside.items()
            for name, tensor in outside.tensors().items()
        }

    def _saved(self) -> dict[str, torch.Tensor]:
        """What this worker had beside its tables at the snapshot that the job goes on from."""
        try:
            return model_table.unpack(self._membership.calls.get_state(f"snapshot/{self.rank}"))
        except JobUnknown:
            return {}

    def _live_or_kept(self, live: Mapping[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        return _of_table(live, number) or self._kept(number)

    @property
    def incarnation(self) -> int:
        """The live one of this worker."""
        return self._now.joined.incarnation

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        """What of an epoch of a loader this worker hands out next.

        Raises:
            PsError: the coordinator refuses, or cannot be reached.
        """
        while True:
            try:
                return self._membership.calls.share(request)
            except Evicted as error:
                self._refused(error)
                if self.tell():
                    return pb.ShareReply()  # the script's loop goes back first
                for mark in (request.mark, request.rest):  # of the incarnation that is gone
                    mark.batches = mark.samples = 0

    def use(self, request: pb.UseRequest) -> None:
        """How far this worker has come in it; see `share`."""
        self._membership.calls.use(request)

    def begin_epoch(self, epoch: int) -> pb.EpochReply:
        """Whether the script's loop is to begin an epoch; `last` is set where it is not.

        Raises:
            PsError: the coordinator refuses, or cannot be reached.
        """
        while True:
            try:
                return self._membership.calls.begin_epoch(epoch)
            except Evicted as error:
                self._refused(error)
                self.tell()

    def stop_job(self, reason: str) -> pb.EpochReply:
        """Ends the job for all after the same epoch; see `begin_epoch` for errors."""
        while True:
            try:
                return self._membership.calls.stop_job(reason)
            except Evicted as error:
                self._refused(error)

    def collect(self, request: pb.CollectRequest, limit_s: float) -> pb.CollectReply | None:
        """A call that all workers make together; see `CoordinatorCalls.collect` for errors.

        While it waits it takes the steps that others need of it (`sit_out`).

        Returns:
            None: this worker joined again meanwhile, and its script goes on elsewhere.
        """
        until_s, can_step = time.monotonic() + limit_s, True
        while True:
            request.ClearField("clocks")
            request.clocks.update(self.clocks() if can_step else {})
            try:
                reply = self._membership.calls.collect(request, until_s=until_s, limit_s=limit_s)
                if reply.done or not reply.steps:
                    return reply
                can_step = self._sit_out(reply.steps)
            except Evicted as error:
                self._refused(error)
                if self.tell() or self.ended:
                    return None
                until_s, can_step = time.monotonic() + limit_s, True

    def _sit_out(self, steps: Mapping[int, int]) -> bool:
        self._sits_out = True  # the script begins none of these steps
        try:
            return self.sit_out(steps)
        finally:
            self._sits_out = False
            self.rounds.pause()

    def epochs(self) -> list[pb.EpochUse]:
        """What became of the samples of the job's last epochs; see `share` for errors."""
        return self._membership.calls.epochs()

    def whom(self) -> list[str]:
        """Who is waited for: as the coordinator has said, and who is behind by what it has heard.

        Raises:
            PsError: it does not answer in time.
        """
        return self._membership.whom()

    def say_wait(self, text: str) -> None:
        """Says what is waited for, and for whom: who is behind, and when its lease would end the wait."""
        with suppress(PsError):  # then without
            text = "; ".join([text, *self._membership.calls.behind()])
        self._say(text)

    @property
    def _has_more(self) -> bool:
        """Whether this worker has anything beside its tables."""
        return bool(self._outside) or bool(self.registered) or self.loops()

    def register(self, name: str, kept: object) -> None:
        """See `Registered.add`; what comes late gets what a worker that trains has."""
        self.registered.add(name, kept)
        if self.resumed and not self._begun:
            self._first_live()

    def fail(self, error: PsError) -> None:
        """See `Peer.fail`: every wait, now and later, ends with this error."""
        self._carriers.give_up()
        super().fail(error)

    def _refused(self, error: Evicted) -> None:
        """A call beside the connections got this first: joins again."""
        self.fail(error)
        self.rejoin()

    def _first_live(self) -> dict[str, torch.Tensor]:
        """Where the job is, asked for before the first table is entered: then none waits."""
        return self.first_position(live=not self._begun)

    def first_position(self, *, live: bool = False) -> dict[str, torch.Tensor]:
        """Where the job is that this process has come to, asked for once: it goes on there.

        Args:
            live: waits for a worker that trains to begin a step; one that has entered tables must not.
        """
        if self._live is None:
            if self._now.joined.rolled_back and (saved := self._saved()):
                self._live = saved
                self._set(self._live, own=True)
                self.on_restored(self._live)
                self._again = _Again(self._live, own=True)
            else:
                self._live, clocks = self._membership.calls.position(live=live)
                self._take_up(self._live, clocks)
        return self._live

    def _get(self, exchange: Exchange, step: int, *, read: bool) -> None:
        exchange.pull(step=step, read=read)
        exchange.wait_pulled(self.say_wait)

    def _kept(self, number: int) -> dict[str, torch.Tensor]:
        """What the job keeps with a table: as it was at the end, or at the start."""
        with suppress(JobUnknown):
            return model_table.unpack(self._membership.calls.get_state("final"), f"{number}/")
        with suppress(JobUnknown):
            return model_table.unpack(self._membership.calls.get_state(f"start/{number}"))
        return {}  # the job was restored, from a snapshot in which no worker had anything else


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """State that is set once more when the script stands where it was: what it did meanwhile is undone.

    Attributes:
        state: tensors by name.
        own: this worker had it.
        inside: it is of the beginning of a batch; else of that of an epoch.
        begun: the epoch has begun with it.
    """

    state: Mapping[str, torch.Tensor] = field(kw_only=False)
    own: bool
    inside: bool = True
    begun: bool = False


def _of_table(live: Mapping[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    """What of it lies outside this table."""
    prefix = f"{number}/"
    return {name.removeprefix(prefix): it for name, it in live.items() if name.startswith(prefix)}


def _made_later(table: int) -> ConfigurationRefused:
    return ConfigurationRefused(
        f"table {table} was made after the snapshot that the job went back to: start the script again"
    )
