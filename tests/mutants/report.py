"""Faults of what is recorded of a run, and of what a comparison says about it."""

from .mutant import Mutant

COLUMNS = "ps_worker/recording/columns.py"
COLUMNS_TESTS = "tests/unit/ps_worker/recording/test_columns.py"
COMPARE = "ps_lab/compare"
COMPARE_TESTS = "tests/unit/ps_lab/compare"
EXPERIMENT_TESTS = "tests/unit/ps_lab/experiments"

MUTANTS = (
    Mutant(
        name="report: where a run ends the mean of the losses is that of the others",
        file="ps_lab/compare/figures.py",
        text="        rows = np.array([_held(_binned(along(curve), curve.values, edges)) for curve in good])\n        known = np.isfinite(rows).all(axis=0)\n",
        fault="        rows = np.array([_binned(along(curve), curve.values, edges) for curve in good])\n        known = np.isfinite(rows).any(axis=0)\n        rows = np.nan_to_num(rows, nan=np.nanmean(rows[:, known]))\n",
        tests=(
            (
                "tests/unit/ps_lab/compare/test_figures.py"
                "::test_a_mean_of_runs_does_not_change_when_one_of_them_ends"
            ),
        ),
    ),
    Mutant(
        name="report: how sure it is goes by the seeds that were planned",
        file="ps_lab/compare/sentences.py",
        text="    seeds = max(one.effect.pairs for one in mine if one.effect is not None)  # that there are by now\n",
        fault="    seeds = 5\n",
        tests=("tests/unit/ps_lab/compare/test_sentences.py::test_what_a_budget_left_out_is_said",),
    ),
    Mutant(
        name="report: lanes show a part of the run in which most workers have ended",
        file="ps_lab/compare/figures.py",
        text="    from_s = _amidst(one)\n",
        fault="    from_s = 0.4 * (one.wall_s or 0.0)\n",
        tests=(
            (
                "tests/unit/ps_lab/compare/test_figures.py"
                "::test_lanes_show_a_part_of_the_run_in_which_all_workers_step"
            ),
        ),
    ),
    Mutant(
        name="report: on the terminal a run that failed counts as any other",
        file="ps_lab/compare/scores.py",
        text='((failed, "failed"), (diverged, "diverged")) if count]',
        fault='((failed, "failed"), (diverged, "diverged")) if not count]',
        tests=(
            "tests/unit/ps_lab/compare/test_scores.py::test_runs_that_failed_or_have_not_ended_leave_cells_empty",
        ),
    ),
    Mutant(
        name="report: nothing is said in short where nothing can be ranked",
        file="ps_lab/compare/sentences.py",
        text='                said.append(f"{where}: there is no run whose speed or result could be ranked.")\n',
        fault="                pass\n",
        tests=(
            (
                "tests/unit/ps_lab/compare/test_sentences.py"
                "::test_where_nothing_can_be_ranked_that_is_what_is_said_in_short"
            ),
        ),
    ),
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
        file="ps_lab/experiments/experiment.py",
        text='_UNFINGERPRINTED = {"description", "budget_s"}',
        fault='_UNFINGERPRINTED = {"description"}',
        tests=(f"{EXPERIMENT_TESTS}/test_experiment.py::test_the_fingerprint_is_of_what_is_compared",),
    ),
    Mutant(
        name="plan: the same model begins with every seed",
        file="ps_lab/experiments/plan.py",
        text="        for index, seed in enumerate(experiment.seeds):\n            first = index % len(parties)\n",
        fault="        for index, seed in enumerate(experiment.seeds):\n            first = 0\n",
        tests=(f"{EXPERIMENT_TESTS}/test_plan.py::test_who_begins_changes_from_seed_to_seed",),
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
        text="                shutil.rmtree(self.records)\n            self.records.mkdir(parents=True)",
        fault="                pass\n            self.records.mkdir(parents=True, exist_ok=True)",
        tests=(f"{COMPARE_TESTS}/test_folder.py::test_a_run_that_has_ended_is_not_repeated",),
    ),
    Mutant(
        name="folder: one of another experiment is taken",
        file=f"{COMPARE}/folder.py",
        text="if there.fingerprint() != experiment.fingerprint():",
        fault="if there.name != experiment.name and False:",
        tests=(f"{COMPARE_TESTS}/test_folder.py::test_a_folder_of_another_experiment_is_refused_by_name",),
    ),
    Mutant(
        name="metrics: a run that diverged can reach its target",
        file=f"{COMPARE}/metrics.py",
        text="if self.target is None or self.diverged:",
        fault="if self.target is None:",
        tests=(f"{COMPARE_TESTS}/test_metrics.py::test_a_run_that_diverges_reaches_nothing_and_says_when",),
    ),
    Mutant(
        name="metrics: a push that was applied nowhere is an update",
        file=f"{COMPARE}/metrics.py",
        text='np.isfinite(recording.numbers("tau"))',
        fault='np.isfinite(recording.numbers("clock"))',
        tests=(f"{COMPARE_TESTS}/test_metrics.py::test_a_push_that_was_applied_nowhere_is_no_update",),
    ),
    Mutant(
        name="statistics: Holm's correction forgets the larger p-values before",
        file=f"{COMPARE}/statistics.py",
        text="largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))",
        fault="largest = min(1.0, (len(p_values) - rank) * p_values[index])",
        tests=(f"{COMPARE_TESTS}/test_statistics.py::test_holm_is_his",),
    ),
    Mutant(
        name="statistics: two pairs are a test",
        file=f"{COMPARE}/statistics.py",
        text="LEAST_PAIRS = 5",
        fault="LEAST_PAIRS = 2",
        tests=(f"{COMPARE_TESTS}/test_statistics.py::test_fewer_than_five_pairs_are_no_test",),
    ),
    Mutant(
        name="laws: the bound on tau is one too large",
        file="ps_wire/spec/staleness.py",
        text="return (2 * staleness + 1) * (num_workers - 1)",
        fault="return (2 * staleness + 1) * num_workers",
        tests=(f"{COMPARE_TESTS}/test_laws.py::test_law_6_sees_a_tau_above_its_bound",),
    ),
    Mutant(
        name="laws: who computed too early is not looked for",
        file=f"{COMPARE}/laws.py",
        text="                if late_s > CLOCKS_DIFFER_S:",
        fault="                if late_s > 1e9:",
        tests=(f"{COMPARE_TESTS}/test_laws.py::test_law_5_sees_who_computed_too_early",),
    ),
    Mutant(
        name="sentences: a ratio of times is of those seeds that reached the target",
        file=f"{COMPARE}/sentences.py",
        text="pairs = [] if note else _pairs(mine.target_s, theirs.target_s)",
        fault="pairs = _pairs(mine.target_s, theirs.target_s)",
        tests=(
            f"{COMPARE_TESTS}/test_sentences.py::test_where_one_seed_missed_the_target_there_is_no_ratio_of_the_others",
        ),
    ),
    Mutant(
        name="report: what comes from an experiment is not escaped",
        file=f"{COMPARE}/report.py",
        text='yield f"<p>{escape(experiment.description)}</p>"',
        fault='yield f"<p>{experiment.description}</p>"',
        tests=(f"{COMPARE_TESTS}/test_report.py::test_what_comes_from_a_file_is_escaped",),
    ),
)
