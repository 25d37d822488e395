"""Faults of going on again: shares of who comes late or never, loops that follow one another, who is told what."""

from .mutant import Mutant

BOOK = "ps_server/coordinator/epochs/epoch_book.py"
BOOK_TESTS = "tests/unit/ps_server/coordinator/epochs/test_epoch_book.py"
DEALT = "tests/component/data/test_dealt_epochs.py"
DATA = "ps_worker/data/script_data.py"
SCRIPT = "tests/unit/ps_worker/data/test_script_data.py"
LOOPS = "tests/component/snapshots/test_loops.py"
RESUME = "tests/component/snapshots/test_resume.py"
COMES_AGAIN = f"{LOOPS}::test_who_comes_again_goes_on_in_the_loop_in_which_the_job_is"
BEHIND = f"{LOOPS}::test_who_comes_while_the_others_are_behind_a_loop_goes_on_there_and_makes_their_calls"
GOES_BACK = f"{LOOPS}::test_a_job_that_goes_back_is_gone_on_with_in_the_loop_of_the_snapshot"
UNDONE = f"{LOOPS}::test_a_decision_to_stop_that_is_undone_with_its_steps_stops_nothing"
ROUNDS = "tests/unit/ps_worker/membership/test_round_barrier.py"

MUTANTS = (
    Mutant(
        name="again: who begins with a later epoch keeps its shares of those before",
        file=BOOK,
        text="            self._pass_over(loader, epoch, worker, incarnation)\n",
        fault="            pass\n",
        tests=(
            f"{BOOK_TESTS}::test_who_comes_and_begins_with_a_later_epoch_leaves_its_shares_of_those_before_over",
        ),
    ),
    Mutant(
        name="again: who passes over an epoch in mid-run leaves its share to the others",
        file=BOOK,
        text="        if self._dealt.get((loader, worker), (0, []))[0] != incarnation:\n",
        fault="        if True:\n",
        tests=(f"{BOOK_TESTS}::test_who_passes_over_an_epoch_in_mid_run_leaves_its_share_unused",),
    ),
    Mutant(
        name="again: the share of one who never comes again is kept for it",
        file=BOOK,
        text="                dealt.give_up([it for it in absent if dealt.owners.get(it) == ANY], NOBODY, left_over=True)\n",
        fault="                pass\n",
        tests=(
            f"{BOOK_TESTS}::test_the_share_of_one_who_is_awaited_goes_to_who_comes_to_the_end_of_its_own",
            f"{DEALT}::test_who_goes_on_alone_with_a_job_that_all_have_left_uses_every_sample",
        ),
    ),
    Mutant(
        name="again: who comes late to a loader that makes no step has no share of it",
        file=BOOK,
        text="            if trains:  # else nobody else takes them, and who comes late has its own\n",
        fault="            if True:\n",
        tests=(f"{BOOK_TESTS}::test_the_share_of_one_who_is_awaited_is_kept_where_no_step_is_made",),
    ),
    Mutant(
        name="again: a decision to stop that is undone with its steps stops the job where it went back to",
        file="ps_worker/job/job_link.py",
        text="        while not self._listener.is_undone():\n",
        fault="        while True:\n",
        tests=(UNDONE,),
    ),
    Mutant(
        name="again: a decision to stop counts until the script has heard that steps are undone",
        file="ps_worker/steps.py",
        text="        return self.link.rejoiner.undone or self.data.is_undone\n",
        fault="        return self.data.is_undone\n",
        tests=(f"{LOOPS}::test_where_no_loop_of_ours_goes_back_an_undone_decision_to_stop_stops_nothing",),
    ),
    Mutant(
        name="again: a decision to stop counts when the script has heard that steps are undone",
        file="ps_worker/steps.py",
        text="        return self.link.rejoiner.undone or self.data.is_undone\n",
        fault="        return self.link.rejoiner.undone\n",
        tests=(UNDONE,),
    ),
    Mutant(
        name="again: who comes to a job that has begun cannot stop it before its loop",
        file=DATA,
        text="        return self._back_to is not None and self._stop > 0\n",
        fault="        return self._back_to is not None\n",
        tests=(
            "tests/component/members/test_stop_job.py::test_who_comes_again_may_stop_the_job_before_its_loop",
        ),
    ),
    Mutant(
        name="again: a job that went back has begun no epoch, for a person who stops it",
        file="ps_server/coordinator/jobs/job.py",
        text="        self._forget_loops(saved.shares)\n",
        fault="        self._forget_loops()\n",
        tests=(f"{LOOPS}::test_a_job_that_is_stopped_as_it_goes_back_ends_behind_the_epoch_of_its_snapshot",),
    ),
    Mutant(
        name="again: an epoch that a worker asked for and has used nothing of counts as begun, in a snapshot",
        file="ps_server/coordinator/jobs/job.py",
        text="for it in shares if it.trains and it.used)",
        fault="for it in shares if it.trains)",
        tests=(
            "tests/unit/ps_server/coordinator/test_rolled_back.py::test_who_is_stopped_ends_after_the_newest_epoch_of_which_the_snapshot_has_steps",
        ),
    ),
    Mutant(
        name="again: each loop over epochs has numbers from its start",
        file=DATA,
        text="        epoch = first = max(numbers.start, self._stop)  # no number comes twice\n",
        fault="        epoch = first = numbers.start\n",
        tests=(COMES_AGAIN,),
    ),
    Mutant(
        name="again: calls in loops that are left out are made",
        file=DATA,
        text="            self._listener.pass_over_calls(self._ends[loop])\n",
        fault="            pass\n",
        tests=(BEHIND,),
    ),
    Mutant(
        name="again: nothing is noted behind a loop",
        file=DATA,
        text="            self._listener.end_loop()\n",
        fault="            pass\n",
        tests=(BEHIND,),
    ),
    Mutant(
        name="again: who comes while all others finish has no position",
        file="ps_server/coordinator/live_extras.py",
        text="        for member in (*trained, *job.roster.behind_their_data()):\n",
        fault="        for member in trained:\n",
        tests=(BEHIND,),
    ),
    Mutant(
        name="again: a later loop trains what an earlier one is sent back to",
        file=DATA,
        text="                    if self._back_to < first:\n",
        fault="                    if False:\n",
        tests=(f"{SCRIPT}::test_a_later_loop_does_not_train_what_an_earlier_one_is_sent_back_to",),
    ),
    Mutant(
        name="again: who runs its loops again goes on counting",
        file=DATA,
        text="        if self._told:\n            self._told",
        fault="        if False:\n            self._told",
        tests=(GOES_BACK,),
    ),
    Mutant(
        name="again: who has not gone where it was sent is let finish",
        file=DATA,
        text="        if self._back_to is not None and self._back_to < had:\n",
        fault="        if False:\n",
        tests=(f"{LOOPS}::test_who_was_told_that_it_was_sent_back_and_does_not_go_there_is_not_let_finish",),
    ),
    Mutant(
        name="again: who is evicted behind the last batch of an epoch goes on with the next one",
        file=DATA,
        text="not at.between and iterates\n",
        fault="not at.between\n",
        tests=(
            f"{RESUME}::test_who_was_evicted_behind_the_last_batch_of_the_epoch_of_the_others_runs_its_body_again",
        ),
    ),
    Mutant(
        name="again: the first round of a script is never over",
        file="ps_worker/membership/round_barrier.py",
        text="self._between() or (not self._usual and self._all_begun(self._clocks()))",
        fault="self._between()",
        tests=(f"{ROUNDS}::test_the_first_round_is_over_when_each_table_had_a_step",),
    ),
    Mutant(
        name="again: what belongs to a round is forgotten by who joins again",
        file="ps_worker/membership/round_barrier.py",
        text="self._counts or self._usual, Counter()",
        fault="self._counts, Counter()",
        tests=(f"{ROUNDS}::test_what_belongs_to_a_round_is_still_known_when_the_worker_has_joined_again",),
    ),
    Mutant(
        name="again: half a state is kept, whose writer was killed on the way",
        file="ps_server/coordinator/state_store.py",
        text="            if size is not None and len(parts) != size:\n",
        fault="            if False:\n",
        tests=("tests/unit/ps_server/coordinator/test_state_store.py",),
    ),
    Mutant(
        name="again: who puts a state does not say how large it is",
        file="ps_worker/membership/coordinator_calls.py",
        text="            yield pb.StateChunk(key=key, size=len(blob))\n",
        fault="            yield pb.StateChunk(key=key)\n",
        tests=(f"{RESUME}::test_a_note_whose_writer_was_killed_on_the_way_leaves_the_one_before",),
    ),
)
