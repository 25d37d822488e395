"""Every state of a small job: honest workers, two shards of a partition each, and the coordinator.

Shards and chooser are the real ones (`search_nodes`). Rounds, limits and first steps are made as
`member.TwoRounds` makes them, cuts as `readers` does. A worker pulls its step from both shards, pushes it to
both (R1), and asks each for the next as soon as its push has left for it. Each frame, order or report that
arrives is one event; what goes from the coordinator to a shard, or back, stays in order.

What may go wrong, each so many times: a worker dies, with what it has sent still under way; it is silent for
too long (`pause`), is evicted and comes back; a connection breaks and what was not answered is sent again. A
reader may want a cut. A shard may lose its stream to the coordinator, with all that is on its way: orders
that are answered are said again, and so are answers. Nothing here may get stuck without another fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ps_server.agreement.cut_points import clocks_of_cut
from ps_server.agreement.gate import Gate, gate_of
from ps_server.agreement.messages import UNANSWERED
from ps_wire.spec.consistency import Consistency
from tests.search.nodes import NOBODY, ChooserNode, Input, Node, Nodes
from tests.search.workers import (
    COMES,
    DEAD,
    DONE,
    GONE,
    PULLING,
    PUSHED,
    PUSHING,
    SHARDS,
    TRAINS,
    WAITING,
    move,
    put,
)

GOES = "goes"


class Worker(NamedTuple):
    life: str
    incarnation: int
    left: int  # pushes that it still wants to make
    step: int = 0
    pushes: bool = False  # it has begun to push its step: what it pulls next is another one
    at: tuple[int, int] = (PULLING, PULLING)
    asked: bool = False  # the coordinator has its change in its queue


class World(NamedTuple):
    """A state. `down` and `up`: by shard, orders and what comes back."""

    nodes: tuple[Node, Node]
    workers: tuple[Worker, ...]
    chooser: ChooserNode | None
    down: tuple[tuple[Input, ...], tuple[Input, ...]] = ((), ())
    up: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    queue: tuple[tuple[str, int, int], ...] = ()  # changes: kind, worker, incarnation
    phase: int = 0  # of the first of them
    named: int = 0
    answers: tuple[int, ...] = ()
    cut: tuple[Any, ...] = ()  # what the coordinator waits for, and what has been sent
    alone: frozenset[tuple[int, int, int, int]] = frozenset()  # applied on one shard: shard, worker, ...
    closed: frozenset[tuple[int, int, frozenset[int]]] = frozenset()  # on one shard: shard, step, workers
    deaths: int = 0
    pauses: int = 0
    breaks: int = 0
    cuts: int = 0
    losses: int = 0


@dataclass(slots=True, kw_only=True)
class Moves:
    """What each event makes of a state.

    Attributes:
        abstains: worker, step.
        prompt: reports of shards are not late.
        reached: outputs of shards that came about, by name.
    """

    model: Consistency
    abstains: frozenset[tuple[int, int]] = frozenset()
    prompt: bool = False
    reached: set[str] = field(default_factory=set)
    gate: Gate = field(init=False)
    nodes: Nodes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.gate = gate_of(self.model)
        self.nodes = Nodes(self.gate)

    def heard(self, world: World, number: int, shard: int) -> bool:
        """Whether the shard takes this incarnation's frames."""
        live = world.nodes[shard].live.get(number)
        return live is not None and live[0] == world.workers[number].incarnation

    # -- workers -------------------------------------------------------------------------------------

    def pull(self, world: World, number: int, shard: int) -> World:
        worker = world.workers[number]
        world = move(world, number, shard, WAITING)
        return self._give(world, shard, ("pull", number, worker.incarnation, worker.step + worker.pushes))

    def push(self, world: World, number: int, shard: int) -> World:
        worker = world.workers[number]
        if worker.life == TRAINS:
            world = move(world, number, shard, PULLING if worker.left > 1 else PUSHED)
        else:
            world = move(world, number, shard, DONE)
        abstains = (number, worker.step) in self.abstains
        return self._give(world, shard, ("push", number, worker.incarnation, worker.step, abstains))

    def reconnect(self, world: World, number: int, shard: int) -> World:
        """Answers are lost, or were not there yet: what was sent is sent again."""
        worker = world.workers[number]
        world = move(world._replace(breaks=world.breaks - 1), number, shard, PUSHING)
        return world if worker.pushes else move(world, number, shard, PULLING)

    def die(self, world: World, number: int) -> World:
        return put(world._replace(deaths=world.deaths - 1), number, life=DEAD)

    def pause(self, world: World, number: int) -> World:
        world = put(world._replace(pauses=world.pauses - 1), number, asked=True)
        return self._ordered(world, "evict", number, world.workers[number].incarnation)

    def ask(self, world: World, number: int) -> World:
        worker = world.workers[number]
        world = put(world, number, asked=True)
        if worker.life == DEAD:
            return self._ordered(world, "evict", number, worker.incarnation)
        return self._ordered(world, "enter", number, worker.incarnation + 1)

    def _turn(self, world: World, number: int) -> World:
        """R1: the next step begins when the weights of all shards are there, and are of one version."""
        worker = world.workers[number]
        if worker.life != TRAINS:
            return world
        first, second = worker.at
        if first >= 0 and second >= 0:
            step = worker.step + worker.pushes
            if self.gate.aggregates:
                assert first == second, ("a pull has one version", worker)
                assert first == step or (self.gate.backup and first > step)
                step = first
            left = worker.left - worker.pushes
            return put(world, number, step=step, left=left, pushes=True, at=(PUSHING, PUSHING))
        if first == second == DONE:
            world = put(world, number, life=GOES, asked=True, left=0)
            if not worker.asked:  # else its eviction is on the way
                return self._ordered(world, "leave", number, worker.incarnation)
        return world

    # -- the coordinator -----------------------------------------------------------------------------

    def lose(self, world: World, shard: int) -> World:
        down, up = list(world.down), list(world.up)
        down[shard] = tuple(order for order in down[shard] if order[0] not in UNANSWERED)
        up[shard] = tuple(answer for answer in up[shard] if answer[0] != "report")
        world = world._replace(losses=world.losses - 1, down=(down[0], down[1]), up=(up[0], up[1]))
        return self._give(world, shard, ("follow",))

    def _ordered(self, world: World, kind: str, number: int, incarnation: int) -> World:
        return self._begin(world._replace(queue=(*world.queue, (kind, number, incarnation))))

    def _begin(self, world: World) -> World:
        if not world.queue or world.phase:
            return world
        kind, number, incarnation = world.queue[0]
        first = {"evict": "fence", "enter": "prepare", "leave": "leave"}[kind]
        if kind != "leave":
            world = self._choose(world, "hold")
        world = self._send(world, (first, number, incarnation))
        return world._replace(phase=2 if kind == "leave" else 1, answers=())

    def _send(self, world: World, order: Input, shards: tuple[int, ...] = SHARDS) -> World:
        down = [(*waiting, order) if shard in shards else waiting for shard, waiting in enumerate(world.down)]
        return world._replace(down=(down[0], down[1]))

    def deliver(self, world: World, shard: int) -> World:
        order, *rest = world.down[shard]
        down = list(world.down)
        down[shard] = tuple(rest)
        return self._give(world._replace(down=(down[0], down[1])), shard, order)

    def take(self, world: World, shard: int) -> World:
        (name, *what), *rest = world.up[shard]
        up = list(world.up)
        up[shard] = tuple(rest)
        world = world._replace(up=(up[0], up[1]))
        if name == "answer":
            return self._answered(world, what[0])
        if name == "report":
            return self._choose(world, "reported", shard, what[0])
        return self._cut_goes_on(world, shard, name, what)

    def _choose(self, world: World, *given: Any) -> World:
        if world.chooser is None:
            return world
        chooser, sent = self.nodes.choose(world.chooser, given)
        world = world._replace(chooser=chooser)
        for order, taken, shards in sent:
            world = self._send(world, (order, *taken), shards)
        return world

    def _answered(self, world: World, answer: int) -> World:
        world = world._replace(answers=tuple(sorted((*world.answers, answer))))
        if len(world.answers) < len(SHARDS):
            return world
        if world.phase == 2:
            return self._changed(world)
        kind, number, incarnation = world.queue[0]
        named = min(world.answers) if kind == "evict" else max(world.answers)
        world = self._send(world, (kind, number, incarnation, named))
        return world._replace(phase=2, named=named, answers=())

    def _changed(self, world: World) -> World:
        (kind, number, incarnation), *rest = world.queue
        if kind != "leave":
            world = self._choose(world, "release")
        worker = world.workers[number]
        if kind == "enter":
            entered = {"step": world.named, "pushes": False, "at": (PULLING, PULLING)}
            world = put(world, number, life=TRAINS, incarnation=incarnation, asked=False, **entered)
        elif kind == "evict" and worker.life == TRAINS and worker.left:
            world = put(world, number, life=COMES, asked=False)
        elif kind == "leave" or worker.life == GOES:
            world = put(world, number, life=GONE)
        return self._begin(world._replace(queue=tuple(rest), phase=0, named=0, answers=()))

    def hold(self, world: World) -> World:
        world = world._replace(cuts=world.cuts - 1, cut=("hold", (None, None)))
        return self._send(world, ("hold",))

    def _cut_goes_on(self, world: World, shard: int, name: str, what: list[Any]) -> World:
        phase, found = world.cut
        assert (phase, name) in (("hold", "held"), ("arm", "sent"), ("end", "ended")), (phase, name)
        found = [*found]
        found[shard] = what[0] if what else 0
        if None in found:
            return world._replace(cut=(phase, tuple(found)))
        if phase == "hold":
            newest: dict[int, int] = {}
            for clocks in found:
                for worker, clock in clocks:
                    newest[worker] = max(clock, newest.get(worker, 0))
            limits = clocks_of_cut(self.gate.aggregates, newest)
            world = self._send(world, ("arm", tuple(sorted(limits.items()))))
            return world._replace(cut=("arm", (None, None)))
        if phase == "arm":
            one = found[0] == found[1] or NOBODY in found
            assert one or not self.gate.aggregates, ("a cut has one version", found)
            return self._send(world, ("end",))._replace(cut=("end", (None, None)))
        return world._replace(cut=())

    # -- what shards do ------------------------------------------------------------------------------

    def _give(self, world: World, shard: int, given: Input) -> World:
        node, outputs = self.nodes.step(world.nodes[shard], given)
        world = world._replace(nodes=(node, world.nodes[1]) if shard == 0 else (world.nodes[0], node))
        for name, *what in outputs:
            self.reached.add(name)
            took = getattr(Moves, f"_on_{name}", None)
            if took is not None:
                world = took(self, world, shard, *what)
            else:
                up = list(world.up)
                up[shard] = (*up[shard], (name, *what))
                world = world._replace(up=(up[0], up[1]))
        if self.prompt or world.chooser is None:  # then what comes back says no more when it is late
            while world.up[shard]:
                world = self.take(world, shard)
        return world

    def _on_ack(self, world: World, shard: int, number: int, step: int) -> World:
        worker = world.workers[number]
        if worker.at[shard] == PUSHED and worker.life == TRAINS and step == worker.step:
            return self._turn(move(world, number, shard, DONE), number)
        return world

    def _on_pulled(self, world: World, shard: int, number: int, incarnation: int, version: int) -> World:
        worker = world.workers[number]
        if worker.at[shard] == WAITING and (worker.life, worker.incarnation) == (TRAINS, incarnation):
            return self._turn(move(world, number, shard, version), number)
        return world

    def _on_mixed(self, world: World, shard: int, number: int, incarnation: int, step: int) -> World:
        taken = shard, number, incarnation, step
        assert taken in world.alone or (number, step) in self.abstains
        return world._replace(alone=world.alone - {taken})

    def _on_refused(self, world: World, shard: int, *what: object) -> World:
        raise AssertionError((world, shard, what))

    def _on_applied(self, world: World, shard: int, number: int, incarnation: int, step: int) -> World:
        here, there = (shard, number, incarnation, step), (1 - shard, number, incarnation, step)
        assert here not in world.alone, "at most once"
        return world._replace(alone=world.alone - {there} if there in world.alone else world.alone | {here})

    def _on_closed(self, world: World, shard: int, step: int, workers: frozenset[int]) -> World:
        """With backup workers the set of a step is the same on all shards."""
        if not self.gate.backup:
            return world
        others = [it for it in world.closed if it[:2] == (1 - shard, step)]
        assert all(it[2] == workers for it in others), ("one set", step, workers, others)
        return world._replace(
            closed=world.closed - set(others) if others else world.closed | {(shard, step, workers)}
        )
