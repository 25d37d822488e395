"""Workers that come late to a job of several tables: they enter all of them between two rounds of the others.

Who entered one table before a round's step of the others and another one after it would wait for them at the
one, while they wait for it at the other. So those who train are held at the end of a round:

    ask    each says where its last round over its tables began, and begins no other
    hold   all go on to the end of the round of who is ahead, and stand there
    enter  who has come enters all tables, at the steps at which the others stand
    go on  it has, or has gone, or makes no more tables than it has for `ENTER_LIMIT_S`

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from ps_server.coordinator.jobs.actions import tell
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.log import logger
from ps_wire.errors import PsError
from ps_wire.frames.messages import refused_to_proto
from ps_wire.process import watched
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

ENTER_LIMIT_S = 10.0  # for the script between two tables
LOOK_S = 0.02  # between two looks whether an order was carried out


class LateJoins:
    """The late joins of all jobs; one is under way in a job at a time."""

    def __init__(self) -> None:
        self._numbers = itertools.count(secrets.randbits(32))
        self._under_way: dict[str, _LateJoin] = {}

    def make_table(self, runner: JobRunner, member: Member, spec: TableSpec, message: spec_pb2.Table) -> None:
        """A worker makes its next table, which came as `message`; one that is late, when the others stand.

        Raises:
            ConfigurationRefused: see `Job.make_table`.
        """
        if not self._takes(runner, member, spec):
            runner.do(runner.job.make_table(member, spec, message))

    def _takes(self, runner: JobRunner, member: Member, spec: TableSpec) -> bool:
        name, job = runner.job.name, runner.job
        lockstep = job.gate.staleness == 0
        if not (member.late and lockstep and spec.number < job.num_started and job.num_started > 1):
            return False
        entrance = self._under_way.get(name)
        if entrance is None:
            over = partial(self._under_way.pop, name, None)
            entrance = self._under_way[name] = _LateJoin(runner, next(self._numbers), over)
            entrance.begin()
        return entrance.takes(member, spec)

    def holding(self, job: str, member: Member, number: int, steps: Mapping[int, int], *, held: bool) -> None:
        """A member says where it is, by table; `held`: it stands there."""
        if job in self._under_way:
            self._under_way[job].holding(member, number, steps, held=held)

    def stop(self) -> None:
        """Does nothing any more."""
        for entrance in self._under_way.values():
            entrance.stop()

    def settle(self) -> None:
        """Nobody is held any more; who was about to enter does so at once."""
        for entrance in list(self._under_way.values()):
            entrance.settle()


class _LateJoin:
    """Of one job, for all who come while it is under way."""

    def __init__(self, runner: JobRunner, number: int, over: Callable[[], object]) -> None:
        self._runner = runner
        self._over = over  # to be called when nobody stands any more
        self._number = number
        self._asked: dict[int, Member] = {}
        self._begun: dict[int, Mapping[int, int]] = {}
        self._held: dict[int, Mapping[int, int]] = {}
        self._entering: list[Member] = []
        self._made: list[tuple[Member, TableSpec]] = []
        self._steps: Mapping[int, int] | None = None  # at which the others stand
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = watched.task(
            f"the entrance of job {self._runner.job.name}",
            self._run(),
            log=logger,
            failed=lambda _: self._let_go(),
        )

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def settle(self) -> None:
        self.stop()
        self._open({})
        self._let_go()

    def takes(self, member: Member, spec: TableSpec) -> bool:
        """Whether its table is made later."""
        if member not in self._entering:  # it begins no round before the others do
            self._entering.append(member)
            self._say(member, hold=pb.Hold(number=self._number))
        if self._steps is not None:
            member.enter_at(self._steps)
            return False
        self._made.append((member, spec))
        return True

    def holding(self, member: Member, number: int, steps: Mapping[int, int], *, held: bool) -> None:
        if number == self._number and self._asked.get(member.worker) is member:
            (self._held if held else self._begun)[member.worker] = steps
            self._heard.set()

    async def _run(self) -> None:
        try:
            await self._stand()
            async with asyncio.timeout(ENTER_LIMIT_S):
                await self._until(self._entered)
        except TimeoutError:
            name = self._runner.job.name
            logger.warning("job %s: who joins has not made all tables; the others go on", name)
        except Exception:  # noqa: BLE001 - nobody is to stand for ever
            logger.exception("bug while workers stand for one that joins")
            self._open({})
        self._let_go()

    async def _stand(self) -> None:
        """Until all who train do; then those who have come enter."""
        job = self._runner.job
        self._asked = {
            it.worker: it for it in job.roster.here() if it not in self._entering and it.num_tables
        }
        for member in self._asked.values():
            self._say(member, hold=pb.Hold(number=self._number))
        await self._until(lambda: all(it.worker in self._begun for it in self._training()))
        begun = [self._begun[it.worker] for it in self._training()]
        for member in self._training():
            self._say(member, hold=pb.Hold(number=self._number, named=True, beyond=_merged(max, begun)))
        await self._until(lambda: all(it.worker in self._held for it in self._training()))
        self._open(
            _merged(max if job.gate.aggregates else min, [self._held[it.worker] for it in self._training()])
        )

    def _training(self) -> list[Member]:
        here = self._runner.job.roster.here()
        return [member for member in self._asked.values() if member in here]

    def _open(self, steps: Mapping[int, int]) -> None:
        """The others stand at these steps: who has come enters."""
        self._steps = steps
        made, self._made = self._made, []
        for member, spec in made:
            if member.state is not MemberState.JOINED:
                continue
            member.enter_at(steps)
            try:
                self._runner.do(self._runner.job.make_table(member, spec))
            except PsError as error:
                logger.warning("job %s worker %d refused: %s", self._runner.job.name, member.worker, error)
                self._say(member, refused=refused_to_proto(error))

    def _entered(self) -> bool:
        job = self._runner.job
        coming = [it for it in self._entering if it.state is MemberState.JOINED]
        within = all(it.num_tables >= job.num_started for it in coming) and self._runner.idle
        return job.state is not JobState.RUNNING or within

    async def _until(self, over: Callable[[], bool]) -> None:
        while not over():
            self._heard.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._heard.wait()

    def _let_go(self) -> None:
        self._over()
        for member in [*self._asked.values(), *self._entering]:
            self._say(member, let_go=pb.LetGo(number=self._number))

    def _say(self, member: Member, **reply: object) -> None:
        self._runner.do([tell(member, **reply)])


def _merged(extreme: Callable[[int, int], int], positions: list[Mapping[int, int]]) -> dict[int, int]:
    """The largest, or smallest, step of each table."""
    merged: dict[int, int] = {}
    for position in positions:
        for table, step in position.items():
            merged[table] = extreme(merged.get(table, step), step)
    return merged
