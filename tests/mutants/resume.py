"""Faults of the way back: where a worker begins that comes to a job which has begun."""

from .mutant import Mutant

RESUME = "tests/component/snapshots/test_resume.py"
ALL_LEFT = f"{RESUME}::test_who_comes_to_a_job_that_all_have_left_goes_on_where_it_is"
JOINS = f"{RESUME}::test_who_joins_in_mid_run_begins_at_the_jobs_epoch_with_its_schedules"
EVICTED = f"{RESUME}::test_who_was_evicted_for_long_goes_on_at_the_jobs_epoch_with_its_schedules"
GOES_BACK = f"{RESUME}::test_one_worker_that_goes_back_to_an_earlier_epoch_has_its_schedules_of_then"
END = "tests/unit/ps_server/coordinator/jobs/test_membership_end.py"
STOP = "tests/component/members/test_stop_job.py"
DATA = "ps_worker/data/script_data.py"
RESUMPTION = "ps_worker/job/resumption.py"
STATE = "ps_worker/steps.py"
BATCH = "ps_worker/step/batch_in_hand.py"

MUTANTS = (
    Mutant(
        name="resume: a loop begins at its first epoch",
        file=DATA,
        text="            self._go_to(at)\n            self",
        fault="            self",
        tests=(ALL_LEFT, JOINS),
    ),
    Mutant(
        name="resume: no step is taken again",
        file=STATE,
        text="            owner.fall_behind(behind.get(next(iter(owner.clocks)), 0) if at.loaders else 0)\n",
        fault="            owner.fall_behind(0)\n",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="resume: who joins under bsp takes no step again",
        file="ps_worker/data/position.py",
        text="        if lockstep:  #",
        fault="        if False:  #",
        tests=(JOINS, EVICTED),
    ),
    Mutant(
        name="resume: what is replayed is pushed",
        file=BATCH,
        text="        self._void = self._replays = self.behind > 0\n",
        fault="        self._replays = self.behind > 0\n",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="resume: a step that is replayed is not counted",
        file=BATCH,
        text="        self.behind -= self._replays\n",
        fault="        self.behind = 0\n",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="resume: what is registered is not set once more where the loop begins",
        file=RESUMPTION,
        text="        self._set(again.state, own=again.own)\n        if again.inside:\n",
        fault="        if again.inside:\n",
        tests=(ALL_LEFT, GOES_BACK),
    ),
    Mutant(
        name="resume: what is registered is set while the script is still elsewhere",
        file=RESUMPTION,
        text="        if self._again is not None and self._listener.arrived():\n",
        fault="        if self._again is not None:\n",
        tests=(f"{RESUME}::test_who_was_evicted_has_the_schedules_where_it_was_sent_and_not_before",),
    ),
    Mutant(
        name="resume: nothing is noted when an epoch begins",
        file="ps_worker/membership/noting.py",
        text="            self._make(self._pack() if note is None else note)()\n",
        fault="            self._make(self._pack() if note is None else note)\n",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="resume: a generator is drawn from once more where what is dealt begins",
        file="ps_worker/data/loader.py",
        text="        if drawn is not None:\n            torch.set_rng_state(drawn)\n",
        fault="",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="resume: what one who came has used is counted from step 0",
        file="ps_worker/data/epoch_dealer.py",
        text="            self._step = self._steps.step\n",
        fault="            pass\n",
        tests=(f"{RESUME}::test_who_is_killed_again_while_it_takes_steps_again_loses_nothing",),
        survives="No samples are used as of either step: the next one is said, where it is not as foretold.",
    ),
    Mutant(
        name="resume: a forward that is no step takes what is registered once more",
        file=STATE,
        text="        if not self.data.has_loaders:\n",
        fault="        if True:\n",
        tests=(RESUME,),
    ),
    Mutant(
        name="resume: a step whose pushes have left is not among those of who leaves",
        file="ps_worker/optimizer/wrapped.py",
        text="        more = self.step_number - next(iter(clocks.values()), 0)\n",
        fault="        more = 0\n",
        tests=(f"{RESUME}::test_a_step_that_sigterm_ends_when_its_pushes_have_left_is_counted",),
    ),
    Mutant(
        name="resume: epochs that are over are dealt anew when all are gone",
        file="ps_server/coordinator/epochs/epoch_book.py",
        text="for key, epoch in self._epochs.items() if key[0] in self._training}",
        fault="for key, epoch in self._epochs.items() if key in self._live}",
        tests=(ALL_LEFT, "tests/unit/ps_server/coordinator/epochs/test_epoch_book.py"),
    ),
    Mutant(
        name="resume: of who comes again none gets its own share first",
        file="ps_server/coordinator/epochs/epoch.py",
        text="[*mine, *self.left]",
        fault="self.left",
        tests=("tests/unit/ps_server/coordinator/epochs/test_epoch_book.py",),
    ),
    Mutant(
        name="resume: a worker's steps are not known when it was evicted",
        file="ps_server/coordinator/jobs/job.py",
        text="        self.ends[gone.worker] = dict(gone.limits)\n",
        fault="",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="resume: a worker's steps are not known when it has left",
        file="ps_server/coordinator/jobs/job.py",
        text="            self.ends[member.worker] = dict(clocks)\n",
        fault="            pass\n",
        tests=(ALL_LEFT,),
    ),
    Mutant(
        name="stop: a later epoch begins",
        file="ps_server/coordinator/jobs/loops.py",
        text="        if self.last is not None and epoch > self.last:\n",
        fault="        if self.last is not None and epoch > self.last + 1:\n",
        tests=(STOP,),
    ),
    Mutant(
        name="stop: the last epoch is that of who has stopped the job",
        file="ps_server/coordinator/jobs/loops.py",
        text="        self.newest = max(self.newest, epoch)\n",
        fault="        self.newest = epoch\n",
        tests=(
            f"{END}::test_a_job_that_is_stopped_ends_after_the_newest_epoch_though_another_began_an_older_one_since",
        ),
    ),
    Mutant(
        name="stop: loops of their own go on",
        file="ps_server/coordinator/service.py",
        text="        if request.begins and shares.trains(loader) and not runner.job.loops.begin(request.epoch):\n",
        fault="        if False:\n",
        tests=(f"{STOP}::test_a_loop_without_our_numbers_gets_no_batch_of_a_later_epoch",),
    ),
    Mutant(
        name="resume: a loop whose batches are its own goes back by itself",
        file=DATA,
        text="            return bool(self._loaders)\n",
        fault="            return True\n",
        tests=(f"{RESUME}::test_a_loop_whose_batches_are_its_own_hears_of_a_rollback",),
    ),
)
