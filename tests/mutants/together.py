"""Faults of workers together: calls while others train."""

from .mutant import Mutant

UNIT = "tests/component/members/test_together.py"
PURE = "tests/unit/ps_server/coordinator/jobs/test_collectives.py"
FAULTS = "tests/faults/test_together.py"

REFUSALS = "tests/integration/test_refusals.py"
LIVE = "tests/unit/ps_server/coordinator/test_live_extras.py"
NOTING = "tests/unit/ps_worker/membership/test_noting.py"
HELD = "tests/unit/ps_server/coordinator/fleet/test_generations.py"

RESUMES = "tests/component/snapshots/test_resume.py::test_who_was_evicted_with_no_batch_left_keeps_what_it_does_behind_the_last_one"
RESUMPTION = "tests/unit/ps_worker/job/test_resumption.py"
FACTS = "tests/component/data/test_data_facts.py"

MUTANTS = (
    Mutant(
        name="together: one that comes to each call behind the others takes part in none",
        file="ps_server/coordinator/jobs/collectives.py",
        text="        if number in self._kept:\n            self.stands(worker, incarnation, number + 1)\n",
        fault="",
        tests=(f"{PURE}::test_who_makes_a_call_behind_the_others_is_waited_for_in_the_next",),
    ),
    Mutant(
        name="together: one whose script has yet to begin is waited for in calls of an epoch",
        file="ps_server/coordinator/jobs/collectives.py",
        text="        if number in self._kept:\n",
        fault="        if self.outcome(number):\n",
        tests=(f"{PURE}::test_who_makes_a_call_behind_the_others_is_waited_for_in_the_next",),
    ),
    Mutant(
        name="together: who has no batch more where it was sent goes back there in its next epoch",
        file="ps_worker/job/resumption.py",
        text="        if again.epoch is not None and again.epoch < epoch:",
        fault="        if False:",
        tests=(f"{RESUMPTION}::test_what_another_was_inside_an_epoch_is_not_set_in_the_next",),
    ),
    Mutant(
        name="together: what a dropped batch has stepped counts where it was the last of its epoch",
        file="ps_worker/data/loader.py",
        text="            self._listener.end_iterator()\n",
        fault="            pass\n",
        tests=(RESUMES,),
    ),
    Mutant(
        name="together: who waits beside a reader that gives up is forgotten",
        file="ps_server/coordinator/live_extras.py",
        text="                asked.answer.set_result(None)  # others who wait for it ask again, too\n",
        fault="",
        tests=(f"{LIVE}::test_who_waits_beside_one_that_gives_up_asks_again_and_is_answered",),
    ),
    Mutant(
        name="together: a note whose thread did not start is under way for ever",
        file="ps_worker/membership/noting.py",
        text="            self._idle.set()\n            raise\n",
        fault="            raise\n",
        tests=(f"{NOTING}::test_where_no_thread_can_be_had_the_next_note_is_put_all_the_same",),
    ),
    Mutant(
        name="together: batch sizes may differ under bsp",
        file="ps_worker/data/script_data.py",
        text=" if self._even}",
        fault=" if not self._even}",
        tests=(
            f"{FACTS}::test_under_bsp_batches_of_other_sizes_are_refused_and_under_asp_they_are_a_choice",
        ),
    ),
    Mutant(
        name="together: two shards 0 hold one state directory",
        file="ps_server/coordinator/fleet/generations.py",
        text="        except BlockingIOError:\n            file.seek(0)\n",
        fault="        except BlockingIOError:\n            return\n            file.seek(0)\n",
        tests=(f"{HELD}::test_a_directory_is_held_by_one_at_a_time_and_the_second_is_told_by_whom",),
    ),
    Mutant(
        name="together: a server does not hold its state directory",
        file="ps_server/process/server.py",
        text="            hold = Hold(self._options.state_dir)\n            self._ends.append(hold.let_go)\n",
        fault="            pass\n",
        tests=(f"{REFUSALS}::test_a_second_shard_0_on_a_state_directory_that_is_held_ends_with_78",),
    ),
    Mutant(
        name="together: who waits in a call takes no steps",
        file="ps_server/coordinator/jobs/job_calls.py",
        text="        return {table: step for table, step in needed.items() if step > clocks[table]}\n",
        fault="        return {}\n",
        tests=(f"{UNIT}::test_who_waits_in_a_call_abstains_on_each_table_as_the_others_step_it",),
    ),
    Mutant(
        name="together: who waits in a call abstains under ssp as under bsp",
        file="ps_server/coordinator/jobs/job_calls.py",
        text="default=0) - staleness\n            for table",
        fault="default=0)\n            for table",
        tests=(f"{PURE}::test_others_need_the_steps_that_open_the_gate_for_who_is_furthest_of_them",),
    ),
    Mutant(
        name="together: a call in the middle of a step abstains from the rest of it",
        file="ps_worker/steps.py",
        text="                if not owner.is_between_steps():\n                    return False\n",
        fault="                owner.is_between_steps()\n",
        tests=(f"{UNIT}::test_a_call_in_the_middle_of_a_step_takes_no_other_step",),
    ),
    Mutant(
        name="together: schedules do not count the steps that were sat out",
        file="ps_worker/step/batch_in_hand.py",
        text="        self.behind += again\n",
        fault="",
        tests=(f"{FAULTS}::test_one_joins_in_an_epoch_that_ends_with_a_call",),
    ),
    Mutant(
        name="together: a step that is sat out sets what is registered back",
        file="ps_worker/job/resumption.py",
        text="        if self._paused:\n            return\n",
        fault="",
        tests=(
            "tests/unit/ps_worker/job/test_resumption.py::test_a_step_that_is_sat_out_is_none_that_the_script_begins",
        ),
    ),
    Mutant(
        name="together: who is sent to the call that it waits in makes it twice",
        file="ps_worker/membership/together.py",
        text="        if self._sent_to == number:",
        fault="        if self._sent_to == -1:",
        tests=(f"{UNIT}::test_who_is_sent_to_the_call_that_it_waits_in_goes_on_behind_it",),
    ),
    Mutant(
        name="together: who gets no batch where it was sent makes no call there",
        file="ps_worker/membership/together.py",
        text="(there and self._returns())",
        fault="there",
        tests=(
            f"{UNIT}::test_who_was_sent_to_the_call_that_comes_next_makes_it_though_it_gets_no_batch_before",
        ),
    ),
    Mutant(
        name="together: who goes on from one that waits in a call does what lies behind the epoch's last batch again",
        file="ps_worker/steps.py",
        text="        if at.epoch is not None and self._epoch_over:\n",
        fault="        if False:\n",
        tests=("tests/faults/test_together.py::test_one_joins_again_in_an_epoch_that_ends_with_a_call",),
    ),
)
