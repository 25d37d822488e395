"""Faults in how runs of a comparison are done and shown, and in what follows a worker's failure."""

from .mutant import Mutant

LAUNCH = "ps_lab/cluster/launch.py"
OF_LAUNCH = "tests/integration/test_launch.py"
RUNNER = "ps_lab/compare/local_runner.py"
OF_THE_RUNNER = "tests/integration/test_compare.py"
WHOLE = f"{OF_THE_RUNNER}::test_records_an_evaluation_and_a_worker_that_is_killed_and_comes_again"
OF_SENTENCES = ("tests/unit/ps_lab/compare/test_sentences.py",)
OF_EXPERIMENTS = ("tests/unit/ps_lab/experiments/test_experiment.py",)

MUTANTS = (
    Mutant(
        name="launch: where the others go on nobody hears who failed",
        file=LAUNCH,
        text="            first = first or failed\n",
        fault="",
        tests=(
            f"{OF_LAUNCH}::test_the_others_go_on_where_they_are_to_and_the_exit_code_is_that_of_who_failed",
        ),
    ),
    Mutant(
        name="launch: who was refused starts again",
        file=LAUNCH,
        text="child.exit_code in HOPELESS or ",
        fault="",
        tests=(f"{OF_LAUNCH}::test_what_does_not_help_is_not_done_for_ever",),
    ),
    Mutant(
        name="launch: a worker starts again for ever",
        file=LAUNCH,
        text=" or team.starts_again[number] == MAX_RESTARTS:",
        fault=":",
        tests=(f"{OF_LAUNCH}::test_what_does_not_help_is_not_done_for_ever",),
    ),
    Mutant(
        name="compare: who is killed by its profile does not come again",
        file=RUNNER,
        text="                team.again(number, crash.restart_s)\n",
        fault="                pass\n",
        tests=(WHOLE,),
    ),
    Mutant(
        name="compare: what an evaluation says beside its looks is lost",
        file=RUNNER,
        text="            self._on_line(name, line)\n",
        fault="",
        tests=(WHOLE,),
    ),
    Mutant(
        name="compare: processor time is of workers alone",
        file=RUNNER,
        text="        found[server.name] += (server.used_s() or 0.0) - (before_s or 0.0)\n",
        fault="        found[server.name] += 0.0\n",
        tests=(WHOLE,),
    ),
    Mutant(
        name="experiment: a profile names a worker that is not there",
        file="ps_lab/experiments/profiles.py",
        text="    if largest >= num_workers:\n",
        fault="    if largest > num_workers:\n",
        tests=OF_EXPERIMENTS,
    ),
    Mutant(
        name="experiment: stragglers have a seed beside that of the run",
        file="ps_lab/experiments/profiles.py",
        text="    if found.seed:\n",
        fault="    if False:\n",
        tests=OF_EXPERIMENTS,
    ),
    Mutant(
        name="experiment: the script does not get the arguments of a profile",
        file="ps_lab/experiments/plan.py",
        text=", *profile.arguments]",
        fault="]",
        tests=("tests/unit/ps_lab/experiments/test_plan.py",),
    ),
    Mutant(
        name="report: seeds that differ are said to agree",
        file="ps_lab/compare/sentences.py",
        text="        return self.effect.low > none or self.effect.high < none\n",
        fault="        return self.effect.value != none\n",
        tests=OF_SENTENCES,
    ),
    Mutant(
        name="report: who missed the target in some seeds is ranked by the others",
        file="ps_lab/compare/sentences.py",
        text="    whole = [arm for arm in arms if arm.target_s and len(arm.target_s) == len(arm.seeds)]\n",
        fault="    whole = [arm for arm in arms if arm.target_s]\n",
        tests=OF_SENTENCES,
    ),
    Mutant(
        name="report: a simulation does not say that it is one",
        file="ps_lab/compare/limits.py",
        text="    _simulated,\n",
        fault="",
        tests=OF_SENTENCES,
    ),
    Mutant(
        name="folder: only who made a report may read it",
        file="ps_lab/compare/folder.py",
        text='        with half.open("w", encoding="utf-8") as file:\n',
        fault='        half.touch(0o600)\n        with half.open("w", encoding="utf-8") as file:\n',
        tests=("tests/unit/ps_lab/compare/test_folder.py",),
    ),
    Mutant(
        name="fork server: a script does not find what lies beside it",
        file="ps_lab/cluster/fork_server.py",
        text='Path(command).parent if command.endswith(".py") else ',
        fault="",
        tests=("tests/unit/ps_lab/cluster/test_fork_server.py",),
    ),
    Mutant(
        name="metrics: under backup workers nothing is an update",
        file="ps_lab/compare/metrics.py",
        text=" | ~refused, dtype",
        fault=", dtype",
        tests=("tests/unit/ps_lab/compare/test_metrics.py",),
    ),
    Mutant(
        name="metrics: samples of pushes that were dropped were trained on",
        file="ps_lab/compare/metrics.py",
        text="count.applied / count.received if count.received else 1.0",
        fault="1.0",
        tests=("tests/unit/ps_lab/compare/test_metrics.py",),
    ),
    Mutant(
        name="statistics: an interval does not know how many pairs it is of",
        file="ps_lab/compare/statistics.py",
        text="for value in values) / (count - 1) / count)",
        fault="for value in values) / (count - 1) / count / 100)",
        tests=("tests/unit/ps_lab/compare/test_the_instrument.py",),
    ),
    Mutant(
        name="demo: a model that stays below the target passes",
        file="ps_lab/demo.py",
        text="        if not target.met(mean):\n",
        fault="        if mean < 0:\n",
        tests=("tests/unit/ps_lab/test_demo.py",),
    ),
)
