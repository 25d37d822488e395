"""Faults in the baselines of a comparison, in what simulations cost, and in what a report says of both."""

from .mutant import Mutant

OF_DDP = "tests/unit/ps_worker/group/test_ddp.py"
RUNNER = "ps_lab/compare/local_runner.py"
OF_THE_RUNNER = "tests/integration/test_compare.py"
OF_CORES = ("tests/unit/ps_lab/simulate/test_shared_cores.py",)

PLAYBACK = "ps_lab/top/playback.py"
OF_PLAYBACK = "tests/unit/ps_lab/top/test_playback.py"

MUTANTS = (
    Mutant(
        name="comparisons: one batch's loss ends a run",
        file="ps_lab/compare/local_runner.py",
        text="            if self._logged is not None:\n                return self._logged.met(value)\n",
        fault="",
        tests=("tests/unit/ps_lab/compare/test_local_runner.py",),
    ),
    Mutant(
        name="comparisons: a run ends by steps that are not in their order",
        file="ps_lab/compare/progress.py",
        text="        reached_unix_s = min(writing, default=math.inf)\n",
        fault="        reached_unix_s = math.inf\n",
        tests=(
            "tests/unit/ps_lab/compare/test_progress.py::test_where_a_run_ends_its_report_finds_the_target_reached",
        ),
    ),
    Mutant(
        name="comparisons: a worker that has ended keeps a run from ending at its target",
        file="ps_lab/compare/progress.py",
        text="if now_s - read_s < SILENT_S]",
        fault="]",
        tests=("tests/unit/ps_lab/compare/test_progress.py::test_who_writes_no_more_is_not_waited_for",),
    ),
    Mutant(
        name="comparisons: what is logged seldom never ends a run",
        file="ps_lab/compare/progress.py",
        text="        return seldom and logged_last is not None and self._target.met(logged_last)\n",
        fault="        return False\n",
        tests=(
            "tests/unit/ps_lab/compare/test_progress.py::test_what_is_logged_seldom_counts_as_it_was_logged_last",
        ),
    ),
    Mutant(
        name="comparisons: how sure a ranking is is said of another learning rate",
        file="ps_lab/compare/sentences.py",
        text='            pairs.append((mine, theirs, f"both at the common lr {mine.lr:g}", False))\n',
        fault='            pairs.append((mine, theirs, f"both at the common lr {mine.lr:g}", True))\n',
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_how_sure_a_ranking_is_says_nothing_of_another_learning_rate",
        ),
    ),
    Mutant(
        name="comparisons: an older folder is judged by its own target",
        file="ps_lab/compare/comparison.py",
        text="            experiment = replace(experiment, stop=stop)\n",
        fault="            pass\n",
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_an_older_folder_is_judged_by_the_target_of_the_report",
        ),
    ),
    Mutant(
        name="comparisons: where a step's time goes is of failed runs, too",
        file="ps_lab/compare/figures.py",
        text="runs = comparison.entries[model, profile, comparison.workers].best.good\n",
        fault="runs = comparison.entries[model, profile, comparison.workers].best.figures\n",
        tests=(
            "tests/unit/ps_lab/compare/test_figures.py::test_where_the_time_goes_is_not_of_runs_that_failed",
        ),
    ),
    Mutant(
        name="comparisons: a worker that came again is at its beginning until then",
        file="ps_lab/compare/figures.py",
        text="        there = (times >= recording.started_unix_s[0] - start) & (times < end[-1])\n",
        fault="        there = times < end[-1]\n",
        tests=(
            "tests/unit/ps_lab/compare/test_figures.py::test_a_worker_that_came_again_is_where_it_was_and_not_at_its_beginning",
        ),
    ),
    Mutant(
        name="comparisons: a record that was cut within a character is refused",
        file="ps_lab/compare/results.py",
        text="                    whole = False  # it may end within a character\n",
        fault='                    whole = line.decode() == ""\n',
        tests=(
            "tests/unit/ps_lab/compare/test_metrics.py::test_what_is_no_record_is_named_with_file_and_line",
        ),
    ),
    Mutant(
        name="comparisons: p99 of a model is the largest of its runs",
        file="ps_lab/compare/metrics.py",
        text="    return spread(joined([one.column(column) for one in runs]))\n",
        fault="    return max((it for one in runs if (it := spread(one.column(column)))), key=lambda it: it.p99, default=None)\n",
        tests=(
            "tests/unit/ps_lab/compare/test_metrics.py::test_a_tail_over_several_runs_is_of_all_their_pushes",
        ),
    ),
    Mutant(
        name="comparisons: what servers took in runs before is taken off from what others took",
        file="ps_lab/cluster/other_programs.py",
        text="(process.used_s() or 0.0) - before_s for",
        fault="(process.used_s() or 0.0) for",
        tests=("tests/unit/ps_lab/cluster/test_other_programs.py",),
    ),
    Mutant(
        name="comparisons: processes that a run has started are other programs",
        file="ps_lab/cluster/other_programs.py",
        text="        ours_s += sum(process.used_s() or 0.0 for process in started)\n",
        fault="",
        tests=("tests/unit/ps_lab/cluster/test_other_programs.py",),
    ),
    Mutant(
        name="compare: the time left grows while a run takes long",
        file="ps_lab/compare/comparing.py",
        text="    return mean_s * (runs - 1) + max(mean_s - going_s, 0.0)\n",
        fault="    return (mean_s + going_s) * runs\n",
        tests=("tests/unit/ps_lab/compare/test_comparing.py",),
    ),
    Mutant(
        name="compare: a run whose records found no room is taken for whole",
        file="ps_lab/compare/run_log.py",
        text="        if GAVE_UP in line:\n",
        fault="        if False:\n",
        tests=("tests/unit/ps_lab/compare/test_run_log.py",),
    ),
    Mutant(
        name="compare: a full disk ends the reader of a process, which then waits for it",
        file="ps_lab/compare/run_log.py",
        text="        except OSError as error:\n",
        fault="        except BlockingIOError as error:\n",
        tests=("tests/unit/ps_lab/compare/test_run_log.py",),
    ),
    Mutant(
        name="compare: a result that finds no room ends with a traceback",
        file="ps_lab/compare/folder.py",
        text="    with written(path):\n        try:\n",
        fault="    if True:\n        try:\n",
        tests=("tests/unit/ps_lab/compare/test_folder.py",),
    ),
    Mutant(
        name="report: a panel above others has no numbers at its axis",
        file="ps_lab/compare/figures.py",
        text="        panel.tick_params(labelbottom=True)\n",
        fault="        pass\n",
        tests=("tests/unit/ps_lab/compare/test_figures.py::test_every_panel_has_the_numbers_of_its_axis",),
    ),
    Mutant(
        name="report: a loss is drawn by samples that nobody has counted",
        file="ps_lab/compare/figures.py",
        text="        if any(one.samples for one in runs):\n",
        fault="        if True:\n",
        tests=("tests/unit/ps_lab/compare/test_report.py",),
    ),
    Mutant(
        name="report: it is not said that samples are not known",
        file="ps_lab/compare/limits.py",
        text="    if recorded and not any(one.samples for one in recorded):\n",
        fault="    if False:\n",
        tests=("tests/unit/ps_lab/compare/test_report.py",),
    ),
    Mutant(
        name="playback: steps count from their beginning",
        file=PLAYBACK,
        text="np.searchsorted(self.ended_s, unix_s",
        fault="np.searchsorted(self.started_s, unix_s",
        tests=(
            f"{OF_PLAYBACK}::test_at_each_moment_clocks_losses_and_staleness_are_those_of_steps_that_had_ended",
        ),
    ),
    Mutant(
        name="playback: who died is shown as one that has finished",
        file=PLAYBACK,
        text='return "lost" if comes_again else "finished"',
        fault='return "finished"',
        tests=(f"{OF_PLAYBACK}::test_a_worker_that_died_is_away_until_it_comes_again",),
    ),
    Mutant(
        name="playback: a run of a comparison has no events",
        file=PLAYBACK,
        text="events=() if outcome is None else _events(outcome)",
        fault="events=()",
        tests=(f"{OF_PLAYBACK}::test_a_run_of_a_comparison_has_its_faults_and_evaluations_as_events",),
    ),
    Mutant(
        name="ddp: gradients are summed and no mean is taken",
        file="ps_worker/group/ddp/replica.py",
        text=".div_(self._size)",
        fault="",
        tests=(
            f"{OF_THE_RUNNER}::test_the_baselines_run_the_same_script_and_ddp_has_the_same_losses_as_bsp",
        ),
    ),
    Mutant(
        name="ddp: a step of gradients that were not averaged is taken",
        file="ps_worker/group/ddp/ddp_worker.py",
        text="        if not self._replica.pop_buckets():\n",
        fault="        if self._replica.pop_buckets() < 0:\n",
        tests=(f"{OF_DDP}::test_what_a_baseline_does_not_have_is_refused_by_name",),
    ),
    Mutant(
        name="ddp: a reader gets weights of before its question",
        file="ps_worker/group/ddp/shown.py",
        text="            if question != self._question and not ended:\n",
        fault="            if False:\n",
        tests=(f"{OF_DDP}::test_a_question_is_answered_at_the_end_of_the_step_that_is_under_way",),
    ),
    Mutant(
        name="ddp: the model goes on through DDP behind finish()",
        file="ps_worker/group/ddp/replica.py",
        text="            del self._model.forward\n",
        fault="            pass\n",
        tests=(f"{OF_DDP}::test_the_model_computes_alone_again_when_its_worker_has_finished",),
    ),
    Mutant(
        name="ddp: the workers of a baseline are given the servers",
        file=RUNNER,
        text="            servers=None if self._serves else (ALONE,),\n",
        fault="",
        tests=(
            f"{OF_THE_RUNNER}::test_the_baselines_run_the_same_script_and_ddp_has_the_same_losses_as_bsp",
        ),
    ),
    Mutant(
        name="shared cores: two tasks on one core go as fast as alone",
        file="ps_lab/simulate/shared_cores.py",
        text="        while self._waiting and len(self._running) < self._cores:\n",
        fault="        while self._waiting:\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="shared cores: a task keeps its core until it ends",
        file="ps_lab/simulate/shared_cores.py",
        text="            task.slice_s = self._slice_s\n",
        fault="            task.slice_s = math.inf\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="shared cores: of cores that others use all is there",
        file="ps_lab/simulate/shared_cores.py",
        text="        self._speed = count / self._cores\n",
        fault="        self._speed = 1.0\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="shared cores: all of a server's time holds a push up",
        file="ps_lab/simulate/engine.py",
        text="        taken_s = self._costs.service_share * work_s * self._cores.slowness\n",
        fault="        taken_s = work_s * self._cores.slowness\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="shared cores: the share that holds a push up is not fitted",
        file="ps_lab/simulate/fit.py",
        text="    if _waited_s(runs, best) <= measured_s * (1.0 + TOLERANCE):\n",
        fault="    if True:\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="shared cores: servers take nothing of them",
        file="ps_lab/simulate/engine.py",
        text="        self._occupy(work_s)\n        return taken_s\n",
        fault="        return taken_s\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="shared cores: a straggler computes where a real one sleeps",
        file="ps_lab/simulate/engine.py",
        text="            slept_s = (slowness.factor - 1.0) * worker.measured_s\n",
        fault="            slept_s, compute_s = 0.0, compute_s * slowness.factor\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="fit: servers' steps are counted as pushes",
        file="ps_lab/simulate/fit.py",
        text="    if determinant > 1e-6 * pp * aa:\n",
        fault="    if False:\n",
        tests=OF_CORES,
    ),
    Mutant(
        name="fit: what the evaluation took is the servers'",
        file="ps_lab/simulate/measured.py",
        text=' if name.startswith("server"))',
        fault=")",
        tests=("tests/unit/ps_lab/simulate/test_simulate_cli.py",),
    ),
    Mutant(
        name="figures: the tail of tau is cut off",
        file="ps_lab/compare/figures.py",
        text="set_ylim(50 * least, 200)",
        fault="set_ylim(8, 200)",
        tests=("tests/unit/ps_lab/compare/test_figures.py",),
    ),
    Mutant(
        name="report: what was not measured is said to hold",
        file="ps_lab/compare/tables.py",
        text='None, None, None, None, None, "extrapolation")',
        fault='None, None, None, None, None, "holds")',
        tests=("tests/unit/ps_lab/compare/test_validation.py",),
    ),
    Mutant(
        name="recorder: a step has the processor time of all before it",
        file="ps_worker/recording/recorder.py",
        text="        self._used_s = step.used_s\n",
        fault="",
        tests=("tests/unit/ps_worker/recording/test_recorder.py",),
    ),
    Mutant(
        name="stragglers: a factor does nothing to tables",
        file="ps_worker/steps.py",
        text="            self._straggling.resumed(self.step, self._idle_s)\n",
        fault="            pass\n",
        tests=("tests/component/training/test_record.py",),
    ),
    Mutant(
        name="metrics: a split without waits at the gate is no number",
        file="ps_lab/compare/metrics.py",
        text="np.nansum(",
        fault="np.sum(",
        tests=("tests/unit/ps_lab/compare/test_metrics.py",),
    ),
    Mutant(
        name="report: a look before the first step reaches the target",
        file="ps_lab/compare/metrics.py",
        text="if at > 0.0 and self.target.met(value)",
        fault="if self.target.met(value)",
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_a_target_that_is_met_before_the_first_step_is_none",
        ),
    ),
    Mutant(
        name="report: an evaluation that is no number is passed over",
        file="ps_lab/compare/metrics.py",
        text="*(value for _, value in self.evaluated[-1:])",
        fault="",
        tests=("tests/unit/ps_lab/compare/test_metrics.py",),
    ),
    Mutant(
        name="report: a curve counts samples that were dropped",
        file="ps_lab/compare/metrics.py",
        text="np.cumsum(self._samples_by_step)",
        fault='np.cumsum(self.column("samples"))',
        tests=("tests/unit/ps_lab/compare/test_metrics.py",),
    ),
    Mutant(
        name="report: more seeds make a better rate",
        file="ps_lab/compare/comparison.py",
        text="for seed, value in arm.target_s.items() if seed in seeds",
        fault="for seed, value in arm.target_s.items()",
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_a_rate_that_was_tried_with_more_seeds_is_no_better_for_it",
        ),
    ),
    Mutant(
        name="report: seeds that have not been run are counted",
        file="ps_lab/compare/limits.py",
        text="len({one.data.run.seed for one in comparison.figures} or planned)",
        fault="len(planned)",
        tests=("tests/unit/ps_lab/compare/test_sentences.py::test_what_a_budget_left_out_is_said",),
    ),
    Mutant(
        name="report: an evaluation that failed is not said",
        file="ps_lab/compare/limits.py",
        text="        not any(metric in point.values",
        fault="        any(metric in point.values",
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_an_evaluation_that_says_nothing_of_the_metric_is_said",
        ),
    ),
    Mutant(
        name="report: a target that was met at the start is one",
        file="ps_lab/compare/limits.py",
        text="any(at <= 0.0 and",
        fault="any(at < -1e9 and",
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_a_target_that_is_met_before_the_first_step_is_none",
        ),
    ),
    Mutant(
        name="report: failed runs are in a worker's time",
        file="ps_lab/compare/tables.py",
        text="mine = [one for one in entry.best.good if",
        fault="mine = [one for one in entry.best.figures if",
        tests=(
            "tests/unit/ps_lab/compare/test_sentences.py::test_runs_that_failed_are_in_no_mean_of_a_workers_time",
        ),
    ),
    Mutant(
        name="folder: half a file of a killed start is a stranger",
        file="ps_lab/compare/folder.py",
        text='left = ("lock", f".{EXPERIMENT}.")',
        fault='left = ("lock",)',
        tests=("tests/unit/ps_lab/compare/test_folder.py",),
    ),
    Mutant(
        name="compare: runs are measured beside simulated ones",
        file="ps_lab/compare/comparing.py",
        text="    folder.check_kind(simulated=False)\n",
        fault="",
        tests=("tests/unit/ps_lab/compare/test_folder.py",),
    ),
    Mutant(
        name="simulate: runs are simulated beside measured ones",
        file="ps_lab/simulate/experiment_runs.py",
        text="    folder.check_kind(simulated=True)\n",
        fault="",
        tests=("tests/unit/ps_lab/simulate/test_simulate_cli.py",),
    ),
    Mutant(
        name="closed forms: all are slow where nobody is",
        file="ps_lab/simulate/closed_forms.py",
        text="named = straggler.workers or range(num_workers)",
        fault="named = [it for it in straggler.workers if it < num_workers] or range(num_workers)",
        tests=("tests/unit/ps_lab/simulate/test_closed_forms.py",),
    ),
)
