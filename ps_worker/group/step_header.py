"""The header of a step in a group: what its ranks have to agree on before anything of the step leaves.

Each rank says whether it has a gradient, the weight of its pushes, a checksum of its hyper-parameters, and
whether it was asked to end; all hear the same in the same order, so all decide the same. A rank says nothing
of step v before it has the weights of version v. It must not know what the gradients are, nor what rides
along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ps_worker.group.channel import Channel, Fields
from ps_worker.group.ending import Ending


class Rider(Protocol):
    """A part of what ranks tell each other that has nothing to do with a step, and goes with its header."""

    def say(self, table: int, step: int) -> Fields:
        """Called before this rank says what it has of a step, which it has begun; gives what goes along.

        It may wait.
        """

    def hear(self, said: Sequence[Fields], channel: Channel) -> None:
        """Called when all ranks have said so, with what each has; it may talk to them over this channel."""


class StepHeader:
    """The header of one table's newest step.

    Attributes:
        step: of which it is; -1: there was none.
        mine: this rank has a gradient in it.
        there: the ranks that have one.
        weight: of the pushes.
        by_bucket: all ranks want the weights of the next step bucket by bucket.
        ends: a rank was told to end: so do all, when this step is over. Of this table's headers alone: those
            of another may be heard sooner on one rank than on the others.
    """

    def __init__(self, channel: Channel, ending: Ending, table: int, rider: Rider | None = None) -> None:
        """No step has begun.

        Args:
            channel: to the other ranks.
            ending: whether the group is to end after a step.
            table: its number, for people.
            rider: what goes along; None: nothing does.
        """
        self._rider = rider
        self.step = -1
        self.mine = False
        self.there: Sequence[int] = ()
        self.weight = 1.0
        self.by_bucket = False
        self.ends = False
        self._channel = channel
        self._ending = ending
        self._table = table

    def begin(self, step: int, *, there: bool, weight: float, hyper: int, by_bucket: bool = False) -> bool:
        """Every rank says what it has of a step; waits for the others where it is a new one.

        Args:
            step: the worker's clock.
            there: this rank has a gradient.
            weight: of its pushes.
            hyper: a checksum of the hyper-parameters.
            by_bucket: this rank wants the weights of the next step bucket by bucket.

        Returns:
            Whether it is a new step.

        Raises:
            GroupBroken: a rank does something else, or has gone, or has other hyper-parameters.
        """
        if step == self.step:
            return False
        mine = {"there": there, "weight": weight, "hyper": hyper, "ends": self._ending.asked()}
        mine["by_bucket"] = by_bucket
        if self._rider is not None:
            mine |= self._rider.say(self._table, step)
        said = [one.fields for one in self._channel.share(f"step {step} of table {self._table}", mine)]
        self.step, self.mine = step, there
        self.by_bucket = all(one.get("by_bucket") for one in said)
        self.there = [rank for rank, one in enumerate(said) if one.get("there")]
        hypers = [said[rank].get("hyper") for rank in self.there]
        check_hyper(self._channel, hypers, f"step {step} of table {self._table}")
        weights = (float(said[rank]["weight"]) for rank in self.there)
        self.weight = next((weight for weight in weights if weight), 0.0)
        self.ends = any(one.get("ends") for one in said)
        if self._rider is not None:
            self._rider.hear(said, self._channel)
        return True


def check_hyper(channel: Channel, hypers: Sequence[int | None], where: str) -> None:
    """Ends the group where checksums of hyper-parameters differ; None: a rank took none.

    Raises:
        GroupBroken: they do.
    """
    if len(set(hypers) - {None}) > 1:
        raise channel.broken(
            f"param_groups differ between ranks at {where}; schedulers must do the same on all ranks"
        )
