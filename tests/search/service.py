"""A small job on a service whose servers die, stop and come back: what each event makes of a state.

Two shards with a partition each, the coordinator on the first of them, workers as in `search_world`. Workers
find out what became of them over the stream to the coordinator or from a shard, whichever comes first, and
come back as `ps_worker.job.rejoiner` does. What a shard sends arrives at once: when it is sent is searched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ps_server.agreement.cut_points import clocks_of_snapshot, first_steps
from ps_server.agreement.gate import Gate, gate_of
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_wire.spec.consistency import Consistency
from tests.search.coordinator_nodes import Coordinators
from tests.search.coordinators import LEASE_S, CoordinatorNode, Jobs
from tests.search.shard_nodes import Shards, start
from tests.search.shards import JOB, SPEC, Input, ShardNode
from tests.search.workers import (
    COMES,
    DEAD,
    DONE,
    GONE,
    PULLING,
    PUSHED,
    PUSHING,
    TRAINS,
    WAITING,
    move,
    put,
)

JOINS, MAKES, STARTS = "joins", "makes", "starts"
ENDS, UNDONE = "ends", "undone"  # undone: gone, and the job went back after that
BROKEN = "broken"  # a group: a rank above 0 is dead, and rank 0 has not said so
LIVES = (MAKES, STARTS, TRAINS, ENDS)
LATER = ("ServerNotReady", "JobUnknown")  # what a worker that has had a connection tries again after
OVER = ("RolledBack", "Evicted")


class Worker(NamedTuple):
    life: str
    incarnation: int = 0
    before: int = 0  # the incarnation that it had, when it comes again
    step: int = 0
    pushes: bool = False  # it has begun to push its step: what it pulls next is another one
    at: tuple[int, int] = (PULLING, PULLING)
    generations: tuple[int, int] = (1, 2)  # of the shards, as it was told; older ones are not theirs


class Cutting(NamedTuple):
    """A snapshot that is taken."""

    steps: tuple[tuple[int, int], ...]  # worker -> its first step that is not in it
    members: frozenset[int]
    captured: frozenset[int] = frozenset()
    armed: tuple[bool, bool] = (False, False)
    parts: tuple[int, int] = (-1, -1)


class World(NamedTuple):
    """A state. `down`: by shard, inputs that are on their way from the coordinator."""

    shards: tuple[ShardNode, ShardNode]
    coordinator: CoordinatorNode
    workers: tuple[Worker, ...]
    snapshot: str
    boots: int = 2
    down: tuple[tuple[Input, ...], tuple[Input, ...]] = ((), ())
    cut: Cutting | None = None
    deaths: int = 0
    pauses: int = 0
    leaves: int = 0
    cuts: int = 0
    breaks: int = 0
    kills: tuple[int, int] = (0, 0)  # by shard; the coordinator is on shard 0
    stops: tuple[int, int] = (0, 0)
    heirs: int = 0
    heir: Any = None  # see `search_heirs`
    misses: int = 0  # orders to let somebody in that a shard refuses, or answers too late
    rank_deaths: int = 0  # of ranks of groups
    returns: int = 0  # of groups that have broken


@dataclass(slots=True, kw_only=True)
class Moves:
    """What each event makes of a state.

    Attributes:
        model: of the job.
        steps: that each worker takes.
        abstains: worker, step.
        groups: workers of two ranks; rank 0 leads and is with shard 0, rank 1 is with shard 1.
        reached: what came about, by name.
    """

    model: Consistency
    steps: tuple[int, ...]
    abstains: frozenset[tuple[int, int]] = frozenset()
    groups: frozenset[int] = frozenset()
    reached: set[str] = field(default_factory=set)
    gate: Gate = field(init=False)
    shards: Shards = field(init=False, repr=False)
    coordinators: Coordinators = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.gate = gate_of(self.model)
        self.shards = Shards(self.gate.aggregates)
        self.coordinators = Coordinators(Jobs(str(self.model), len(self.steps)))

    def begin(self, late: int, **budget: Any) -> World:
        """The job has just started, with all workers but the last `late`; its first snapshot is taken."""
        present = len(self.steps) - late
        self.coordinators.jobs.at_least = present if late else 0
        self.shards.repeats = bool(budget.keys() & {"breaks", "stops"})
        coordinator = self.coordinators.start(present)
        nodes = start(self.shards, str(self.model), present)
        parts = [
            self.shards.parts.number(next(iter(self.shards.made(node).table(JOB, 0).dump().cells.values())))
            for node in nodes
        ]
        here = frozenset(range(present))
        snapshot = self._save((parts[0], parts[1]), dict.fromkeys(here, 0), here)
        trains = [Worker(TRAINS, 1) for _ in range(present)]
        return World(
            shards=nodes,
            coordinator=coordinator,
            workers=(*trains, *(Worker(COMES) for _ in range(late))),
            snapshot=snapshot,
            **budget,
        )

    def _save(self, parts: tuple[int, int], clocks: dict[int, int], workers: frozenset[int]) -> str:
        name = f"{parts}{sorted(clocks.items())}{sorted(workers)}"
        if self.gate.aggregates:
            first, second = (self.shards.parts.known[part].machine.version for part in parts)
            assert first == second, "a cut has one version"
        self.shards.parts.snapshots[name] = parts
        self.coordinators.jobs.saved[name] = SavedJob(
            snapshot=name,
            job=self.coordinators.jobs.job.spec,
            tables=(SPEC,),
            clocks={0: clocks},
            workers=dict.fromkeys(workers, LEASE_S),
        )
        return name

    # -- workers -------------------------------------------------------------------------------------

    def _be(self, world: World, number: int, worker: Worker) -> World:
        workers = list(world.workers)
        workers[number] = worker
        return world._replace(workers=tuple(workers))

    def frame(self, world: World, number: int, shard: int) -> Input:
        """What a worker sends next to a shard."""
        worker = world.workers[number]
        if worker.at[shard] == PULLING:
            return "pull", number, worker.incarnation, worker.step + worker.pushes
        return "push", number, worker.incarnation, worker.step, (number, worker.step) in self.abstains

    def heeded(self, world: World, number: int, shard: int) -> bool:
        """Whether a frame is more than tried again."""
        worker, node = world.workers[number], world.shards[shard]
        if node.generation < worker.generations[shard]:
            return False
        _, outputs = self.shards.step(node, self.frame(world, number, shard))
        return not any(name == "refused" and what[2] in LATER for name, *what in outputs)

    def pull(self, world: World, number: int, shard: int) -> World:
        given = self.frame(world, number, shard)
        return self.give(move(world, number, shard, WAITING), shard, given)

    def push(self, world: World, number: int, shard: int) -> World:
        given, worker = self.frame(world, number, shard), world.workers[number]
        if worker.life != TRAINS:
            world = move(world, number, shard, DONE)
        else:
            last = worker.step + 1 == self.steps[number]
            world = move(world, number, shard, PUSHED if last else PULLING)
        return self.give(world, shard, given)

    def _again(self, world: World, shard: int) -> World:
        """All connections to a shard have ended: what was sent and not answered is sent again."""
        for number, worker in enumerate(world.workers):
            if worker.life == TRAINS and worker.at[shard] in (WAITING, PUSHED, PULLING):
                # a push that has no ACK; where it was taken that is a duplicate
                at = PUSHING if worker.pushes else PULLING
                world = move(world, number, shard, at)
        return world

    def die(self, world: World, number: int) -> World:
        return self._stop(world._replace(deaths=world.deaths - 1), number, DEAD)

    def die_rank(self, world: World, number: int, rank: int) -> World:
        """One rank of a group is dead: no step of the group is taken any more.

        What each rank was about to push may still arrive, or may not.
        """
        world = world._replace(rank_deaths=world.rank_deaths - 1)
        return self._stop(world, number, BROKEN if rank else DEAD)

    def _stop(self, world: World, number: int, life: str) -> World:
        worker = world.workers[number]
        at = tuple(at if at == PUSHING else DONE for at in worker.at)
        return self._be(world, number, worker._replace(life=life, at=at, before=0))

    def break_up(self, world: World, number: int) -> World:
        """Rank 0 says that its group has broken, if it is heard, and ends."""
        worker = world.workers[number]
        if world.coordinator.members.get(number) == (worker.incarnation, "joined"):
            self.reached.add("torn")
            world = self.say(self._drop_out(world, number), "break_up", number)
        return put(world, number, life=DEAD)

    def form_again(self, world: World, number: int) -> World:
        """All ranks of a group are started again."""
        self.reached.add("formed again")
        return self._be(world._replace(returns=world.returns - 1), number, Worker(COMES))

    def pause(self, world: World, number: int) -> World:
        world = world._replace(pauses=world.pauses - 1)
        return self.say(world, "lost", number)

    def say(self, world: World, name: str, number: int) -> World:
        """A worker says or hears something, or the coordinator finds that its lease is over."""
        incarnation = world.workers[number].incarnation
        if name == "lost":
            incarnation, _ = world.coordinator.members[number]
        return self.tell(world, (name, number, incarnation))

    def leave(self, world: World, number: int) -> World:
        world = self._drop_out(world._replace(leaves=world.leaves - 1), number)
        return self.gone(world, number)

    def gone(self, world: World, number: int) -> World:
        """Its work is done."""
        world = self.say(world, "leave", number)
        return self._be(world, number, Worker(GONE))

    def join(self, world: World, number: int) -> World:
        after = self.tell(world, ("join", number, world.workers[number].before))
        if after.coordinator is not world.coordinator and world.cut is not None:
            after = self.give_up(after)
        incarnation, _ = after.coordinator.members.get(number, (0, ""))
        worker = after.workers[number]
        if after == world or worker.life != COMES:
            return after
        return put(after, number, life=JOINS, incarnation=incarnation)

    def make(self, world: World, number: int) -> World:
        return self.say(put(world, number, life=STARTS), "make", number)

    def finish(self, world: World, number: int) -> World:
        return self.say(self._drop_out(world, number), "finish", number)

    def _drop_out(self, world: World, number: int) -> World:
        """It takes no more steps: as `SnapshotScheduler.gone`."""
        cut = world.cut
        if cut is None or (number in cut.captured and world.workers[number].life == ENDS):
            return world
        return self._complete(world._replace(cut=cut._replace(members=cut.members - {number})))

    def _over(self, world: World, number: int) -> World:
        """This incarnation is: it comes again."""
        worker = world.workers[number]
        if worker.life not in LIVES:
            return world
        return self._be(world, number, Worker(COMES, worker.incarnation, worker.incarnation))

    def _turn(self, world: World, number: int) -> World:
        """R1: the next step begins when the weights of all shards are there, and are of one version."""
        worker = world.workers[number]
        if worker.life != TRAINS:
            return world
        first, second = worker.at
        if first >= 0 and second >= 0 and not self._promised(world, number):
            step = worker.step + worker.pushes
            if worker.pushes:
                self._check_acknowledged(world, number)
            if self.gate.aggregates:
                assert first == second, ("a pull has one version", worker)
                assert first == step or (self.gate.backup and first > step), worker
                step = first
            if step >= self.steps[number]:  # with backup workers: others went on without it
                return self._ended(world, number, step)
            world = self._capture(world, number, step)
            return put(world, number, step=step, pushes=True, at=(PUSHING, PUSHING))
        if first == second == DONE:
            self._check_acknowledged(world, number)
            return self._ended(world, number, worker.step + 1)
        return world

    def _ended(self, world: World, number: int, step: int) -> World:
        """It has taken its last step; if it is a member no more, it hears first what became of it."""
        world = put(world, number, life=ENDS, step=step, pushes=False, at=(DONE, DONE))
        if world.coordinator.members.get(number) == (world.workers[number].incarnation, "joined"):
            return self.finish(world, number)
        return world

    def _check_acknowledged(self, world: World, number: int) -> None:
        """A step that a live member was told is done is on all shards, unless they are about to go back."""
        worker, key = world.workers[number], (number, world.workers[number].step)
        if key in self.abstains or not self.gate.aggregates or self.gate.backup:
            return
        if all(node.live.get(number) == worker.incarnation for node in world.shards):
            assert all(key in node.taken or key in node.staged for node in world.shards), (key, world)

    def _promised(self, world: World, number: int) -> bool:
        """Whether it begins no step before it hears the cut."""
        cut, worker = world.cut, world.workers[number]
        if cut is None or number not in cut.members or all(cut.armed):
            return False
        return worker.step + worker.pushes >= dict(cut.steps)[number]

    def _capture(self, world: World, number: int, step: int) -> World:
        cut = world.cut
        if cut is None or number not in cut.members or step < dict(cut.steps)[number]:
            return world
        if number in cut.captured:
            return world
        assert step == dict(cut.steps)[number], "state is captured at the cut, not behind it"
        return self._complete(world._replace(cut=cut._replace(captured=cut.captured | {number})))

    # -- snapshots -----------------------------------------------------------------------------------

    def cutting(self, world: World) -> World:
        """As `SnapshotAttempt`: all who train say which step they have not begun."""
        asked = {
            number: worker.step + worker.pushes
            for number, worker in enumerate(world.workers)
            if world.coordinator.members.get(number) == (worker.incarnation, "joined")
        }
        steps = tuple(sorted(clocks_of_snapshot(self.gate, asked).items()))
        down = [(*orders, ("save", steps)) for orders in world.down]
        cut = Cutting(steps, frozenset(asked))
        return world._replace(cuts=world.cuts - 1, cut=cut, down=(down[0], down[1]))

    def give_up(self, world: World) -> World:
        """The cut has not come about."""
        down = [(*(it for it in orders if it[0] not in ("save", "end")), ("end",)) for orders in world.down]
        world = world._replace(cut=None, down=(down[0], down[1]))
        for number in range(len(world.workers)):
            world = self._turn(world, number)
        return world

    def _complete(self, world: World) -> World:
        cut = world.cut
        if cut is None or -1 in cut.parts or not cut.members <= cut.captured:
            return world
        if not cut.members:
            return self.give_up(world)
        self.reached.add("snapshot")
        finished = {number: it.step for number, it in enumerate(world.workers) if it.life == ENDS}
        clocks = first_steps(self.gate, dict(cut.steps), cut.members, finished)
        return world._replace(snapshot=self._save(cut.parts, clocks, cut.members), cut=None)

    def _armed(self, world: World, shard: int) -> World:
        cut = world.cut
        if cut is None:
            return world
        armed = (True, cut.armed[1]) if shard == 0 else (cut.armed[0], True)
        world = world._replace(cut=cut._replace(armed=armed))
        for number, worker in enumerate(world.workers):
            if worker.life == TRAINS:
                world = self._turn(world, number)
        return world
