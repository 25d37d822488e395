"""The steps of a worker's script, over all its optimizers and tables: what counts as one, and what is void.

It brings together what hears of steps: the script's data, the calls that all workers make, the link to the
job. A batch that was drawn before the worker joined again is no part of a step; a script that comes to a job
that has begun goes on where the job is, and takes again the steps that lie between. It must not know how
gradients leave, nor how frames travel. `optimizers` and `tables` only grow, and heartbeats read them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

import torch

from ps_wire.errors import PsError, RolledBack, UsageError
from ps_wire.process.allocator import give_back_freed_blocks
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.position import Positions
from ps_worker.data.script_data import ScriptData
from ps_worker.group.group import Group
from ps_worker.job.job_link import JobLink
from ps_worker.job.side_state import SAMPLES
from ps_worker.membership.together import Together
from ps_worker.model.registered import GroupsInForce
from ps_worker.optimizer.at_forward import AtForward
from ps_worker.optimizer.wrapped import WrappedOptimizer
from ps_worker.process import console, stopping
from ps_worker.process.farewell import UNHURRIED, Farewell
from ps_worker.process.one_thread import OneThread
from ps_worker.process.straggling import Straggling
from ps_worker.process.waiting import LongWaits
from ps_worker.recording.columns import RecordHeader
from ps_worker.recording.recorder import StepRecorder, StepTotals
from ps_worker.recording.scalar_log import ScalarLog
from ps_worker.settings import Settings
from ps_worker.step.step_host import TakesSteps
from ps_worker.table import Table

MANY_BATCHES = 20  # without a model on the servers: fewer may be looked at before it is there
SETTLE_LIMIT_S = 5.0  # for acknowledgements of an unfinished step, when others wait for this worker to go

logger = logging.getLogger("ps_worker")


class Steps:
    """The steps of a script. The `StepHost` of what takes them, a `DataListener`, and the link's listener.

    Attributes:
        inside: one thread at a time is inside the calls of a worker.
        data: of the script.
        link: to the job.
        together: calls that all workers make.
        waits: the long ones, and for whom.
        optimizers: that the script has wrapped.
        tables: that it has beside them.
        metrics: that it has logged: name -> latest value.
        recorder: of its steps; None: nothing is recorded.
        finished: it has finished, and the final weights are here.
        leaving: it has begun to leave.
    """

    def __init__(
        self, settings: Settings, on_rollback: Callable[[int], None] | None, group: Group | None = None
    ) -> None:
        """Has not joined.

        Args:
            settings: of the worker.
            on_rollback: see `connect`.
            group: of which this process is one rank; None: it is the whole worker.
        """
        self._group = group
        self.inside = OneThread()
        self.optimizers: list[WrappedOptimizer] = []
        self.tables: list[Table] = []
        self.metrics: Mapping[str, float] = {}
        self.finished = self.leaving = False
        self._finishing = False
        self._settings = settings
        self._on_rollback = on_rollback
        self._joined = False
        self._at_forwards: list[torch.utils.hooks.RemovableHandle] = []
        self._stepped = False  # a first step was taken
        self._taken: tuple[Positions, Mapping[int, int]] | None = None  # a position, and steps that count
        self._stands = False  # where the job was when this process came to it
        self._between_batches = False  # it notes where it is before an epoch, or at the end of a loop
        self._epoch_over = False  # it waits in a call behind an epoch, and takes steps there
        self._untrained_said = False
        self.data = ScriptData(settings.consistency, self, settings.data_ranks)
        self.recorder = self._recorder(settings)
        self._scalars = self._scalar_log(settings)
        self._samples = None if self.recorder is None else self.data.step_samples()
        self._straggling = self._stragglers(settings)
        self.waits = LongWaits(lambda: (self.step, self.data.samples), self._whom, self.say)
        self.link = JobLink(settings, self, self.recorder, group)
        self.together = Together(
            self.link.collect,
            alone=self.has_no_others,
            step=lambda: self.step,
            incarnation=lambda: self.link.incarnation,
            returns=lambda: self.data.returns,
        )
        self.link.side.own.add(SAMPLES, self.data)

    def join(self) -> None:
        """Checks the servers, and joins. Raises what `connect` raises."""
        self.link.open()
        self._joined = True
        if self.recorder is not None:
            self.recorder.enter(self._header(self.recorder))
        self._enter_scalars(None if self.link.resumed else 0)
        if self.link.resumed:
            self.say(f"job {self._settings.job} is under way: this worker goes on from its weights and steps")
        else:
            self.together.begin()

    # -- what takes steps ------------------------------------------------------------------------------

    def add_optimizer(self, wrapped: WrappedOptimizer, model: torch.nn.Module) -> None:
        """One more, whose model tells of each forward; its `param_groups` go along with the job."""
        at_forward = AtForward(lambda: self._begin_forward(wrapped))
        self._at_forwards.append(model.register_forward_pre_hook(at_forward.before))
        self.link.side.registered.add(f"@optimizer {len(self.optimizers)}", GroupsInForce(wrapped))
        self.optimizers.append(wrapped)

    def add_table(self, table: Table) -> None:
        """One more without autograd."""
        self.tables.append(table)

    @property
    def _all(self) -> list[TakesSteps]:
        """The optimizers and tables: all that takes steps."""
        return [*self.optimizers, *self.tables]

    @property
    def step(self) -> int:
        """Steps that this worker has taken, over its tables the largest."""
        clocks = [optimizer.step_number for optimizer in self.optimizers]
        return max(clocks + [table.step for table in self.tables], default=0)

    @property
    def waited_s(self) -> float:
        """Seconds in `step()` between the last push and the last weight."""
        return sum(optimizer.waited_s for optimizer in self.optimizers)

    @property
    def _idle_s(self) -> float:
        """Seconds in which the script waited for weights, those of tables among them."""
        return self.waited_s + sum(table.waited_s for table in self.tables)

    def closed(self) -> str | None:
        """See `StepHost`."""
        if self.leaving:
            return f"this worker has left job {self._settings.job}: connect again to train on"
        if self._finishing:
            return f"this worker has finished job {self._settings.job}: no step comes after finish()"
        return self._ended_text() if self.link.ended else None

    def _ended_text(self) -> str:
        return (
            f"job {self._settings.job} has ended: its final weights are loaded, there is nothing to train; "
            f"to train again, take another --job, or drop this one: ps-lab job drop {self._settings.job}"
        )

    def before_step(self, step: int) -> None:
        """See `StepHost`."""
        self.together.arrive()
        taken = max(step, self.step)
        self.data.take_step(taken)
        if self._straggling is not None:
            self._straggle()  # a table's, where no batch of ours was handed out
        if self.recorder is not None:
            self.recorder.sending(taken - 1, self._totals())

    def begin_push(self, table: int) -> None:
        """See `StepHost`."""
        self.link.begin_push(table)

    def after_step(self, step: int) -> None:
        """See `StepHost`."""
        self.data.take_step(self.step)
        if self.recorder is not None and self._samples is not None:
            samples = self._samples()  # of all ranks
            self.recorder.stepped(samples if self._settings.ranks.leads else 0)
        if self._straggling is not None and self.tables and not self.data.has_loaders:
            self._straggling.resumed(self.step, self._idle_s)
        self.link.uploads.at_step_boundary(step)
        stopping.step_ended()
        if not self._stepped:
            self._stepped = True
            give_back_freed_blocks()  # the weights, and perhaps the gradients, as the script made them
            self._say_undealt()

    def rejoin(self) -> None:
        """See `StepHost`."""
        self.link.rejoiner.rejoin()

    def say(self, text: str) -> None:
        """See `StepHost`."""
        console.show(logger)
        name = f"worker {self.link.rank}" if self._joined else "worker"
        if self._group is not None:
            name = f"{name} rank {self._group.ranks.rank}"
        logger.info("%s: %s", name, one_line(text))

    def say_wait(self, text: str, workers: str = "") -> None:
        """See `StepHost`."""
        self.link.presence.say_wait(text, workers)

    @property
    def place(self) -> stopping.Place:
        """Where the script is; with a loader of ours, it is in a step while it has batches of it."""
        if self.finished:
            return stopping.Place.DONE
        if self._finishing or self.leaving or not (self.optimizers or self.tables):
            return stopping.Place.BETWEEN
        if self._group is not None:
            return stopping.Place.GROUP
        sends = any(optimizer.sends for optimizer in self.optimizers)
        return stopping.Place.STEP if sends or self.data.has_batches() else stopping.Place.BETWEEN

    @property
    def group_ends(self) -> bool | None:
        """See `Placed`; what comes behind the steps is no business of the group's."""
        if self._group is None or self._finishing or self.leaving:
            return None
        return self._group.ending.agreed

    def synchronize(self) -> None:
        """See `Worker.synchronize`."""
        for optimizer in self.optimizers:
            optimizer.settle()

    # -- batches and epochs ----------------------------------------------------------------------------

    def begin_iterator(self) -> None:
        """See `DataListener`."""
        self.link.resumption.stand_between()

    def end_iterator(self) -> None:
        """See `DataListener`."""
        self.link.resumption.end_iterator()

    def begin_batch(self) -> None:
        """See `DataListener`."""
        if not self.optimizers and not self.tables:
            self._say_untrained(MANY_BATCHES)
        behind = self.steps_behind() > 0
        if not behind:
            self._begin_compute()
        if not self.data.returns:
            self.together.arrive()
        if not self.link.rejoiner.undone and not self.data.is_rewound:  # else none counts until it is there
            self._renew()
        if behind:
            self.link.resumption.begin_step()
            for owner in self._all:
                owner.replay()
        elif not self.data.returns:  # of what is undone there is nothing to keep
            self.link.begin_step()
        ready = self.data.arrived and self.data.between_steps and self.dropping() == behind
        if ready and not self.link.rejoiner.undone:
            self.link.uploads.at_step_begin(self.step)

    def begin_epoch(self, epoch: int, *, loop: int, stop: int) -> bool:
        """See `DataListener`."""
        if self.link.ended:
            return False
        self._stand()
        self.together.arrive()
        reply = self.link.begin_epoch(epoch, loop=loop, stop=stop)
        if reply.HasField("last"):
            self.say(f"{reply.why}: this loop ends")
            return False
        self._stand()
        undone = self.link.rejoiner.undone
        if self.data.arrived and not undone and not self.link.resumption.begin_epoch(epoch):
            self._note_between()
        return True

    def end_loop(self) -> None:
        """See `DataListener`. Who comes now goes on behind that loop, too."""
        if self._all and not self.link.ended:
            self._note_between()

    def _note_between(self) -> None:
        self._between_batches = True
        try:
            self.link.uploads.at_epoch()
        finally:
            self._between_batches = False

    def arrive_behind_loop(self) -> None:
        """See `DataListener`."""
        self.link.resumption.stand_between()

    @property
    def next_call(self) -> int:
        """See `DataListener`."""
        return self.together.number

    def pass_over_calls(self, number: int) -> None:
        """See `DataListener`."""
        self.together.pass_over(number)

    def steps_behind(self) -> int:
        """See `DataListener`."""
        if not self._stands or self._taken is not None:
            self._stand()
        return max((owner.behind for owner in self._all), default=0) if self.data.arrived else 0

    def _begin_forward(self, optimizer: WrappedOptimizer) -> None:
        if not self.data.has_loaders:
            self._begin_compute()
            self.link.begin_step(optimizer.clocks)
            if not self.link.rejoiner.undone and not self.data.is_rewound:
                self.link.uploads.at_step_begin(self.step)

    def _begin_compute(self) -> None:
        """The script begins to compute another step, as far as is known."""
        if self.recorder is not None:
            self.recorder.batch()
        if self._straggling is not None:
            self._straggle()

    def _straggle(self) -> None:
        if self._straggling is not None and self._all:
            self._straggling.batch(self._number, self.step, self._idle_s)

    def _renew(self) -> None:
        """The script begins with another batch: what it computed before is no part of the next step."""
        for owner in self._all:
            owner.renew()

    def _say_undealt(self) -> None:
        """Says on worker 0, at its first step, where no data of the script is dealt among the workers."""
        first = self.link.rank == 0 and self._settings.ranks.leads
        if first and self._settings.num_workers > 1 and self.optimizers and not self.data.has_loaders:
            self.say(
                "no worker.loader in this script: each worker trains on what it reads itself. Where that is "
                "a DataLoader over the whole dataset, all train on all of it: worker.shard(loader) deals it"
            )

    def _say_untrained(self, batches: int = 1) -> None:
        """Says, once, that a script which has had so many batches has made no step of them on the servers."""
        if self._untrained_said or self.link.ended or self.step or self.data.batches < batches:
            return
        self._untrained_said = True
        if self.optimizers:
            self.say(
                f"WARNING: {self.data.batches} batches, and no step on the servers: call step() of what "
                "worker.wrap(optimizer, model) gives, not of the optimizer that went in"
            )
        elif not self.tables:
            self.say(
                f"WARNING: {self.data.batches} batches, and no model on the servers: where this script "
                "trains, each worker trains a model of its own. Call optimizer = "
                "worker.wrap(optimizer, model) first"
            )

    # -- where the script is ---------------------------------------------------------------------------

    def positions(self) -> Positions:
        """Where the script is: at a batch, unless its loop is about to begin an epoch, or has just ended.

        In a call at the end of an epoch, what lies behind its last batch has been done once (a schedule by
        epochs has stepped): whoever goes on from there goes on with the next epoch.
        """
        clocks = self.clocks()
        steps = {number: clocks[number] - owner.behind for owner in self._all for number in owner.clocks}
        at = replace(self.data.positions(), worker=self.link.rank, steps=steps, clocks=clocks)
        if at.between:
            return replace(at, inside=not self._between_batches, calls=at.ends[-1])
        if at.epoch is not None and self._epoch_over:
            return replace(at, epoch=at.epoch + 1, inside=False, calls=self.together.number + 1)
        return replace(at, inside=not self._between_batches, calls=self.together.number)

    def take_up(self, at: Positions, clocks: Mapping[int, int]) -> bool:
        """The script is to go on where another process was; whether it does.

        One that finishes has nothing to go on with. One without loaders knows better what it had.
        """
        if self._finishing or (at.worker == self.link.rank and not at.loaders and self._all):
            return False
        self.data.take_up(at)
        self.together.go_on_at(at.calls)
        self._taken = at, dict(clocks)
        return True

    def restored(self, saved: Mapping[str, torch.Tensor]) -> None:
        """This worker goes on from a snapshot, in which it had saved this."""
        positions = Positions.unpack(saved)
        if positions is not None:
            self.data.rewind(positions)
            self.together.go_on_at(positions.calls)

    def reentered(self, steps: Mapping[int, int]) -> None:
        """This worker was evicted and has joined again; `steps`: its first one there, by table."""
        if self.link.ended:
            self.data.end()
        if self.recorder is not None:
            self.recorder.enter(self._header(self.recorder), max(steps.values(), default=0))
        self._enter_scalars(max(steps.values(), default=0) + 1)
        self.data.drop_batch()
        stepped = self.link.rounds.stepped
        for owner in self._all:
            owner.reenter(steps, stepped=stepped)

    def announce(self) -> bool:
        """See `StepHost`: whether steps are undone that the script has not heard of.

        Raises:
            RolledBack: there is no `on_rollback`, and no loop of ours that goes back.
        """
        if self.recorder is not None:
            self.recorder.called()
        if self._straggling is not None:
            self._straggling.called(self.step, self._idle_s)
        try:
            self.link.rejoiner.announce()
        except RolledBack as undone:
            self._enter_scalars(undone.step + 1)
            if self._on_rollback is None and not self.data.goes_on:
                self._renew()
                self.data.run_again()
                raise
            for optimizer in self.optimizers:
                optimizer.abandon()
            if self._on_rollback is not None:
                self.data.hear()
                self._on_rollback(undone.step)
            return True
        return False

    def is_rewound(self) -> bool:
        """See `StepHost`."""
        return self.data.is_rewound

    def went_back(self) -> bool:
        """See `LinkListener`."""
        return self.data.went_back

    def sent_back(self, why: str) -> RolledBack:
        """See `LinkListener`."""
        return self.data.sent_back(why)

    def drop_step(self) -> None:
        """See `StepHost`."""
        self.data.drop()

    def dropping(self) -> bool:
        """Whether the script is still busy with a batch that it had before it joined again."""
        return any(optimizer.dropping for optimizer in self.optimizers)

    def has_data(self) -> bool:
        """See `LinkListener`."""
        return self.data.used

    def arrived(self) -> bool:
        """See `LinkListener`."""
        return self.data.arrived

    def is_undone(self) -> bool:
        """See `LinkListener`."""
        return self.link.rejoiner.undone or self.data.is_undone

    def clocks(self) -> dict[int, int]:
        """Table -> the step that is under way or comes next."""
        return {table: clock for owner in self._all for table, clock in owner.clocks.items()}

    def taken(self) -> dict[int, int]:
        """Table -> steps whose pushes have left."""
        return {table: steps for owner in self._all for table, steps in owner.taken.items()}

    def _stand(self) -> None:
        """All tables are there, and the script is about to go on: how many of its steps the job has."""
        if not self._stands and self._all:
            self._stands = True
            if self.link.resumed:
                if self._straggling is not None:
                    self._straggling.came(self.step)
                self.link.resumption.first()
        if self._taken is None or not self._all:
            return
        (at, counted), self._taken = self._taken, None
        mine = self.clocks()
        behind = at.steps_behind(mine, counted, lockstep=self._settings.consistency.lockstep)
        for owner in self._all:
            owner.fall_behind(behind.get(next(iter(owner.clocks)), 0) if at.loaders else 0)
        steps = {table: step - behind.get(table, 0) for table, step in mine.items()}
        self.link.note_taken(replace(at, steps=steps, clocks=mine))

    def stop_job(self, reason: str) -> int:
        """See `Worker.stop_job`."""
        if not self.link.ended and (closed := self.closed()) is not None:
            raise UsageError(closed)
        reply = self.link.stop_job(reason)  # all workers hear of it, and why: this one, too
        return self.data.newest_epoch if reply is None else int(reply.last)

    # -- calls that all workers make -------------------------------------------------------------------

    def begin_call(self) -> None:
        """Checks that a call that all workers make may be made.

        Raises:
            RolledBack: steps are undone, and the script is to go back by itself.
            UsageError: it has left, or finished.
        """
        if self.leaving or self._finishing:
            raise UsageError(self.closed() or "")
        self.announce()

    def has_no_others(self) -> bool:
        """Whether a call that all workers make gives the own value."""
        return not self._settings.servers or self.link.ended

    def sit_out(self, steps: Mapping[int, int]) -> bool:
        """Others wait at the gate for steps of this worker, which waits for them in a call: it abstains.

        Under `bsp`, where steps are the job's, the script takes them again when its next epoch begins, so
        that schedules count them.

        Args:
            steps: table -> the step that it is to come to.

        Returns:
            Whether it could: not between backward and `step()`, where a part of a step has left.
        """
        incarnation = self.link.incarnation
        self._epoch_over = self.data.between_epochs
        try:
            for owner in self._all:
                if not owner.is_between_steps():
                    return False
                numbers = list(owner.clocks)
                while self.link.incarnation == incarnation and any(
                    self.clocks()[number] < steps.get(number, 0) for number in numbers
                ):
                    self.data.take_step(self.step + 1)
                    if self.recorder is not None:
                        self.recorder.sending(self.step, self._totals())
                    owner.sit_out(again=self._settings.consistency.lockstep and self._epoch_over)
        finally:
            self._epoch_over = False
        return True

    # -- the record of steps ---------------------------------------------------------------------------

    def _recorder(self, settings: Settings) -> StepRecorder | None:
        if settings.record is None:
            return None
        certain = settings.nonfinite is not NonFinite.SKIP or not settings.consistency.aggregates
        return StepRecorder(settings.record, warn=self.say, certain=certain)

    def _scalar_log(self, settings: Settings) -> ScalarLog | None:
        if settings.log_dir is None:
            return None
        return ScalarLog(settings.log_dir, settings.job, warn=self.say)

    def _enter_scalars(self, since: int | None) -> None:
        if self._scalars is not None:
            self._scalars.enter(first=self._number == 0 and self._settings.ranks.leads, since=since)

    def _stragglers(self, settings: Settings) -> Straggling | None:
        if not settings.stragglers.parts:
            return None
        return Straggling(settings.stragglers, flush=self._flush_record)

    def _flush_record(self) -> None:
        if self.recorder is not None:
            self.recorder.flush()

    def _header(self, recorder: StepRecorder) -> RecordHeader:
        return recorder.header(
            job=self._settings.job,
            worker=self._number,
            incarnation=self.link.incarnation,
            consistency=str(self._settings.consistency),
            num_workers=self._settings.ranks.size if self._is_the_job else self._settings.num_workers,
        )

    @property
    def _is_the_job(self) -> bool:
        """Whether its group has no servers but its own: then each rank counts as a worker does."""
        return self._group is not None and self._group.hosts_shards

    @property
    def _number(self) -> int:
        """Under which it records and is slow."""
        return self._settings.ranks.rank if self._is_the_job else self.link.rank

    def _totals(self) -> StepTotals:
        exchanges = list(self.link.exchanges)
        return StepTotals(
            waited_s=self._idle_s,
            bytes_up=sum(exchange.bytes_pushed for exchange in exchanges),
            bytes_down=sum(exchange.in_flight.bytes_pulled for exchange in exchanges),
        )

    # -- what heartbeats bring -------------------------------------------------------------------------

    def log(self, name: str, number: float) -> None:
        """Keeps the latest value of a metric."""
        self.metrics = {**self.metrics, name: number}  # heartbeats read it
        if self.recorder is not None:
            self.recorder.log(name, number)
        if self._scalars is not None:
            self._scalars.log(name, number, self.step)

    def progress(self) -> pb.Progress:
        """The progress that the next heartbeat brings to whoever watches the job."""
        return pb.Progress(
            step=self.step,
            samples=self.data.samples,
            waited_s=self.waited_s,
            metrics=dict(self.metrics),
            waits=self.waits.look(),
            calls=self.together.reported,
            taken=self.taken(),
        )

    def _whom(self) -> list[str]:
        return self.link.presence.whom() if self._joined else []

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """See `Worker.finish`."""
        if self.finished:
            return
        if self.leaving:
            raise UsageError(self.closed() or "")
        self._check_arrived()
        for optimizer in self.optimizers:
            optimizer.release(SETTLE_LIMIT_S)
        for table in self.tables:
            self._settle(table)
        if self.link.ended:
            self.say(self._ended_text())
        self._say_untrained()
        stopping.step_ended()
        self._finishing = True
        try:
            self.link.finish()
        except RolledBack:
            self._finishing = False  # there is more to train
            self._renew()
            self.data.run_again()
            raise
        for optimizer in self.optimizers:
            optimizer.refresh()
        self.finished = True
        self._flush_record()

    def _check_arrived(self) -> None:
        """Before it finishes: see `ScriptData.check_arrived`; what it computed is no part of a step then."""
        if self.link.ended:
            return
        try:
            self.data.check_arrived()
        except RolledBack:
            self._renew()
            raise

    def leave(self, reason: str, *, hurried: bool = False) -> None:
        """Leaves the job; called again, it does what Ctrl-C left undone.

        Args:
            reason: see `JobLink.close`.
            hurried: a person waits, after Ctrl-C: for servers that do not answer there is no time.
        """
        self.leaving = True
        if reason and self._group is not None:
            self._group.end_with(reason)  # first: a part of a step that has left would wait for other ranks
        farewell = self.link.presence.farewell() if hurried else UNHURRIED
        if not reason:
            self._say_untrained()
        with ExitStack() as last_first:  # whatever one of them raises, the others are called
            if self.recorder is not None:
                last_first.callback(self.recorder.close, self._totals())
            if self._scalars is not None:
                last_first.callback(self._scalars.close)
            last_first.callback(self.link.close, reason, farewell)
            last_first.callback(self._settle_pushes, farewell)
            for handle in self._at_forwards:
                last_first.callback(handle.remove)
            for optimizer in self.optimizers:
                last_first.callback(optimizer.detach)
                last_first.callback(self._let_go, optimizer, farewell)
            for table in self.tables:
                last_first.callback(self._settle, table)

    @staticmethod
    def _let_go(optimizer: WrappedOptimizer, farewell: Farewell) -> None:
        with suppress(PsError):  # then the others know already
            optimizer.release(farewell.left_s(SETTLE_LIMIT_S))

    def _settle(self, table: Table) -> None:
        with suppress(PsError), self.inside:  # another thread that is inside goes on with it
            table.settle()

    def _settle_pushes(self, farewell: Farewell) -> None:
        """Waits until what has left is on the shards: then it counts when the worker has left."""
        until_s = time.monotonic() + farewell.left_s(SETTLE_LIMIT_S)
        with suppress(PsError):
            for exchange in self.link.exchanges:
                exchange.in_flight.wait_acked(limit_s=max(until_s - time.monotonic(), 0.0))
