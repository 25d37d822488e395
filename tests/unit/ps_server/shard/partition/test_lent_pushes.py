"""Gradients that a shard reads where a worker has them: when it says that the memory may be written again."""

from __future__ import annotations

import torch

from ps_wire.frames import frame as wire
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

SPEC = table_spec("SGD", group(lr=1.0), shapes=((16,),))
HYPER = SPEC.optimizer.hyperparameters


class Lender:
    """Worker 1 of two, whose gradient lies in memory that the shard reads."""

    def __init__(self, servers: Servers, step: int = 0) -> None:
        self.servers, self.step = servers, step
        self.gradients = draw(SPEC, 3)
        (frame,) = servers.frames(step, Push(worker=1, gradients=self.gradients))
        self.memory = bytearray(frame.payload)

    def push(self, incarnation: int = 1) -> list[tuple[wire.Kind, int, bool]]:
        """What the shard says of it: kind, step, and whether the memory is still read."""
        frame = wire.Frame(
            kind=wire.Kind.PUSH,
            flags=wire.SHARED,
            worker=1,
            incarnation=incarnation,
            step=self.step,
            payload=memoryview(self.memory),
        )
        self.servers.shards[0].receive(frame, self.servers.outlets[1], member=True)
        return self.said()

    def said(self) -> list[tuple[wire.Kind, int, bool]]:
        """What came since the last call."""
        frames = self.servers.outlets[1].take()
        return [(frame.kind, frame.step, bool(frame.flags & wire.LENT)) for frame in frames]


def test_memory_is_lent_until_the_step_has_closed():
    """The ACK says that the shard goes on reading, and FREE that it does no more."""
    servers = Servers(SPEC, draw(SPEC, 1), num_workers=2)
    lender = Lender(servers)
    assert lender.push() == [(wire.Kind.ACK, 0, True)]
    servers.step(0, [Push(worker=0, gradients=None)], HYPER)
    assert lender.said() == [(wire.Kind.FREE, 0, False)]


def test_memory_of_a_push_that_comes_again_is_still_lent():
    """Each ACK says so: else the worker would write where the step has not been made yet. FREE comes once."""
    start = draw(SPEC, 1)
    servers, local = Servers(SPEC, start, num_workers=2), Local(SPEC, start)
    lender = Lender(servers)
    for _ in range(3):
        assert lender.push() == [(wire.Kind.ACK, 0, True)]
    zeros = Push(worker=0, gradients=[torch.zeros(16)])
    servers.step(0, [zeros], HYPER)
    local.step([zeros, Push(worker=1, gradients=lender.gradients)], HYPER)
    assert lender.said() == [(wire.Kind.FREE, 0, False)]
    assert lender.push() == [(wire.Kind.ACK, 0, False)]
    assert same(servers.pull(0, 1), local.weights)


def test_memory_of_the_next_step_is_lent_anew():
    """What the shard says of one step is said of no other."""
    servers = Servers(SPEC, draw(SPEC, 1), num_workers=2)
    for step in range(3):
        lender = Lender(servers, step)
        assert lender.push() == [(wire.Kind.ACK, step, True)]
        servers.step(step, [Push(worker=0, gradients=None)], HYPER)
        assert lender.said() == [(wire.Kind.FREE, step, False)]


def test_a_push_that_closes_its_step_is_lent_to_nobody():
    """The last one of a step has been read when it is acknowledged."""
    servers = Servers(SPEC, draw(SPEC, 1), num_workers=2)
    servers.step(0, [Push(worker=0, gradients=None)], HYPER)
    said = Lender(servers).push()
    assert said[-1] in {(wire.Kind.FREE, 0, False), (wire.Kind.ACK, 0, False)}
