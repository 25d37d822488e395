"""All states of shards that a search of the service has met, each made and tried only once.

Each input is given to a real `Shard` that has taken up what the one before handed off: so in every state that
is reached a shard could stop, and its successor go on. Nodes with the same future are the same object.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ps_server.shard import hand_off
from ps_server.shard.shard import Shard
from ps_server.shard.table.table_state import TableState
from ps_wire.v1 import spec_pb2
from tests.search.shard_visits import ShardVisit
from tests.search.shards import (
    JOB,
    NUM_SHARDS,
    SPEC,
    Follows,
    Held,
    Input,
    Output,
    Parts,
    ShardNode,
    applied_of,
    machine_of,
    shard_of,
    weights_of,
)


@dataclass(slots=True)
class Shards:
    """See the module's docstring."""

    aggregates: bool
    repeats: bool = False  # orders may come again: what was answered is kept
    known: dict[object, ShardNode] = field(default_factory=dict)
    parts: Parts = field(default_factory=Parts)

    def fresh(self, index: int, boot: int, generation: int = 0) -> ShardNode:
        """A process that has just started with nothing."""
        return self._node(shard_of(index, generation), Held(), Follows(boot))

    def stopped(self, node: ShardNode, generation: int | None = None) -> ShardNode:
        """Its successor, which has taken up what it handed off; what it could not is said again."""
        shard = self.made(node)
        shard.generation = node.generation if generation is None else generation
        return self._node(shard, Held(), node.follows)

    def step(self, node: ShardNode, given: Input) -> tuple[ShardNode, tuple[Output, ...]]:
        """The node after an input, and what came out."""
        found = node.memo.get(given)
        if found is None:
            visit = ShardVisit(self.parts, self.made(node), node, self.repeats, self.aggregates)
            visit.take_up(node.held)
            visit.outputs.clear()
            visit.give(given)
            after = self._node(visit.shard, visit.held(), visit.follows)
            visit.check(after)
            found = node.memo[given] = after, tuple(visit.outputs)
        return found

    def made(self, node: ShardNode) -> Shard:
        """A shard in this state, but for what is not handed off."""
        shard = shard_of(node.index, node.generation)
        shard.open_part = lambda _job, name, _tables: nullcontext(
            lambda plan, _spec: TableState(
                cells={
                    part.index: self.parts.known[self.parts.snapshots[name][node.index]]
                    for part in plan.partitions_of_shard(node.index)
                }
            )
        )
        if node.facts is not None:
            hand_off.load_job(shard, node.facts, node.tensors)  # type: ignore[arg-type]
        return shard

    def _node(self, shard: Shard, held: Held, follows: Follows) -> ShardNode:
        entry = next(iter(shard.jobs()), None)
        tensors: dict[str, torch.Tensor] = {}
        facts = hand_off.dump_job(entry, tensors) if entry is not None else None
        machine = machine_of(shard)
        applied = applied_of(weights_of(shard)) if machine is not None else {}
        key = (
            shard.index,
            shard.generation,
            json.dumps(_without_counters(facts), sort_keys=True),
            tuple(sorted(applied.items())),
            tuple(sorted(name for name in tensors if f"/{hand_off.KEPT}/" in name)),
            held,
            follows,
        )
        if key not in self.known:
            members = machine._members.items() if machine is not None else ()
            self.known[key] = ShardNode(
                number=len(self.known),
                index=shard.index,
                generation=shard.generation,
                facts=facts,
                tensors=tensors,
                held=held,
                follows=follows,
                version=machine.version if machine is not None else 0,
                applied=applied,
                taken=frozenset((worker, step) for worker, _, step in applied),
                live={worker: it.incarnation for worker, it in members if not it.fenced},
                staged=frozenset((it.worker, it.step) for it in machine.staged) if machine else frozenset(),
                mixed_steps=machine.mixed_steps if machine is not None else 0,
            )
        return self.known[key]


def _without_counters(facts: dict[str, Any] | None) -> object:
    """What decides the future of a shard."""
    if facts is None:
        return None
    tables = []
    for table in facts["tables"]:
        partitions = [
            {name: it for name, it in part.items() if name not in ("ledgers", "tau")}
            for part in table["state"]["partitions"]
        ]
        tables.append({**table, "state": partitions})
    return {**facts, "tables": tables}


def start(shards: Shards, consistency: str, workers: int) -> tuple[ShardNode, ShardNode]:
    """Both, with a table that has just started."""
    job = spec_pb2.Job(name=JOB, consistency=consistency, num_workers=workers, nonfinite="error")
    nodes = []
    for index in range(NUM_SHARDS):
        shard = shard_of(index, 1 + index)
        for worker in range(workers):
            shard.members.admit(
                job=JOB,
                consistency_text=job.consistency,
                num_workers=workers,
                worker=worker,
                incarnation=1,
                clocks={},
                reader=False,
            )
        shard.open_table(JOB, SPEC)
        cell = shard.table(JOB, 0).cells()[0]
        cell.set_weights(torch.zeros_like(cell.values.now), (0, 1))
        shard.start_table(JOB, 0)
        nodes.append(shards._node(shard, Held(), Follows(index, 1)))
    return nodes[0], nodes[1]
