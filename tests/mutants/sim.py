"""Faults of the simulator, and of the stragglers that it shares with workers."""

from .mutant import Mutant

STRAGGLERS = "ps_wire/spec/stragglers.py"
OF_STRAGGLERS = ("tests/unit/ps_wire/spec/test_stragglers.py",)

MUTANTS = (
    Mutant(
        name="stragglers: all workers draw the same steps",
        file=STRAGGLERS,
        text="    return _mix(_mix(_mix(seed) + stream) + worker)\n",
        fault="    return _mix(_mix(_mix(seed) + stream) + 0 * worker)\n",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: two parts of a profile draw the same steps",
        file=STRAGGLERS,
        text="    return _mix(_mix(_mix(seed) + stream) + worker)\n",
        fault="    return _mix(_mix(_mix(seed) + 0 * stream) + worker)\n",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: an exponential step takes its share alone",
        file=STRAGGLERS,
        text="factor=1.0 - self.mean * math.log1p(",
        fault="factor=-self.mean * math.log1p(",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: a burst begins as often as steps are slow",
        file=STRAGGLERS,
        text="begins = ends * self.probability / (1.0 - self.probability)",
        fault="begins = ends * self.probability",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: a part is about all workers",
        file=STRAGGLERS,
        text="            if not part.workers or worker in part.workers\n",
        fault="",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: a number that is none passes",
        file=STRAGGLERS,
        text="    if not least <= value <= most:\n",
        fault="    if value < least or value > most:\n",
        tests=OF_STRAGGLERS,
    ),
)
