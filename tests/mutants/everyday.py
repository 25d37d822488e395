"""Faults of what a newcomer meets: what goes wrong without a word, and words where nothing is wrong."""

from .mutant import Mutant

SHARE = "tests/unit/ps_worker/data/test_index_share.py"
SETTINGS = "tests/component/connections/test_settings.py"
UNTRAINED = "tests/component/members/test_untrained.py"
ORDERS = "tests/unit/ps_server/coordinator/fleet/test_fleet.py"
FOLLOWER = "tests/unit/ps_server/shard/test_follower.py"
AGREED = "tests/unit/ps_server/coordinator/epochs/test_agreed.py"
DATA = "tests/component/data/test_data_facts.py"
FRAMEWORKS = "tests/integration/test_frameworks.py"

MUTANTS = (
    Mutant(
        name="who deals its data is told that nobody does",
        file="ps_worker/steps.py",
        text="self.optimizers and not self.data.has_loaders:\n            self.say(",
        fault="self.optimizers:\n            self.say(",
        tests=(UNTRAINED,),
    ),
    Mutant(
        name="nobody is told that its data is not dealt",
        file="ps_worker/steps.py",
        text="            self._say_undealt()\n",
        fault="",
        tests=(UNTRAINED,),
    ),
    Mutant(
        name="loops of other lengths are not said",
        file="ps_server/coordinator/service.py",
        text="            runner.do(runner.job.tell_here(differs))\n        if runner.job.loops.begin(request.epoch):",
        fault="            pass\n        if runner.job.loops.begin(request.epoch):",
        tests=("tests/component/data/test_data_facts.py",),
    ),
    Mutant(
        name="a worker says of each loop that it is the first",
        file="ps_worker/data/script_data.py",
        text="self._listener.begin_epoch(epoch, loop=loop, stop=stop)",
        fault="self._listener.begin_epoch(epoch, loop=0, stop=stop)",
        tests=("tests/component/data/test_data_facts.py",),
    ),
    Mutant(
        name="a loop's other length is said for each worker again",
        file="ps_server/coordinator/epochs/agreed.py",
        text="        self._loops_warned.add(loop)\n",
        fault="",
        tests=("tests/unit/ps_server/coordinator/epochs/test_agreed.py",),
    ),
    Mutant(
        name="everyday: a coordinator that stops warns of a shard that stops, too",
        file="ps_server/coordinator/fleet/fleet.py",
        text="        if not self._closed and shard not in self._registered:\n",
        fault="        if shard not in self._registered:\n",
        tests=(f"{ORDERS}::test_a_shard_that_is_gone_is_said_to_be_unless_all_servers_stop",),
    ),
    Mutant(
        name="everyday: a shard that starts first warns of a coordinator that is not there yet",
        file="ps_server/shard/follower.py",
        text="logging.WARNING if self.coordinator else logging.INFO",
        fault="logging.WARNING",
        tests=(
            f"{FOLLOWER}::test_a_start_and_an_end_that_go_well_have_no_warning_of_a_coordinator_that_is_gone",
        ),
    ),
    Mutant(
        name="everyday: the example under the Trainer wants ten steps",
        file="examples/trainer_tiny.py",
        text="                logging_first_step=True,",
        fault="                logging_first_step=False,",
        tests=(f"{FRAMEWORKS}::test_trainer_ends_well_after_fewer_steps_than_it_logs",),
    ),
    Mutant(
        name="everyday: loaders that differ between workers train on",
        file="ps_server/coordinator/service.py",
        text="        shares.agreed.check(loader, member.worker, request.data)\n",
        fault="",
        tests=(f"{DATA}::test_loaders_that_differ_are_refused_by_the_workers_and_the_values",),
    ),
    Mutant(
        name="everyday: a seed is compared where nothing is shuffled",
        file="ps_worker/data/data_facts.py",
        text="    if shuffled:\n",
        fault="    if True:\n",
        tests=(f"{DATA}::test_loaders_that_are_alike_are_not_refused",),
    ),
    Mutant(
        name="everyday: what workers agreed on outlives them",
        file="ps_server/coordinator/epochs/agreed.py",
        text="        self._facts.clear()\n",
        fault="        pass\n",
        tests=(
            f"{AGREED}::test_a_successor_compares_with_what_was_said_and_who_comes_after_all_have_gone_says_it_anew",
        ),
    ),
    Mutant(
        name="everyday: one worker alone under bsp has other batches than torch",
        file="ps_worker/data/index_share.py",
        text="        if not self.even or piece.ranks == piece.count:",
        fault="        if not self.even:",
        tests=(f"{SHARE}::test_one_worker_has_the_batches_of_torch_in_every_model",),
    ),
    Mutant(
        name="everyday: torchrun without servers trains copies",
        file="ps_worker/settings.py",
        text='            _check_one_process(source.get("WORLD_SIZE", ""))\n',
        fault="            pass\n",
        tests=(f"{SETTINGS}::test_several_processes_do_not_each_train_alone_unless_they_are_told_to",),
    ),
    Mutant(
        name="everyday: a script without wrap is told so only when it ends",
        file="ps_worker/steps.py",
        text="            self._say_untrained(MANY_BATCHES)\n",
        fault="            pass\n",
        tests=(f"{UNTRAINED}::test_a_script_that_trains_beside_the_servers_is_told_so_once",),
    ),
    Mutant(
        name="everyday: a script that leaves without a step is told nothing",
        file="ps_worker/steps.py",
        text="        if not reason:\n            self._say_untrained()\n",
        fault="",
        tests=(f"{UNTRAINED}::test_a_script_that_trains_beside_the_servers_is_told_so_once",),
    ),
    Mutant(
        name="everyday: a worker waits for a server without a word",
        file="ps_worker/transport/server_check.py",
        text="            if until_s > time.monotonic():\n",
        fault="            if False:\n",
        tests=(f"{UNTRAINED}::test_who_waits_for_a_server_at_the_start_says_so_before_it_waits",),
    ),
    Mutant(
        name="everyday: status of one job shows all",
        file="ps_lab/status/status.py",
        text="for job in self.jobs if job.name == name))\n",
        fault="for job in self.jobs))\n",
        tests=(
            "tests/unit/ps_lab/status/test_report.py::test_what_is_asked_of_one_job_shows_no_other_and_all_servers",
        ),
    ),
)
