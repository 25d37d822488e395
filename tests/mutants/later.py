"""Faults of what a worker does where an epoch begins and it has just joined again, and of refused newcomers."""

from .mutant import Mutant

RESUME = "tests/component/snapshots/test_resume.py"
ALONE = f"{RESUME}::test_who_is_alone_and_evicted_at_any_point_ends_as_one_undisturbed"
SCRIPT = "tests/unit/ps_worker/data/test_script_data.py"
REFUSED = (
    "tests/component/members/test_leave.py"
    "::test_a_refused_worker_is_told_to_those_who_wait_for_it_and_not_for_ever"
)
EVICTED = "tests/component/members/test_evicted.py"
FIGURES = "tests/unit/ps_server/shard/partition/test_cell_figures.py"
JOB = "ps_server/coordinator/jobs/job.py"
DATA = "ps_worker/data/script_data.py"
LOADER = "ps_worker/data/loader.py"

MUTANTS = (
    Mutant(
        name="later: a table that is there fails with what came before the eviction",
        file="ps_worker/exchange/in_flight.py",
        text="            self._error = told = prevailing(self._error, error)\n",
        fault="            self._error = told = self._error or error\n",
        tests=(
            f"{EVICTED}::test_who_is_evicted_after_a_shard_has_called_it_a_stranger_steps_on_with_its_table",
        ),
    ),
    Mutant(
        name="later: a wait at the gate ends with the last push, not with the step",
        file="ps_server/shard/partition/cell.py",
        text="self._decide(step, workers, 1.0, time.monotonic(), average)",
        fault="self._decide(step, workers, 1.0, 0.0, average)",
        tests=(f"{FIGURES}::test_the_wait_at_the_gate_ends_when_the_step_is_closed",),
    ),
    Mutant(
        name="later: generators of an epoch's beginning are set behind the draw of torch's iterator",
        file="ps_worker/job/resumption.py",
        text="        if again is not None and not again.inside and self._listener.arrived():\n",
        fault="        if False and again is not None:\n",
        tests=(ALONE,),
    ),
    Mutant(
        name="later: who is sent to an earlier epoch as it asks for its share trains on in the later one",
        file="ps_worker/job/job_link.py",
        text="if self._listener.announce() or not self._listener.arrived():",
        fault="if self._listener.announce():",
        tests=(ALONE,),
    ),
    Mutant(
        name="later: who asks for the first batch of an epoch counts as one behind it",
        file=DATA,
        text="        iterates = not self.between_epochs or any(dealer.begins for dealer in self._dealers)\n",
        fault="        iterates = not self.between_epochs\n",
        tests=(f"{SCRIPT}::test_who_is_sent_to_the_epoch_whose_first_batch_it_asks_for_runs_its_body_once",),
    ),
    Mutant(
        name="later: a batch that is void is read as if it began a step",
        file=LOADER,
        text="if self._now is not None and (self._replays or not self._dealer.void):",
        fault="if self._now is not None:",
        tests=(ALONE,),
    ),
    Mutant(
        name="later: nobody hears that a worker of another number of workers was refused",
        file=JOB,
        text="        return [*refused_newcomer(self.roster.present(), who, error)]\n",
        fault="        return []\n",
        tests=(REFUSED,),
    ),
    Mutant(
        name="later: those who wait are told of refused workers without an end",
        file=JOB,
        text="self.phase.state is not JobState.WAITING or self._refused >= MAX_REFUSED",
        fault="self.phase.state is not JobState.WAITING",
        tests=(REFUSED,),
    ),
)
