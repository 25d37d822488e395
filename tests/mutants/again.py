"""Faults of going on again: shares of who comes late or never, loops that follow one another, who is told what."""

from .mutant import Mutant

BOOK = "ps_server/coordinator/epochs/epoch_book.py"
BOOK_TESTS = "tests/unit/ps_server/coordinator/epochs/test_epoch_book.py"
DEALT = "tests/component/data/test_dealt_epochs.py"
BEHIND_ALL = f"{DEALT}::test_who_comes_again_behind_all_epochs_leaves_nothing_of_them_unused_and_has_the_state_of_there"
KEPT = "tests/unit/ps_server/coordinator/jobs/test_job.py::test_the_share_of_one_who_came_late_is_kept_once_it_has_asked"
DATA = "ps_worker/data/script_data.py"
SCRIPT = "tests/unit/ps_worker/data/test_script_data.py"
LOOPS = "tests/component/snapshots/test_loops.py"
RESUME = "tests/component/snapshots/test_resume.py"
COMES_AGAIN = f"{LOOPS}::test_who_comes_again_goes_on_in_the_loop_in_which_the_job_is"
BEHIND = f"{LOOPS}::test_who_comes_while_the_others_are_behind_a_loop_goes_on_there_and_makes_their_calls"
GOES_BACK = f"{LOOPS}::test_a_job_that_goes_back_is_gone_on_with_in_the_loop_of_the_snapshot"
UNDONE = f"{LOOPS}::test_a_decision_to_stop_that_is_undone_with_its_steps_stops_nothing"
VOID = "tests/component/snapshots/test_void_rest.py"
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
        name="again: who validates has no share of an epoch that it passed over",
        file=BOOK,
        text="in self._epochs.items() if self.trains(loader) else ():\n",
        fault="in self._epochs.items():\n",
        tests=(f"{BOOK_TESTS}::test_who_validates_has_its_share_of_an_epoch_that_it_passed_over",),
    ),
    Mutant(
        name="again: shares are kept for who has joined and does not know yet where the job is",
        file="ps_server/coordinator/jobs/job.py",
        text="            stands = not it.late or (it.worker, it.incarnation) in asked\n",
        fault="            stands = True\n",
        tests=(BEHIND_ALL,),
    ),
    Mutant(
        name="again: who came in mid-run has no share of its own as long as it is there",
        file="ps_server/coordinator/jobs/job.py",
        text="            stands = not it.late or (it.worker, it.incarnation) in asked\n",
        fault="            stands = not it.late\n",
        tests=(KEPT,),
    ),
    Mutant(
        name="again: the rest of the body in which one was counts where it comes again behind its loop",
        file=DATA,
        text="            self._listener.arrive_behind_loop()\n",
        fault="            pass\n",
        tests=(BEHIND_ALL,),
    ),
    Mutant(
        name="again: what a step behind a loop found is set where the loop ends, and no more",
        file="ps_worker/steps.py",
        text="            return replace(at, inside=not self._between_batches, calls=at.ends[-1])\n",
        fault="            return replace(at, inside=False, calls=at.ends[-1])\n",
        tests=(f"{DEALT}::test_who_comes_again_among_steps_behind_a_loop_has_the_state_of_these",),
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
        text="        if self._stop > 0:\n",
        fault="        if self._back_to is not None:\n",
        tests=(
            "tests/component/members/test_stop_job.py::test_who_comes_again_may_stop_the_job_before_its_loop",
        ),
    ),
    Mutant(
        name="again: a job that went back has begun no epoch, for a person who stops it",
        file="ps_server/coordinator/jobs/job.py",
        text="        self.loops.go_back(max((it.epoch for it in saved.shares if it.trains and it.used), default=-1))\n",
        fault="        self.loops.go_back(-1)\n",
        tests=(f"{LOOPS}::test_a_job_that_is_stopped_as_it_goes_back_ends_behind_the_epoch_of_its_snapshot",),
    ),
    Mutant(
        name="again: an epoch that a worker asked for and has used nothing of counts as begun, in a snapshot",
        file="ps_server/coordinator/jobs/job.py",
        text="for it in saved.shares if it.trains and it.used)",
        fault="for it in saved.shares if it.trains)",
        tests=(
            "tests/unit/ps_server/coordinator/test_rolled_back.py::test_who_is_stopped_ends_after_the_newest_epoch_of_which_the_snapshot_has_steps",
        ),
    ),
    Mutant(
        name="void: a loader that it trains on hands out before the script has gone back",
        file=DATA,
        text="        return not self.is_rewound\n",
        fault="        return True\n",
        tests=(
            f"{VOID}::test_a_loader_that_is_iterated_before_the_script_goes_back_hands_out_nothing_of_what_is_undone",
        ),
    ),
    Mutant(
        name="void: steps on what is in hand count before the script has gone back",
        file="ps_worker/step/batch_in_hand.py",
        text="        return self._void or self._is_rewound()\n",
        fault="        return self._void\n",
        tests=(f"{VOID}::test_steps_behind_a_call_in_which_it_heard_of_it_do_not_count",),
    ),
    Mutant(
        name="void: pushes into a table count before the script has gone back",
        file="ps_worker/table.py",
        text="BatchInHand(host.is_rewound)",
        fault="BatchInHand()",
        tests=(f"{VOID}::test_pushes_into_a_table_do_not_count_there",),
    ),
    Mutant(
        name="void: steps that do not count go on for ever",
        file=DATA,
        text="        if self._dropped > MANY_DROPPED:\n",
        fault="        if False:\n",
        tests=(f"{VOID}::test_one_whose_batches_are_its_own_there_does_not_step_for_ever",),
    ),
    Mutant(
        name="void: a validation passes for the epoch that is gone back into",
        file=DATA,
        text="        if not self._trains(loader):\n            return True\n        if self._back_to == self._epoch and (not self._at or self._numbers[loader] in self._at):\n",
        fault="        if self._back_to == self._epoch:\n",
        tests=(f"{VOID}::test_a_validation_behind_the_epoch_that_is_gone_back_into_does_not_pass_for_that",),
    ),
    Mutant(
        name="void: a loader that was left by break is inside its epoch in a snapshot",
        file="ps_worker/data/loader.py",
        text="        return self._next if self._now is None or self._under_way is None else self._now\n",
        fault="        return self._now or self._next\n",
        tests=(f"{VOID}::test_a_loader_that_was_left_by_break_is_at_its_next_epoch_when_its_job_goes_back",),
    ),
    Mutant(
        name="void: who has left its loop in what is undone finishes",
        file=DATA,
        text='        if self.is_rewound:\n            raise self.sent_back("the script has left its loop")\n',
        fault="",
        tests=(
            f"{VOID}::test_a_script_that_is_behind_its_loops_is_not_let_finish_and_runs_them_again[a break in the rest of a body]",
        ),
    ),
    Mutant(
        name="void: a pass behind the loops goes back by itself, and the loops do not",
        file=DATA,
        text="        return self._back_to is None and any(loader.goes_on for loader in self._loaders)\n",
        fault="        return any(loader.goes_on for loader in self._loaders)\n",
        tests=(
            f"{VOID}::test_a_script_that_is_behind_its_loops_is_not_let_finish_and_runs_them_again[a pass behind the loops]",
        ),
    ),
    Mutant(
        name="void: a batch to validate on takes the script to the job's next call",
        file="ps_worker/steps.py",
        text="        if not self.data.returns:\n            self.together.arrive()\n",
        fault="        self.together.arrive()\n",
        tests=(f"{VOID}::test_a_call_of_all_there_is_none_of_the_jobs",),
    ),
    Mutant(
        name="void: a batch before the script's loop begins the cut's step",
        file="ps_worker/steps.py",
        text="        elif not self.data.returns:  # of what is undone there is nothing to keep\n",
        fault="        else:\n",
        tests=(
            f"{VOID}::test_a_snapshot_that_is_taken_before_the_loop_is_gone_back_to_in_it[in a process that comes again]",
        ),
    ),
    Mutant(
        name="void: a snapshot of before the first loop sends nobody back",
        file=DATA,
        text="        if saved.epoch is None and self._stop > 0:  # of before its first loop\n",
        fault="        if False:\n",
        tests=(f"{VOID}::test_a_snapshot_that_is_taken_before_the_loop_is_gone_back_to_in_it[at the start]",),
    ),
    Mutant(
        name="void: a state that is loaded in what is undone is the job's",
        file="ps_worker/job/job_link.py",
        text="        if self._listener.went_back():\n            self._listener.say(",
        fault="        if False:\n            self._listener.say(",
        tests=(f"{VOID}::test_a_state_of_the_optimizer_that_is_loaded_there_is_not_the_jobs",),
    ),
    Mutant(
        name="void: a table is made in what is undone",
        file="ps_worker/job/job_link.py",
        text="        if self._listener.went_back():\n            raise",
        fault="        if False:\n            raise",
        tests=(f"{VOID}::test_a_parameter_that_is_added_there_makes_no_table_of_the_job",),
    ),
    Mutant(
        name="void: what is undone is in the note of an epoch",
        file="ps_worker/steps.py",
        text="        if self.data.arrived and not undone and not self.link.resumption.begin_epoch(epoch):\n",
        fault="        if self.data.arrived and not self.link.resumption.begin_epoch(epoch):\n",
        tests=(f"{VOID}::test_what_it_changes_there_is_in_no_note_that_another_process_goes_on_from",),
    ),
    Mutant(
        name="void: in a loop of the script's own a decision to stop is never undone",
        file=DATA,
        text="        return any(loader.is_awaited for loader in self._loaders if self._trains(loader))\n",
        fault="        return False\n",
        tests=(f"{VOID}::test_in_a_loop_of_its_own_a_decision_to_stop_is_undone_until_its_loader_goes_on",),
    ),
    Mutant(
        name="void: what a person has stopped goes on when its job goes back",
        file="ps_server/coordinator/jobs/loops.py",
        text="        if not self.for_good:\n",
        fault="        if True:\n",
        tests=(
            "tests/unit/ps_server/coordinator/test_rolled_back.py::test_what_a_person_has_stopped_stays_stopped_and_what_a_worker_has_does_not",
        ),
    ),
    Mutant(
        name="void: what a worker has stopped stays so when its job goes back",
        file="ps_server/coordinator/jobs/loops.py",
        text="        if not self.for_good:\n",
        fault="        if False:\n",
        tests=(
            "tests/unit/ps_server/coordinator/test_rolled_back.py::test_what_a_person_has_stopped_stays_stopped_and_what_a_worker_has_does_not",
        ),
    ),
    Mutant(
        name="carriers: a shard that breaks off once as it is reached over the wanted carrier is never reached",
        file="ps_worker/transport/carrier_choice.py",
        text="TRIES = 3 ",
        fault="TRIES = 1 ",
        tests=(
            "tests/component/connections/test_carrier_choice.py::test_a_shard_that_breaks_off_as_it_is_reached_over_the_wanted_carrier_is_reached_later",
        ),
    ),
    Mutant(
        name="void: a later loader of the body passes for that in which the snapshot was",
        file=DATA,
        text=" and (not self._at or self._numbers[loader] in self._at):\n",
        fault=":\n",
        tests=(f"{VOID}::test_a_later_loader_of_the_body_does_not_pass_for_that_in_which_the_snapshot_was",),
    ),
    Mutant(
        name="void: a loader that was left by break is one that is trained on",
        file=DATA,
        text="            if loader.is_under_way and self._dealers",
        fault="            if self._dealers",
        tests=(f"{VOID}::test_a_validation_behind_the_epoch_that_is_gone_back_into_does_not_pass_for_that",),
    ),
    Mutant(
        name="void: who stands behind its loops, as in the snapshot, is sent back",
        file=DATA,
        text="            self._back_to = None  # it is there\n",
        fault="            pass\n",
        tests=(f"{VOID}::test_a_script_that_trains_behind_its_loops_goes_on_there",),
    ),
    Mutant(
        name="void: who was told by its callback has its own steps dropped",
        file=DATA,
        text="        if not self._training:\n            self._rewound = False\n",
        fault="        pass\n",
        tests=(
            f"{VOID}::test_one_whose_batches_are_its_own_there_does_not_step_for_ever[who has a callback]",
        ),
    ),
    Mutant(
        name="void: an iteration that gives nothing is begun for ever",
        file=DATA,
        text="            return True\n        self.drop()\n",
        fault="            return True\n",
        tests=(f"{VOID}::test_a_pass_that_never_ends_over_a_loader_that_gives_nothing_is_told",),
    ),
    Mutant(
        name="void: a gradient that is left over is in the first step that counts",
        file="ps_worker/step/batch_in_hand.py",
        text="        self._void, self._replays = self._is_rewound(), False\n",
        fault="        self._void = self._replays = False\n",
        tests=(f"{VOID}::test_a_gradient_that_is_left_over_there_is_in_no_step_that_counts",),
    ),
    Mutant(
        name="void: a validation that hears of a going back has no batch",
        file="ps_worker/data/loader.py",
        text="                    if not (goes_on and begins and self._listener.current_epoch == start.epoch):\n",
        fault="                    if True:\n",
        tests=(f"{VOID}::test_a_validation_that_hears_of_it_itself_is_whole",),
    ),
    Mutant(
        name="void: a pass of what is undone is dealt as one of the job",
        file="ps_worker/data/epoch_dealer.py",
        text="        if self._steps.is_rewound():\n",
        fault="        if False:\n",
        tests=(
            "tests/unit/ps_worker/data/test_epoch_dealer.py::test_a_pass_that_is_void_is_dealt_without_a_word_to_the_coordinator",
            f"{VOID}::test_a_validation_there_takes_no_share_of_the_epoch_that_the_script_comes_to",
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
