"""Faults of calls that all workers make: who is waited for, what is computed, and what is kept."""

from .mutant import Mutant

CALLS = "ps_server/coordinator/jobs/collectives.py"
TOGETHER = "ps_worker/membership/together.py"
PURE = "tests/unit/ps_server/coordinator/jobs/test_collectives.py"
UNIT = "tests/component/members/test_together.py"

MUTANTS = (
    Mutant(
        name="calls: values of who has gone count",
        file=CALLS,
        text="            if awaited.get(worker) == incarnation\n",
        fault="            if awaited\n",
        tests=(f"{PURE}::test_a_worker_that_goes_is_not_waited_for_and_its_value_does_not_count",),
    ),
    Mutant(
        name="calls: in the order of arrival",
        file=CALLS,
        text="in sorted(self._open[number].items())\n",
        fault="in self._open[number].items()\n",
        tests=(f"{PURE}::test_a_call_is_complete_when_all_have_made_it_and_computed_in_their_order",),
    ),
    Mutant(
        name="calls: who stands beyond one is waited for",
        file=CALLS,
        text="self._stands[worker][1] > number)",
        fault="self._stands[worker][1] > number + 1)",
        tests=(f"{PURE}::test_one_who_stands_beyond_a_call_is_not_waited_for",),
    ),
    Mutant(
        name="calls: one of before the first step is forgotten",
        file=CALLS,
        text="        starting = not any(part.begun for part in parts.values())\n",
        fault="        starting = False\n",
        tests=(f"{PURE}::test_calls_of_before_the_first_step_are_kept_for_good_also_over_a_rollback",),
    ),
    Mutant(
        name="calls: NaN of one worker is lost",
        file=CALLS,
        text="math.nan if any(map(math.isnan, column)) else reduce(column)",
        fault="reduce(column)",
        tests=(f"{PURE}::test_numbers_are_reduced_and_nan_of_one_is_nan_for_all",),
    ),
    Mutant(
        name="calls: a mapping's order is that of the script",
        file=TOGETHER,
        text="        names = sorted(given)  # the order of a mapping may differ between workers\n",
        fault="        names = list(given)\n",
        tests=(f"{UNIT}::test_all_workers_get_the_same_bits_in_every_consistency_model",),
    ),
    Mutant(
        name="ps-worker -m: the module does not see itself as python -m has it",
        file="ps_worker/cli.py",
        text="alter_sys=True",
        fault="alter_sys=False",
        tests=("tests/unit/ps_worker/test_run_module.py::test_a_module_is_run_as_python_runs_it",),
    ),
    Mutant(
        name="calls: one that was refused is made again",
        file=TOGETHER,
        text="        except PsError:\n            self._go_on(number)\n",
        fault="        except PsError:\n",
        tests=(f"{UNIT}::test_different_calls_are_refused_by_name_on_all_workers",),
    ),
)
