"""Faults of when pulls are answered."""

from .mutant import Mutant

GATE = "ps_server/gate.py"

MUTANTS = (
    Mutant(
        name="gate: the gap may be one larger than the staleness",
        file=GATE,
        text="return min(clocks) >= clock - self.staleness",
        fault="return min(clocks) >= clock - self.staleness - 1",
        tests=("tests/unit/ps_server/test_gate.py",),
    ),
    Mutant(
        name="gate: waits for the fastest member",
        file=GATE,
        text="return min(clocks) >= clock - self.staleness",
        fault="return max(clocks) >= clock - self.staleness",
        tests=("tests/integration/test_laws.py::test_law_4_a_reader_misses_no_update_that_is_old_enough",),
    ),
    Mutant(
        name="gate: bsp answers with the version before",
        file=GATE,
        text="return version >= clock\n",
        fault="return version + 1 >= clock\n",
        tests=("tests/faults/test_retries.py::test_law_13_resets_while_pushes_are_under_way",),
    ),
    Mutant(
        name="kernels.c: Adam adds nothing of the weights to the gradient",
        file="ps_wire/kernels.c",
        text="            g = _mm256_fmadd_ps(w, l2s, g);",
        fault="            g = _mm256_fmadd_ps(w, l2s, w);",
        tests=("tests/unit/ps_server/test_adam.py",),
    ),
)
