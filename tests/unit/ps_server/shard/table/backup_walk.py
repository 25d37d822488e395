"""Workers with backup that run at speeds of their own, frame by frame, in an order drawn from a seed."""

from __future__ import annotations

import random
from collections import Counter

import torch

from ps_wire.frames import frame as wire
from ps_wire.spec.consistency import BSP
from ps_wire.spec.nonfinite import NonFinite
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

SHAPES = ((10,), (33, 17), (9000,), (3, 1))


class Walk:
    """Workers that each want some steps, and what they saw."""

    def __init__(self, spec, *, num_shards, num_workers, backup, seed, nonfinite=NonFinite.ERROR):
        self.spec, self.dice = spec, random.Random(seed)
        self.start = draw(spec, seed)
        self.servers = Servers(
            spec,
            self.start,
            num_shards=num_shards,
            num_workers=num_workers,
            consistency=BSP(backup),
            nonfinite=nonfinite,
        )
        self.slowness = [self.dice.choice((1, 1, 2, 8)) for _ in range(num_workers)]
        self.pushed: dict[tuple[int, int], Push] = {}  # by step and worker
        self.seen: list[tuple[int, list[torch.Tensor]]] = []  # version, weights
        self.steps_of: Counter[int] = Counter()
        self.cut_off: set[int] = set()  # workers whose connections have ended

    def push_of(self, step, worker):
        gradients = draw(self.spec, 1000 * step + worker)
        if self.dice.random() < 0.3:
            gradients = [None, *gradients[1:]]
        if self.dice.random() < 0.1:
            gradients = None
        return Push(worker=worker, gradients=gradients, weight=self.dice.choice((1.0, 1.0, 3.0)))

    def run(self, steps, between=lambda: None):
        """Every worker makes so many pushes, then leaves; `between` is called now and then."""
        lives = {worker: self.live(worker, steps) for worker in range(len(self.slowness))}
        idle = 0
        while lives:
            worker = self.dice.choice(list(lives))
            if self.dice.randrange(self.slowness[worker]):
                continue
            between()
            moved = next(lives[worker], None)
            if moved is None:
                del lives[worker]
                self.servers.leave(worker)
            idle = 0 if moved is not False else idle + 1
            assert idle < 10_000, "nobody can go on"

    def live(self, worker, steps):
        """Yields when a frame has arrived, or False where weights are waited for."""
        servers, clock = self.servers, 0
        for _ in range(steps):
            servers.ask(worker, clock)
            answers = []
            while (weights := servers.weights_in(answers)) is None:
                answers += servers.outlets[worker].take()
                broke = self.dice.random() < 0.05
                again = worker in self.cut_off and not self.dice.randrange(4 * self.slowness[worker])
                if broke or again:  # what has come is lost, or comes again
                    self.cut_off.discard(worker)
                    answers = []
                    servers.ask(worker, clock)
                yield False
            (step,) = {frame.version for frame in answers if frame.kind is wire.Kind.PULLED}
            self.seen.append((step, weights))
            self.steps_of[worker] += 1
            push = self.pushed[step, worker] = self.push_of(step, worker)
            frames = servers.frames(step, push)
            self.dice.shuffle(frames)
            for frame in frames:
                servers.give(frame)
                if self.dice.random() < 0.1:
                    servers.give(frame)
                yield True
            clock = step + 1

    def replay(self):
        """The weights of each version, of one process that averages what was chosen."""
        local = Local(self.spec, self.start)
        versions = [[weight.clone() for weight in local.weights]]
        for step in range(len(self.servers.chosen)):
            pushes = [self.pushed[step, worker] for worker in sorted(self.servers.chosen[step])]
            local.step(pushes, self.spec.optimizer.hyperparameters)
            versions.append([weight.clone() for weight in local.weights])
        return versions

    def check(self):
        versions = self.replay()
        for version, weights in self.seen:
            assert same(weights, versions[version]), f"version {version}"
        final = self.servers.pull(0, 0, read=True)
        assert same(final, versions[-1])
        for shard in self.servers.shards:
            cells = len(shard.cells())
            for worker, steps in self.steps_of.items():
                ledger = shard.ledger(worker)
                assert ledger.applied + ledger.dropped + ledger.abstained == ledger.received == steps * cells
            assert not any(cell.values.kept_bytes for cell in shard.cells())


def sgd(**options):
    return table_spec("SGD", group(lr=0.1, momentum=0.9), shapes=SHAPES, **options)


def spec_hyper(spec):
    return spec.optimizer.hyperparameters
