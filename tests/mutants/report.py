"""Faults of what is recorded of a run, and of what a comparison says about it."""

from .mutant import Mutant

COLUMNS = "ps_worker/recording/columns.py"
COLUMNS_TESTS = "tests/unit/ps_worker/recording/test_columns.py"
COMPARE = "ps_lab/compare"
COMPARE_TESTS = "tests/unit/ps_lab/compare"

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
    Mutant(
        name="experiment: a longer budget makes another experiment",
        file=f"{COMPARE}/experiment.py",
        text='_UNFINGERPRINTED = {"description", "budget_s"}',
        fault='_UNFINGERPRINTED = {"description"}',
        tests=(f"{COMPARE_TESTS}/test_experiment.py::test_the_fingerprint_is_of_what_is_compared",),
    ),
    Mutant(
        name="plan: the same model begins with every seed",
        file=f"{COMPARE}/plan.py",
        text="        for index, seed in enumerate(experiment.seeds):\n            first = index % len(parties)\n",
        fault="        for index, seed in enumerate(experiment.seeds):\n            first = 0\n",
        tests=(f"{COMPARE_TESTS}/test_plan.py::test_who_begins_changes_from_seed_to_seed",),
    ),
    Mutant(
        name="folder: a run that has ended is begun again",
        file=f"{COMPARE}/folder.py",
        text="        if (self.path / RESULT).exists():\n            raise",
        fault="        if False:\n            raise",
        tests=(f"{COMPARE_TESTS}/test_folder.py::test_a_run_that_has_ended_is_not_repeated",),
    ),
    Mutant(
        name="folder: half a run leaves its records to the next attempt",
        file=f"{COMPARE}/folder.py",
        text="            shutil.rmtree(self.records)\n        self.records.mkdir(parents=True)",
        fault="            pass\n        self.records.mkdir(parents=True, exist_ok=True)",
        tests=(f"{COMPARE_TESTS}/test_folder.py::test_a_run_that_has_ended_is_not_repeated",),
    ),
    Mutant(
        name="folder: one of another experiment is taken",
        file=f"{COMPARE}/folder.py",
        text="if there.fingerprint() != experiment.fingerprint():",
        fault="if there.name != experiment.name and False:",
        tests=(f"{COMPARE_TESTS}/test_folder.py::test_a_folder_of_another_experiment_is_refused_by_name",),
    ),
)
