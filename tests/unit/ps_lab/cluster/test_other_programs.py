"""Time of the cores that none of a run's processes took."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ps_lab.cluster.other_programs import OtherPrograms


@dataclass
class Took:
    """A process that has taken so much by now."""

    seconds: float | None

    def used_s(self) -> float | None:
        return self.seconds


def test_what_processes_of_the_run_take_is_not_of_others() -> None:
    """Of those that ran before only what they took since."""
    machine, server, link = Took(100.0), Took(7.0), Took(2.0)
    others = OtherPrograms([server, link], machine.used_s)
    machine.seconds, server.seconds, link.seconds = 120.0, 12.0, 5.0
    assert others.used_s([Took(4.0), Took(None)]) == pytest.approx(120 - 100 - 5 - 3 - 4)


def test_it_is_never_less_than_nothing_and_not_known_where_the_system_does_not_say() -> None:
    machine = Took(100.0)
    others = OtherPrograms([], machine.used_s)
    assert others.used_s([Took(0.01)]) == 0.0, "the system counts in ticks"
    machine.seconds = None
    assert others.used_s([]) is None
    assert OtherPrograms([], machine.used_s).used_s([]) is None
