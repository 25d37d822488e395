"""Faults of what is recorded of a run, and of what a comparison says about it."""

from .mutant import Mutant

COLUMNS = "ps_worker/recording/columns.py"
COLUMNS_TESTS = "tests/unit/ps_worker/recording/test_columns.py"

MUTANTS = (
    Mutant(
        name="columns: a loss that is no number is written as JSON that nobody else reads",
        file=COLUMNS,
        text="return value if math.isfinite(value) else str(float(value))",
        fault="return value",
        tests=(f"{COLUMNS_TESTS}::test_a_loss_that_is_no_number_is_kept",),
    ),
    Mutant(
        name="columns: an unknown column is left out in silence",
        file=COLUMNS,
        text="unknown = sorted(values.keys() - types.keys())",
        fault="unknown: list[str] = []",
        tests=(f"{COLUMNS_TESTS}::test_a_line_that_is_no_record_is_refused_by_name",),
    ),
    Mutant(
        name="columns: tau need not be what the versions say",
        file=COLUMNS,
        text="or self.tau != self.version_applied - self.version_read",
        fault="or self.tau is None",
        tests=(f"{COLUMNS_TESTS}::test_a_value_that_makes_no_sense_names_its_column",),
    ),
)
