"""A worker that was evicted joins again, as another incarnation: the base of `Link`.

It was held up for longer than its lease, and the others went on. It takes what they have by now: the weights,
and of the lowest worker that trains the buffers and what is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch

from ps_wire.errors import Evicted, JobUnknown, PsError
from ps_wire.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker import model_spec
from ps_worker.carrier_choice import CarrierChoice
from ps_worker.exchange import Exchange
from ps_worker.exchanges import Exchanges
from ps_worker.incarnation import Incarnation
from ps_worker.outside import Outside
from ps_worker.reach import reach
from ps_worker.registered import Registered
from ps_worker.settings import Settings
from ps_worker.shared_state import SharedState

ALONE = "no PS_SERVERS: running alone, with a server in this process"


class Rejoining(Exchanges):
    """See the module's docstring.

    Attributes:
        rank: the worker's number.
        registered: what goes along with the state outside tables.
        on_reentry: called when the worker has joined again, with its first step by table.
        resumed: the job has its weights and steps, which this worker takes up.
    """

    def __init__(
        self, settings: Settings, *, progress: Callable[[], pb.Progress], say: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.registered = Registered(say)
        self.on_reentry: Callable[[dict[int, int]], None] = lambda _: None
        self._settings = settings
        self._progress = progress
        self._say = say
        self._outside: dict[int, Outside] = {}
        self._begun: list[TableSpec] = []  # that have started here
        self._live: dict[str, torch.Tensor] | None = None
        if not settings.servers:
            say(ALONE)
        self._service = reach(settings, say)
        self._carriers = CarrierChoice(self._service, settings.carrier, say, shares=settings.shares)

    def _enter(self, evicted: pb.Joined | None) -> None:
        """Joins as a new incarnation."""
        now = Incarnation(self._settings, self._service, peer=self, progress=self._progress, say=self._say)
        try:
            joined = now.membership.join(evicted)
        except BaseException:  # in a notebook the process lives on, and nobody could leave for it
            now.membership.leave("it never came to know that it had joined")
            now.membership.wait_threads()
            raise
        self._now, self._membership, self._connections = now, now.membership, now.connections
        self.rank: int = joined.worker
        self.ended: bool = joined.ended
        self.resumed: bool = joined.resumed
        self._state = SharedState(
            self._settings, self._membership, calls_of=self._service.shard, say=self._say
        )

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
                    self._reenter()
            except Exception:
                raise
            except BaseException:  # Ctrl-C: whoever goes on does it again
                self.fail(evicted)
                raise

    def _reenter(self) -> None:
        before = self._now
        before.abandon()
        try:
            self._enter(before.joined)
        except PsError as error:
            self.fail(error)
            raise
        with self._lock:
            self._failure = None
        for exchange in self.exchanges:
            exchange.reenter(self._now.joined.incarnation)
            exchange.connect(self._connections)
        self._now.connect(self._carriers)
        live = self._membership.live_state() if self._has_more and not self.ended else {}
        steps = {}
        for spec in self._begun:
            exchange = self._exchanges[spec.number]
            self._membership.make_table(spec)
            self._membership.wait_made(spec.number)
            exchange.share()
            steps[spec.number] = self._membership.wait_started(spec.number) or 0
            self._get(exchange, steps[spec.number], read=self.ended)
        for number, outside in self._outside.items() if live or self.ended else ():  # else its own are newest
            outside.load(self._live_or_kept(live, number))
        self.registered.load(live)
        self.on_reentry(steps)
        self._say(f"joined again, as incarnation {self._now.joined.incarnation}, at steps {steps}")

    def _live_or_kept(self, live: Mapping[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        prefix = f"{number}/"
        found = {name.removeprefix(prefix): it for name, it in live.items() if name.startswith(prefix)}
        return found or self._kept(number)

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
                return self._membership.share(request)
            except Evicted as error:
                self._refused(error)
                for mark in (request.mark, request.rest):  # of the incarnation that is gone
                    mark.batches = mark.samples = 0

    def use(self, request: pb.UseRequest) -> None:
        """How far this worker has come in it; see `share`."""
        self._membership.use(request)

    def epochs(self) -> list[pb.EpochUse]:
        """What became of the samples of the job's last epochs; see `share` for errors."""
        return self._membership.epochs()

    def whom(self) -> list[str]:
        """Who is waited for: as the coordinator has said, and who is behind by what it has heard.

        Raises:
            PsError: it does not answer in time.
        """
        return self._membership.whom()

    def say_wait(self, text: str) -> None:
        """Says what is waited for, and for whom: who is behind, and when its lease would end the wait."""
        with suppress(PsError):  # then without
            text = "; ".join([text, *self._membership.behind()])
        self._say(text)

    @property
    def _has_more(self) -> bool:
        """Whether this worker has state outside its tables."""
        return bool(self._outside) or bool(self.registered)

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
        """The state of a worker that trains, asked for before the first table is entered: then none waits."""
        if self._live is None:
            self._live = self._membership.live_state()
            self.registered.load(self._live)
        return self._live

    def _get(self, exchange: Exchange, step: int, *, read: bool) -> None:
        exchange.pull(step=step, read=read)
        exchange.wait_pulled(self.say_wait)

    def _kept(self, number: int) -> dict[str, torch.Tensor]:
        """What the job keeps with a table: as it was at the end, or at the start."""
        try:
            return model_spec.unpack(self._membership.get_state("final"), f"{number}/")
        except JobUnknown:
            return model_spec.unpack(self._membership.get_state(f"start/{number}"))
