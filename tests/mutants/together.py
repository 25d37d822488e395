"""Faults of workers together: calls while others train."""

from .mutant import Mutant

UNIT = "tests/unit/ps_worker/test_together.py"
PURE = "tests/unit/ps_server/test_collectives.py"
FAULTS = "tests/faults/test_together.py"

MUTANTS = (
    Mutant(
        name="together: who waits in a call takes no steps",
        file="ps_server/job_life.py",
        text="        return {table: step for table, step in needed.items() if step > clocks[table]}\n",
        fault="        return {}\n",
        tests=(f"{UNIT}::test_who_waits_in_a_call_abstains_on_each_table_as_the_others_step_it",),
    ),
    Mutant(
        name="together: who waits in a call abstains under ssp as under bsp",
        file="ps_server/job_life.py",
        text="default=0) - staleness\n            for table",
        fault="default=0)\n            for table",
        tests=(f"{PURE}::test_others_need_the_steps_that_open_the_gate_for_who_is_furthest_of_them",),
    ),
    Mutant(
        name="together: a call in the middle of a step abstains from the rest of it",
        file="ps_worker/worker_state.py",
        text="                if owner.sends:\n                    return False\n",
        fault="",
        tests=(f"{UNIT}::test_a_call_in_the_middle_of_a_step_takes_no_other_step",),
    ),
    Mutant(
        name="together: schedules do not count the steps that were sat out",
        file="ps_worker/wrapped.py",
        text="        self.behind += again\n",
        fault="",
        tests=(f"{FAULTS}::test_one_joins_in_an_epoch_that_ends_with_a_call",),
    ),
    Mutant(
        name="together: a step that is sat out sets what is registered back",
        file="ps_worker/rejoining.py",
        text="        if self._sits_out:\n            return\n",
        fault="",
        tests=(f"{FAULTS}::test_one_joins_in_an_epoch_that_ends_with_a_call",),
    ),
    Mutant(
        name="together: who is sent to the call that it waits in makes it twice",
        file="ps_worker/together.py",
        text="        if self._sent_to == number:",
        fault="        if self._sent_to == -1:",
        tests=(f"{UNIT}::test_who_is_sent_to_the_call_that_it_waits_in_goes_on_behind_it",),
    ),
    Mutant(
        name="together: who gets no batch where it was sent makes no call there",
        file="ps_worker/together.py",
        text="(there and self._returns())",
        fault="there",
        tests=(
            f"{UNIT}::test_who_was_sent_to_the_call_that_comes_next_makes_it_though_it_gets_no_batch_before",
        ),
    ),
)
