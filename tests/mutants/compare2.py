"""Faults in how runs of a comparison are done and shown, and in what follows a worker's failure."""

from .mutant import Mutant

LAUNCH = "ps_lab/cluster/launch.py"
OF_LAUNCH = "tests/integration/test_launch.py"
RUNNER = "ps_lab/compare/local_runner.py"
OF_THE_RUNNER = "tests/integration/test_compare.py"
WHOLE = f"{OF_THE_RUNNER}::test_records_an_evaluation_and_a_worker_that_is_killed_and_comes_again"
OF_SENTENCES = ("tests/unit/ps_lab/compare/test_sentences.py",)
OF_EXPERIMENTS = ("tests/unit/ps_lab/experiments/test_experiment.py",)

LINKS = "ps_lab/compare/host_links.py"
OF_CHECKS = "tests/unit/ps_lab/compare/test_local_runner.py"
IS_SLOWER = (f"{OF_CHECKS}::test_a_slow_link_is_that_of_its_host_made_slower_and_others_are_as_ever",)
SKEW = "ps_worker/data/label_skew.py"
OF_SKEW = "tests/unit/ps_worker/data/test_label_skew.py"

MUTANTS = (
    Mutant(
        name="compare: workers of a host reach the servers past its link",
        file="ps_lab/cluster/cluster.py",
        text="        servers = job.reached_by.get(number, job.servers or self.addresses)\n",
        fault="        servers = job.servers or self.addresses\n",
        tests=(WHOLE,),
    ),
    Mutant(
        name="compare: data of a host's workers goes over shared memory",
        file="ps_lab/cluster/cluster.py",
        text="number in job.reached_by and job.carrier in SHORTCUTS",
        fault="number in job.reached_by and job.carrier is None",
        tests=(WHOLE,),
    ),
    Mutant(
        name="compare: a slow link has the bandwidth of any other",
        file=LINKS,
        text="host.megabits_per_s * BYTES_PER_MEGABIT / factor",
        fault="host.megabits_per_s * BYTES_PER_MEGABIT",
        tests=IS_SLOWER,
    ),
    Mutant(
        name="compare: a slow link makes those who share it slow, too",
        file=LINKS,
        text="not slow.issuperset(host.workers)",
        fault="False",
        tests=(f"{OF_CHECKS}::test_what_cannot_be_run_is_refused_by_its_key",),
    ),
    Mutant(
        name="compare: a group of a run is one process",
        file=RUNNER,
        text="        ranks = run.group_size if self._serves",
        fault="        ranks = 1 if self._serves",
        tests=(f"{OF_THE_RUNNER}::test_a_group_of_ranks_is_one_worker_of_a_run",),
    ),
    Mutant(
        name="skew: all workers have one mix",
        file=SKEW,
        text="default_rng([seed, worker])",
        fault="default_rng([seed])",
        tests=(f"{OF_SKEW}::test_shares_are_those_drawn_and_a_pure_function_of_seed_and_worker",),
    ),
    Mutant(
        name="skew: alpha is that of each class",
        file=SKEW,
        text="alpha * counts / size",
        fault="alpha * counts / counts.mean()",
        tests=(f"{OF_SKEW}::test_shares_vary_as_the_dirichlet_distribution_says",),
    ),
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
        name="report: a run that diverged is in the mean of speeds, though the report says that it is not",
        file="ps_lab/compare/comparison.py",
        text="one.data.failed or one.diverged else one.samples_per_s",
        fault="one.data.failed else one.samples_per_s",
        tests=OF_SENTENCES,
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
        text='            with half.open("w", encoding="utf-8") as file:\n',
        fault='            half.touch(0o600)\n            with half.open("w", encoding="utf-8") as file:\n',
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
        text='numbers("samples") * shares.get(one.header.worker, 1.0)',
        fault='numbers("samples")',
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
