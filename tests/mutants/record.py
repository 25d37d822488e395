"""Faults of what is recorded of steps, and of what servers tell for it."""

from tests.mutants.mutant import Mutant

MACHINE = "ps_server/shard/partition/machine.py"
RECORDER = "ps_worker/recording/recorder.py"
STRAGGLING = "ps_worker/process/straggling.py"
RECORDS = "tests/unit/ps_worker/recording/test_recorder.py"
SLOW = "tests/unit/ps_worker/process/test_straggling.py"
OUTCOMES = "tests/unit/ps_server/shard/partition/test_push_outcomes.py"

SCALARS = "ps_worker/recording/scalar_log.py"
LOGGED = "tests/unit/ps_worker/recording/test_scalar_log.py"

MUTANTS = (
    Mutant(
        name="record: each worker writes into the run of TensorBoard",
        file=SCALARS,
        text="        if not first or self._failed:\n",
        fault="        if self._failed:\n",
        tests=(f"{LOGGED}::test_workers_but_the_first_make_no_file",),
    ),
    Mutant(
        name="record: TensorBoard shows what a job of the same name had before",
        file=SCALARS,
        text="purge_step=since)",
        fault="purge_step=since or None)",
        tests=(f"{LOGGED}::test_a_job_is_a_run_with_the_names_of_the_script_without_what_is_void",),
    ),
    Mutant(
        name="record: scalars are of the step before",
        file="ps_worker/steps.py",
        text="            self._scalars.log(name, number, self.step)\n",
        fault="            self._scalars.log(name, number, self.step - 1)\n",
        tests=(
            "tests/component/training/test_record.py::test_the_first_worker_logs_for_tensorboard_at_its_steps",
        ),
    ),
    Mutant(
        name="record: an ACK says the version after its push was applied",
        file=MACHINE,
        text="gap=gap, version=version if applies",
        fault="gap=gap, version=self.version if applies",
        tests=(f"{OUTCOMES}::test_the_version_is_that_before_the_push_was_applied",),
    ),
    Mutant(
        name="record: with backup workers an ACK says that its push will be applied",
        file=MACHINE,
        text="not (late or abstains or self.gate.backup)",
        fault="not (late or abstains)",
        tests=(f"{OUTCOMES}::test_with_backup_workers_nothing_is_said_before_somebody_has_chosen",),
    ),
    Mutant(
        name="record: a shard says how long a pull waited only where weights are copied",
        file="ps_wire/frames/carrier.py",
        text="                    hyper=frame.hyper,\n",
        fault="",
        tests=(f"{OUTCOMES}::test_a_wait_is_told_in_microseconds_to_who_asks_only",),
    ),
    Mutant(
        name="record: tau is that of the partition that answered last",
        file=RECORDER,
        text=" and applied - read > known:",
        fault=":",
        tests=(f"{RECORDS}::test_tau_is_that_of_the_stalest_partition_and_unknown_where_no_ack_says_it",),
    ),
    Mutant(
        name="record: tau is said where the push may be left out later",
        file=RECORDER,
        text=" and self._certain and ",
        fault=" and ",
        tests=(f"{RECORDS}::test_where_a_push_may_be_left_out_later_its_tau_is_not_known",),
    ),
    Mutant(
        name="record: a metric logged before backward is of the step before",
        file=RECORDER,
        text="        self._begun = True\n",
        fault="        self._begun = False\n",
        tests=(f"{RECORDS}::test_a_metric_is_of_the_step_whose_batch_was_drawn_last",),
    ),
    Mutant(
        name="record: a full disk ends the training",
        file=RECORDER,
        text="            with suppress(OSError):  # what is buffered can go nowhere\n                file.close()\n",
        fault="            file.close()\n",
        tests=(f"{RECORDS}::test_a_full_disk_costs_the_record_and_one_warning",),
    ),
    Mutant(
        name="record: weights that arrive in the next forward do not end the step",
        file=RECORDER,
        text="max(step.ended_s, heard.came_s, started_s)",
        fault="max(step.ended_s, started_s)",
        tests=(f"{RECORDS}::test_weights_that_arrive_in_the_next_forward_end_the_step",),
    ),
    Mutant(
        name="straggling: a factor is of the waiting, too",
        file=STRAGGLING,
        text=" - (waited_s - self._waited_s), 0.0)",
        fault=", 0.0)",
        tests=(
            f"{SLOW}::test_a_factor_is_of_the_compute_of_the_step_before_without_its_waits_and_its_sleep",
        ),
    ),
    Mutant(
        name="straggling: who came back from a crash crashes again",
        file=STRAGGLING,
        text="        if step != self._came_at:\n",
        fault="        if True:\n",
        tests=(f"{SLOW}::test_who_came_back_from_a_crash_does_not_crash_again_where_it_goes_on",),
    ),
)
