"""The coordinator's next actions for one job: messages and orders in turn, one change at a time. Pure.

`next` gives a message, or an order, which all shards carry out before anything else comes out. What became of
it is said with `answered` or `refused`; what follows from that is `Job`'s, and goes to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ps_server.coordinator.jobs.actions import Action, ToMember, ToShards, TwoRounds
from ps_server.coordinator.jobs.job import Job
from ps_wire.errors import PsError
from ps_wire.v1 import coordinator_pb2 as pb


@dataclass(slots=True)
class ActionQueue:
    """The queue of messages and orders of one job, with at most one order under way. Not thread-safe.

    Attributes:
        frozen: shards have lost what it is about: no order is added, nothing follows from one.
    """

    frozen: bool = False
    _actions: deque[Action] = field(default_factory=deque)
    _change: ToShards | TwoRounds | None = None  # whose order is under way

    @property
    def empty(self) -> bool:
        """Whether nothing waits to come out."""
        return not self._actions

    @property
    def least(self) -> bool:
        """Whether the order that is under way is answered with the smallest figures of all shards."""
        return isinstance(self._change, TwoRounds) and self._change.least

    def add(self, actions: Sequence[Action]) -> None:
        """Puts actions at the end; while it is frozen, messages only."""
        self._actions.extend(action for action in actions if not self.frozen or isinstance(action, ToMember))

    def freeze(self) -> None:
        """Drops orders that wait; the one that is under way comes to its end.

        Messages are still heard: who was let in has to know as whom, to come back.
        """
        self.frozen = True
        self._actions = deque(action for action in self._actions if isinstance(action, ToMember))

    def thaw(self, actions: Sequence[Action]) -> None:
        """Goes on, with these."""
        self.frozen = False
        self.add(actions)

    def next(self) -> ToMember | pb.Order | None:
        """Takes out what is to be done now; None: nothing is, or an order is under way."""
        if self._change is not None or not self._actions:
            return None
        action = self._actions.popleft()
        if isinstance(action, ToMember):
            return action
        self._change = action
        return _order_of(action)

    def answered(self, job: Job, figures: Mapping[int, int]) -> pb.Order | None:
        """Every shard has carried the order out; returns the one of the second round, if there is one."""
        assert self._change is not None
        if isinstance(self._change, TwoRounds):
            self._change = ToShards(self._change.second(figures))
            return self._change.order
        order, self._change = self._change.order, None
        if not self.frozen:
            self.add(job.done(order, figures))
        return None

    def refused(self, job: Job, error: PsError, *, sent: bool = True) -> None:
        """A shard refused the order, or is not there; where it was sent, others may have carried it out."""
        assert self._change is not None
        order, self._change = _order_of(self._change), None
        if not self.frozen:
            self.add(job.failed(order, error, sent=sent))


def _order_of(change: ToShards | TwoRounds) -> pb.Order:
    return change.first if isinstance(change, TwoRounds) else change.order
