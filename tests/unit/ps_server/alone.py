"""State machines for tests: the simplest caller around one, and short names for what goes in and out."""

from __future__ import annotations

from ps_server.agreement.gate import gate_of
from ps_server.shard.partition.machine import Ack, Action, Answer, Complete, Contribution, Pull, StepMachine


class Alone(StepMachine):
    """A machine whose caller decides each step as soon as it is complete."""

    def join(self, worker: int, incarnation: int, clock: int, now_s: float) -> list[Action]:
        return self._closed(super().join(worker, incarnation, clock, now_s), now_s)

    def leave(self, worker: int, incarnation: int, now_s: float) -> list[Action]:
        return self._closed(super().leave(worker, incarnation, now_s), now_s)

    def push(self, contribution: Contribution, now_s: float) -> list[Action]:
        return self._closed(super().push(contribution, now_s), now_s)

    def _closed(self, actions: list[Action], now_s: float) -> list[Action]:
        closed: list[Action] = []
        for action in actions:
            if isinstance(action, Complete):
                after = self.decide(action.step, action.workers, 1.0, now_s)
                closed += self._closed(after, now_s)
            else:
                closed.append(action)
        return closed


def partition(model, members=(0, 1), kind=Alone) -> StepMachine:
    made = kind(gate_of(model))
    for worker in members:
        assert made.join(worker, 1, 0, 0.0) == []
    return made


def gradient(worker, step, payload="g", incarnation=1, **fields) -> Contribution:
    return Contribution(worker=worker, incarnation=incarnation, step=step, payload=payload, **fields)


def ask(worker, clock, incarnation=1, asked_s=0.0) -> Pull:
    return Pull(worker=worker, incarnation=incarnation, clock=clock, asked_s=asked_s)


def ack(worker, step) -> Ack:
    return Ack(worker=worker, step=step)


def answer(*pulls, version) -> Answer:
    return Answer(pulls=pulls, version=version)
