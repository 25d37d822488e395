"""When a round of a script over its tables begins, and where it is held for who joins."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from ps_worker.membership.round_barrier import OUT_OF_USE, RoundBarrier
from tests.until import LIMIT_S


class Script:
    """Steps tables by number; `said` is what the coordinator hears."""

    def __init__(self, *tables: int) -> None:
        self.clocks = Counter(dict.fromkeys(tables, 0))
        self.rounds = RoundBarrier(lambda: dict(self.clocks))
        self.said: list[dict[int, int]] = []
        self.lets_go = False

    def hears(self, _number: int, steps: Mapping[int, int]) -> None:
        self.said.append(dict(steps))
        if self.lets_go:
            self.rounds.let_go(1)

    def step(self, *tables: int) -> None:
        for table in tables:
            self.rounds.begin(table)
            self.clocks[table] += 1

    def begun(self) -> dict[int, int]:
        """Where the last round began."""
        steps = dict(self.rounds.ask(1, self.hears))
        self.rounds.let_go()
        return steps


def test_a_round_begins_with_its_first_table_when_all_others_had_their_turn():
    script = Script(0, 1)
    script.step(0, 0, 0, 1, 0, 0)
    assert script.begun() == {0: 3, 1: 1}
    script.step(0, 1)
    assert script.begun() == {0: 3, 1: 1}


def test_a_script_that_has_stepped_nothing_is_in_no_round():
    script = Script(0, 1)
    assert script.begun() == {}
    assert script.rounds.ask(7, script.hears) == {}
    script.rounds.hold(7, {})
    assert script.said == [{0: 0, 1: 0}]


def test_a_table_that_is_stepped_no_more_belongs_to_no_round():
    script = Script(0, 1)
    script.step(0, *[1] * OUT_OF_USE)
    assert script.begun() == {0: 0, 1: 0}
    for more in range(3):
        script.step(1)
        assert script.begun() == {0: 1, 1: OUT_OF_USE + more}


def test_who_is_behind_goes_on_to_the_end_of_the_round_of_who_is_ahead():
    script = Script(0, 1)
    script.step(0, 1)
    script.rounds.ask(1, script.hears)
    script.rounds.hold(1, {0: 1, 1: 1})
    script.step(0, 1)
    assert script.said == []
    held = threading.Thread(target=script.step, args=(0, 1))
    script.lets_go = True
    held.start()
    held.join(LIMIT_S)
    assert not held.is_alive()
    assert script.said == [{0: 2, 1: 2}]


def test_a_script_that_does_something_else_between_two_rounds_is_held_at_once():
    """As in a validation pass: the last two rounds were alike, and all of it has been done."""
    script = Script(0, 1)
    script.step(0, 1, 0, 1)
    script.rounds.ask(1, script.hears)
    script.rounds.hold(1, {0: 1, 1: 1})
    assert script.said == [{0: 2, 1: 2}]


def test_the_first_round_is_over_when_each_table_had_a_step():
    """Else the batch behind the first step of all would count for who was evicted, and be dealt again."""
    script = Script(0, 1)
    assert script.rounds.stepped == set()
    script.step(0)
    assert script.rounds.stepped == {0}
    script.step(1)
    assert script.rounds.stepped == set()


def test_what_belongs_to_a_round_is_still_known_when_the_worker_has_joined_again():
    script = Script(0, 1)
    script.step(0, 1, 1)
    script.step(0, 1, 1)
    for _ in range(2):
        script.rounds.begin_anew()
        assert script.rounds.stepped == set()
        script.step(0, 1)
        assert script.rounds.stepped == {0, 1}
        script.step(1)
        assert script.rounds.stepped == set()
