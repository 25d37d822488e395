"""Faults of the parts of a worker that talk: an incarnation's end, what is under way in a table."""

from tests.mutants.mutant import Mutant

IN_FLIGHT = "ps_worker/exchange/in_flight.py"
INCARNATION = "tests/unit/ps_worker/membership/test_incarnation.py"
MONITOR = "tests/unit/ps_worker/exchange/test_in_flight.py"

MUTANTS = (
    Mutant(
        name="incarnation: a failure that is being handed on reaches the next one",
        file="ps_worker/membership/incarnation.py",
        text="        if self._failing.acquire(timeout=RECEIVED_LIMIT_S):\n            self._failing.release()\n",
        fault="",
        tests=(f"{INCARNATION}::test_a_failure_that_is_being_handed_on_is_waited_for",),
    ),
    Mutant(
        name="in flight: weights are told of before they are shown",
        file=IN_FLIGHT,
        text="                self._show(frame.version)\n",
        fault="",
        tests=(MONITOR,),
    ),
    Mutant(
        name="in flight: who was told of a failure is told again",
        file=IN_FLIGHT,
        text="            self._when_acked.clear()\n            self._when_pulled.clear()\n        for",
        fault="        for",
        tests=(MONITOR,),
    ),
)
