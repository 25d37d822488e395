"""What a worker that joins again is rid of: the promise and the round of the incarnation before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ps_wire.errors import Evicted, PsError
from ps_worker.exchange.exchanges import Exchanges
from ps_worker.job.rejoiner import Rejoiner
from ps_worker.job.resumption import Found
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise

CLOCKS = {0: 3, 1: 3}


def evicted_in_a_round_that_is_promised() -> tuple[Rejoiner, SnapshotPromise, RoundBarrier]:
    """A snapshot has asked before which step it may come, and one of two tables has been stepped since."""
    promise, rounds = SnapshotPromise(lambda: CLOCKS, bytes), RoundBarrier(lambda: CLOCKS)
    assert promise.prepare(1, lambda *_: None) == CLOCKS
    rounds.begin(0)
    rounds.ask(7, lambda *_: None)
    joined = SimpleNamespace(incarnation=2, num_tables=2, rolled_back=False)
    exchanges = Exchanges(lambda _: None)
    presence: Any = SimpleNamespace(
        abandon=lambda: None,
        enter=lambda: None,
        connect=lambda: None,
        failure=None,
        connections=[],
        joined=joined,
        exchanges=exchanges,
    )
    start: Any = SimpleNamespace(check=lambda _: None, enter_again=lambda: {0: 9, 1: 9})
    resumption: Any = SimpleNamespace(
        find=lambda: Found(state={}, clocks={}, saved=False), go_on=lambda _: None
    )
    listener: Any = SimpleNamespace(say=lambda _: None, reentered=lambda _: None)
    rejoiner = Rejoiner(presence, start, resumption, listener, promise=promise, rounds=rounds)
    exchanges.fail(Evicted("silent for too long"))
    return rejoiner, promise, rounds


def test_who_joins_again_has_promised_nothing():
    """The next step begins at once, where it would wait for a cut that knows nothing of this incarnation."""
    rejoiner, promise, _ = evicted_in_a_round_that_is_promised()
    assert promise._number == 1
    rejoiner.rejoin()
    assert promise._number is None


def test_who_joins_again_is_in_no_round():
    """It entered all tables between two rounds of the others, and says so when it is asked."""
    rejoiner, _, rounds = evicted_in_a_round_that_is_promised()
    assert rounds.stepped == {0}
    rejoiner.rejoin()
    assert rounds.stepped == frozenset()
    assert rounds.ask(8, lambda *_: None) == {}


def test_who_is_evicted_again_before_it_has_its_tables_back_joins_again():
    """The new eviction comes before they begin anew, which forgets all that has failed."""
    rejoiner, _, _ = evicted_in_a_round_that_is_promised()
    presence: Any = rejoiner._presence
    entered = []

    def enter() -> None:
        entered.append(presence.exchanges.failure)
        presence.failure = Evicted("silent again") if len(entered) == 1 else None
        if presence.failure is not None:
            presence.exchanges.fail(presence.failure)

    presence.enter = enter
    rejoiner.rejoin()
    assert [str(error) for error in entered] == ["silent for too long", "silent again"]
    assert presence.exchanges.failure is None


def test_a_failure_that_is_no_eviction_is_left_to_who_meets_it():
    rejoiner, promise, _ = evicted_in_a_round_that_is_promised()
    rejoiner._presence.exchanges.reenter(1)
    rejoiner._presence.exchanges.fail(PsError("the job has ended"))
    rejoiner.rejoin()
    assert promise._number == 1
