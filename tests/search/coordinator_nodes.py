"""All states of coordinators that a search of the service has met, each made and tried only once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ps_server.agreement.chooser import Chooser
from ps_server.coordinator.jobs.actions import Action, ToMember, TwoRounds
from ps_wire.v1 import coordinator_pb2 as pb
from tests.search.coordinator_visits import CoordinatorVisit
from tests.search.coordinators import CoordinatorNode, Jobs, boot_of
from tests.search.shards import JOB, SPEC, Input, Output


@dataclass(slots=True)
class Coordinators:
    """See the module's docstring."""

    jobs: Jobs
    known: dict[object, CoordinatorNode] = field(default_factory=dict)

    def start(self, present: int) -> CoordinatorNode:
        """Of a job that runs with the first workers, and has heard what it was told."""
        visit = CoordinatorVisit(self.jobs, None)
        visit.shards.registry.known[1] = boot_of(1), 2
        visit.follows()
        visit.room = visit.room_of(self.jobs.job.spec)
        for worker in range(present):
            visit.join(worker, 0)
        for worker in range(present):
            visit.give(("make", worker, 1))
        visit.give(("uploaded", 0, 1))
        visit.settle(answers=True)
        visit.shards._ballots.opened(JOB, SPEC, 0)
        return self._node(visit)

    def crashed(self, node: CoordinatorNode) -> CoordinatorNode:
        """The process that is started in its place, with nothing but the state directory and snapshots."""
        visit = CoordinatorVisit(self.jobs, None, last=node.last)
        visit.recovers = "waits"
        return self._node(visit)

    def stopped(self, node: CoordinatorNode) -> CoordinatorNode:
        """The successor of one that has handed on what it had."""
        assert node.idle
        visit = CoordinatorVisit(self.jobs, None, last=node.last)
        visit.shards.registry.known.update(node.standings)
        visit.take_up(node.room)
        visit.shards._ballots.admitted(self.jobs.job.spec)
        for (name, _), ballot in node.ballots._tables.items():
            visit.shards._ballots.opened(name, SPEC, ballot.of.opening)
        visit.shards._ballots.load(node.ballots.dump())
        return self._node(visit)

    def step(self, node: CoordinatorNode, given: Input) -> tuple[CoordinatorNode, tuple[Output, ...]]:
        """The node after an input, and what came out."""
        found = node.memo.get(given)
        if found is None:
            visit = CoordinatorVisit(self.jobs, node)
            visit.give(given)
            visit.settle()
            found = node.memo[given] = self._node(visit), tuple(visit.outputs)
        return found

    def _node(self, visit: CoordinatorVisit) -> CoordinatorNode:
        room, shards = visit.room, visit.shards
        visit.forget_gone()
        facts = None if room is None else room.dump()
        agenda = visit.agenda
        complete = shards._complete.is_set()
        known = dict(shards.registry.known)
        generations = shards.registry.generations
        key = (
            json.dumps(_plain(facts), sort_keys=True),
            agenda.frozen,
            tuple(map(_action_key, agenda._actions)),
            None if agenda._change is None else _action_key(agenda._change),
            tuple(sorted(known.items())),
            generations._last,
            generations.own,
            shards.own.generation,
            complete,
            visit.recovers,
            visit.again,
            visit.sent,
            None if visit.waits is None else visit.waits.SerializeToString(deterministic=True),
            tuple(
                _chooser_key(it.of.opening, it.chooser)
                for it in shards._ballots._tables.values()
                if it.chooser
            ),
        )
        if key not in self.known:
            members = room.job.roster.members.values() if room is not None else ()
            boxes = room.mailboxes if room is not None else {}
            self.known[key] = CoordinatorNode(
                number=len(self.known),
                room=facts,
                agenda=agenda,
                standings=known,
                last=generations._last,
                own=generations.own,
                own_shard=shards.own.generation,
                complete=complete,
                recovers=visit.recovers,
                again=visit.again,
                sent=visit.sent,
                waits=visit.waits,
                ballots=shards._ballots,
                members={it.worker: (it.incarnation, it.state.value) for it in members},
                heard=frozenset(boxes),
                told=frozenset(key for key, box in boxes.items() if box._kept),
                state="" if room is None else room.job.state.value,
            )
        return self.known[key]


def _chooser_key(opening: int, chooser: Chooser) -> object:
    caught, reports = sorted(chooser._caught.items()), sorted(chooser._reports.items())
    return opening, chooser.last, chooser._held, tuple(caught), tuple(reports)


def _action_key(action: Action) -> object:
    if isinstance(action, ToMember):
        return action.worker, action.incarnation, action.reply.SerializeToString(deterministic=True)
    order = action.first if isinstance(action, TwoRounds) else action.order
    return type(action).__name__, order.SerializeToString(deterministic=True)


def _plain(facts: dict[str, Any] | None) -> object:
    """What decides a job's future."""
    if facts is None:
        return None
    boxes = [
        (box["worker"], box["incarnation"], [_said(text) for text in box["kept"]])
        for box in facts["mailboxes"]
    ]
    members = sorted(facts["members"], key=lambda it: it["worker"])
    left_out = {"mailboxes", "events", "members", "plain"}
    plain = {name: it for name, it in facts["plain"].items() if name != "epoch"}
    kept = {name: it for name, it in facts.items() if name not in left_out}
    return {**kept, "plain": plain, "boxes": sorted(boxes), "members": members}


def _said(text: str) -> str:
    reply = pb.MemberReply.FromString(bytes.fromhex(text))
    return str(reply.WhichOneof("kind"))
