"""The header of a step in a group: what its ranks have to agree on before anything of the step leaves.

Each rank says whether it has a gradient, the weight of its pushes, a checksum of its hyper-parameters, and
whether it was asked to end; all hear the same in the same order, so all decide the same. A rank says nothing
of step v before it has the weights of version v. It must not know what the gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ps_worker.group.channel import Channel, Saying
from ps_worker.group.ending import Ending


class StepHeader:
    """The header of one table's newest step.

    Attributes:
        step: of which it is; -1: there was none.
        mine: this rank has a gradient in it.
        heard: all ranks have said theirs, and what follows is known.
        there: the ranks that have one.
        weight: of the pushes.
    """

    def __init__(self, channel: Channel, ending: Ending, table: int) -> None:
        """No step has begun.

        Args:
            channel: to the other ranks.
            ending: whether the group is to end after a step.
            table: its number, for people.
        """
        self.step = -1
        self.mine = False
        self.heard = True
        self.there: Sequence[int] = ()
        self.weight = 1.0
        self._channel = channel
        self._ending = ending
        self._table = table
        self._saying: Saying | None = None

    def say(self, step: int, *, there: bool, weight: float, hyper: int) -> bool:
        """Says what this rank has of a step, where it is a new one; waits for nobody.

        Args:
            step: the worker's clock.
            there: this rank has a gradient.
            weight: of its pushes.
            hyper: a checksum of the hyper-parameters.

        Returns:
            Whether it is a new step.

        Raises:
            GroupBroken: a rank has gone.
        """
        if step == self.step:
            return False
        mine = {"there": there, "weight": weight, "hyper": hyper, "ends": self._ending.asked()}
        self._saying = self._channel.say(self._name(step), mine, late=False)
        self.step, self.mine, self.heard = step, there, False
        return True

    def hear(self) -> None:
        """Waits until all ranks have said theirs.

        Raises:
            GroupBroken: a rank does something else, or has gone, or has other hyper-parameters.
        """
        assert self._saying is not None
        said = [one.fields for one in self._channel.hear_all(self._saying)]
        self.heard = True
        self.there = [rank for rank, one in enumerate(said) if one.get("there")]
        hypers = [said[rank].get("hyper") for rank in self.there]
        check_hyper(self._channel, hypers, self._name(self.step))
        weights = (float(said[rank]["weight"]) for rank in self.there)
        self.weight = next((weight for weight in weights if weight), 0.0)
        self._ending.heard(any(one.get("ends") for one in said))

    def _name(self, step: int) -> str:
        return f"step {step} of table {self._table}"


def check_hyper(channel: Channel, hypers: Sequence[int | None], where: str) -> None:
    """Ends the group where checksums of hyper-parameters differ; None: a rank took none.

    Raises:
        GroupBroken: they do.
    """
    if len(set(hypers) - {None}) > 1:
        raise channel.broken(
            f"param_groups differ between ranks at {where}; schedulers must do the same on all ranks"
        )
