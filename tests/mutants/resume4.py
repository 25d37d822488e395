"""Faults of what a worker gets that takes steps again."""

from .mutant import Mutant

AGAIN = "tests/unit/ps_worker/data/test_steps_again.py"
BOOK = "ps_server/coordinator/epochs/epoch_book.py"
EPOCHS = "tests/unit/ps_server/coordinator/epochs/test_epoch_book.py"
FORK = "tests/unit/ps_lab/cluster/test_fork_server.py"
LOADER = "ps_worker/data/loader.py"
LIVE = "tests/unit/ps_server/coordinator/test_live_extras.py"
RESUME = "tests/component/snapshots/test_resume.py"
RESUMPTION = "tests/unit/ps_worker/job/test_resumption.py"
NOTING = "tests/unit/ps_worker/membership/test_noting.py"
POSITION = "ps_worker/data/position.py"
WAITING = "tests/component/connections/test_waiting.py"
FAREWELL = "tests/unit/ps_worker/process/test_farewell.py"
HURRIED = "tests/component/members/test_hurried.py"
HURRIED_ENDS = "tests/faults/test_hurried_ends.py"
UNTRAINED = "tests/component/members/test_untrained.py"
BEHIND = "tests/unit/ps_worker/data/test_position.py"

MUTANTS = (
    Mutant(
        name="an epoch that a fast worker began behind the cut is dealt by a snapshot to who was there by then",
        file=BOOK,
        text="        if epoch.begun and not begun:\n",
        fault="        if False:\n",
        tests=(
            f"{EPOCHS}::test_an_epoch_that_was_begun_behind_the_cut_is_dealt_to_who_is_there_when_the_job_goes_on",
        ),
    ),
    Mutant(
        name="an epoch whose rest was taken behind the cut is not in the snapshot",
        file=BOOK,
        text="                if behind and not piece.left_over:\n",
        fault="                if behind:\n",
        tests=(f"{EPOCHS}::test_an_epoch_is_kept_of_which_one_that_came_again_took_the_rest_behind_the_cut",),
    ),
    Mutant(
        name="a share to validate on that was begun behind the cut is at its end in the snapshot",
        file=BOOK,
        text=" and not behind:\n",
        fault=":\n",
        tests=(
            f"{EPOCHS}::test_a_share_that_was_begun_behind_the_cut_is_begun_again_and_one_before_it_is_not",
        ),
    ),
    Mutant(
        name="again: who has more steps behind it than its share has batches leaves the rest of the epoch",
        file=LOADER,
        text="        while asks and self._now is not None and not self._moved:\n",
        fault="        while asks and not self._dealer.behind and self._now is not None and not self._moved:\n",
        tests=(f"{AGAIN}::test_while_there_is_more_of_an_epoch_all_steps_behind_are_taken_in_it",),
    ),
    Mutant(
        name="again: what counts is handed out while steps are behind",
        file=LOADER,
        text="            if here and not (yield from self._catch_up(start.epoch, mine, dealt=piece is not None)):\n",
        fault="            if False:\n",
        tests=(f"{AGAIN}::test_while_there_is_more_of_an_epoch_all_steps_behind_are_taken_in_it",),
    ),
    Mutant(
        name="again: who is behind at the end of the last epoch leaves it to one that never comes",
        file=LOADER,
        text="            here = piece is not None or (behind and self._dealer.newest)\n",
        fault="            here = piece is not None\n",
        tests=(
            f"{AGAIN}::test_where_nothing_more_is_there_all_steps_are_taken_in_an_epoch_that_nobody_is_past",
            f"{RESUME}::test_who_comes_at_the_end_of_the_last_epoch_takes_all_of_its_steps_again",
        ),
    ),
    Mutant(
        name="again: all steps behind are taken in an epoch, though others are past it",
        file=LOADER,
        text="            here = piece is not None or (behind and self._dealer.newest)\n",
        fault="            here = piece is not None or behind\n",
        tests=(f"{AGAIN}::test_where_nothing_more_is_there_steps_go_on_in_the_next_epoch",),
    ),
    Mutant(
        name="again: what others leave while one takes steps again in the last epoch stays unused",
        file=LOADER,
        text="            asks = here and piece is None  # others may have left something meanwhile\n",
        fault="            asks = False\n",
        tests=(
            f"{AGAIN}::test_where_nothing_more_is_there_all_steps_are_taken_in_an_epoch_that_nobody_is_past",
        ),
    ),
    Mutant(
        name="again: an epoch of a loader to validate on is taken for one of steps",
        file=BOOK,
        text="        begun = [key for key in self._epochs if self.trains(key[0])]\n",
        fault="        begun = [*self._epochs]\n",
        tests=(f"{EPOCHS}::test_the_newest_epoch_is_that_which_was_begun_last_of_the_loaders_that_train",),
    ),
    Mutant(
        name="again: workers are not told whether anybody is past their epoch",
        file="ps_server/coordinator/service.py",
        text="            newest=shares.is_newest(loader, request.epoch),\n",
        fault="",
        tests=(f"{RESUME}::test_who_comes_at_the_end_of_the_last_epoch_takes_all_of_its_steps_again",),
    ),
    Mutant(
        name="again: a loader to validate on is gone through for steps that nobody takes of it",
        file=LOADER,
        text="        return stepped or not begun\n",
        fault="        return True\n",
        tests=(f"{AGAIN}::test_a_loader_of_which_no_steps_are_made_gives_its_share_once_and_asks_for_none",),
    ),
    Mutant(
        name="again: who is sent to another epoch while it takes steps again asks for more of this one",
        file=LOADER,
        text="while asks and self._now is not None and not self._moved:",
        fault="while asks and not self._moved:",
        tests=(
            f"{AGAIN}::test_a_script_that_is_sent_to_another_epoch_meanwhile_asks_for_nothing_of_this_one",
        ),
    ),
    Mutant(
        name="again: a joiner that was evicted is told what is older than where it enters",
        file="ps_server/coordinator/live_extras.py",
        text="        if (over := runner.job.over(joiner.worker, joiner.incarnation)) is not None:\n            raise over\n",
        fault="",
        tests=(f"{LIVE}::test_a_joiner_that_is_evicted_while_it_waits_for_a_position_gets_none",),
    ),
    Mutant(
        name="again: a joiner hears of one that had come less far, before shards have said how far the last one had",
        file="ps_server/coordinator/live_extras.py",
        text="                await runner.settle()  #",
        fault="                pass  #",
        tests=(
            f"{LIVE}::test_where_nobody_trains_any_more_a_joiner_hears_of_who_was_evicted_last_how_many_steps_count",
        ),
    ),
    Mutant(
        name="again: who joins again before its table has started goes on with what it had been told",
        file="ps_worker/job/resumption.py",
        text=" or self.state) and not joined.ended:\n",
        fault=") and not joined.ended:\n",
        tests=(
            f"{RESUMPTION}::test_who_was_evicted_before_its_table_had_started_asks_again_where_the_job_is",
        ),
    ),
    Mutant(
        name="again: steps that others have taken since a worker went are left out",
        file=POSITION,
        text="mine if went_on or not counted else counted",
        fault="counted or mine",
        tests=(f"{BEHIND}::test_in_lockstep_steps_between_a_position_and_where_it_enters_are_taken_again",),
    ),
    Mutant(
        name="again: a step that closed with a part of a push is taken again",
        file=POSITION,
        text="counted.get(table, 0) + 1 for",
        fault="counted.get(table, 0) for",
        tests=(f"{BEHIND}::test_in_lockstep_steps_between_a_position_and_where_it_enters_are_taken_again",),
    ),
    Mutant(
        name="again: a position is noted where a batch is handed out that was read already",
        file=LOADER,
        text="            if not self._reads_here:\n                self._listener.begin_batch()\n            self._listener.hand_out",
        fault="            self._listener.begin_batch()\n            self._listener.hand_out",
        tests=(f"{RESUME}::test_a_note_has_the_generators_as_they_were_before_its_batch_was_read",),
    ),
    Mutant(
        name="again: a note that comes late is put as who the worker is by then",
        file="ps_worker/membership/noting.py",
        text="partial(self._put_one, note, self._put_now())",
        fault="lambda: self._put_one(note, self._put_now())",
        tests=(f"{NOTING}::test_a_note_that_is_put_late_is_put_as_the_incarnation_that_made_it",),
    ),
    Mutant(
        name="again: after Ctrl-C the interpreter looks through all that a script has imported",
        file="ps_worker/cli.py",
        text="            gc.freeze()\n",
        fault="            pass\n",
        tests=("tests/unit/ps_worker/test_run_module.py",),
    ),
    Mutant(
        name="again: a fork server that nobody needs takes torch apart first",
        file="ps_lab/cluster/fork_server.py",
        text="    os._exit(0)  # the command waits",
        fault="    # the command waits",
        tests=(f"{FORK}::test_who_has_closed_it_does_not_wait_until_torch_is_taken_apart",),
    ),
    Mutant(
        name="again: who is evicted pushes a step of which nobody knows the samples",
        file="ps_worker/job/job_link.py",
        text="            self.presence.exchanges.fail(error)\n            raise\n",
        fault="            raise\n",
        tests=(f"{RESUME}::test_of_who_is_evicted_no_step_counts_whose_samples_nobody_knows",),
    ),
    Mutant(
        name="again: before the first step what one leaves over to validate on goes to another",
        file=BOOK,
        text="own=not trains):",
        fault="own=False):",
        tests=(f"{EPOCHS}::test_who_comes_again_before_the_first_step_of_all_has_its_own_share_again",),
    ),
    Mutant(
        name="again: who was evicted before the first step of all has nothing of that epoch any more",
        file=BOOK,
        text=" and (loader in self._training or not self._training)\n",
        fault=" and loader in self._training\n",
        tests=(f"{EPOCHS}::test_who_is_alone_and_comes_again_before_its_first_step_has_its_share_again",),
    ),
    Mutant(
        name="again: with a dead shard workers that wait name each other",
        file="ps_worker/job/presence.py",
        text="        return lost_shards(self.connections) or self.membership.whom()\n",
        fault="        return self.membership.whom()\n",
        tests=(f"{WAITING}::test_who_waits_while_a_shard_is_dead_names_the_shard_and_no_worker",),
    ),
    Mutant(
        name="again: with a dead shard workers that wait for weights name each other",
        file="ps_worker/job/presence.py",
        text="        whom = lost_shards(self.connections)\n        if not whom:\n",
        fault="        whom: list[str] = []\n        if not whom:\n",
        tests=(f"{WAITING}::test_who_waits_while_a_shard_is_dead_names_the_shard_and_no_worker",),
    ),
    Mutant(
        name="again: a shard that hangs is taken for one that answers, since its sockets stay",
        file="ps_worker/transport/connection.py",
        text="        except ServerUnreachable:\n            return True\n        except PsError:  # it",
        fault="        except PsError:  # it",
        tests=(f"{WAITING}::test_a_shard_whose_process_does_not_answer_is_lost_though_its_connection_stays",),
    ),
    Mutant(
        name="again: a shard that refuses to answer is taken for a dead one",
        file="ps_worker/transport/connection.py",
        text="        except ServerUnreachable:\n            return True\n        except PsError:  # it",
        fault="        except PsError:\n            return True\n        except OSError:  # it",
        tests=(f"{WAITING}::test_a_shard_whose_process_does_not_answer_is_lost_though_its_connection_stays",),
    ),
    Mutant(
        name="again: after Ctrl-C servers that do not answer are waited for",
        file="ps_worker/transport/lost_shards.py",
        text="    return Farewell(farewell.LOST_LIMIT_S if lost else None)\n",
        fault="    return Farewell()\n",
        tests=(
            f"{HURRIED}::test_after_ctrl_c_nothing_is_waited_for_long_that_does_not_come",
            f"{HURRIED_ENDS}::test_ctrl_c_ends_a_worker_though_its_servers_do_not_answer",
        ),
    ),
    Mutant(
        name="again: after Ctrl-C calls that are under way are waited for",
        file="ps_worker/transport/connection.py",
        text="        self._thread.join(farewell.left_s(drain_s))\n        if self._watcher",
        fault="        self._thread.join(drain_s)\n        if self._watcher",
        tests=(f"{HURRIED}::test_after_ctrl_c_nothing_is_waited_for_long_that_does_not_come",),
    ),
    Mutant(
        name="again: after Ctrl-C the word of a coordinator that is gone is waited for",
        file="ps_worker/membership/membership.py",
        text="farewell.left_s(LEAVE_LIMIT_S)\n            )\n        self._stream.close()\n",
        fault="LEAVE_LIMIT_S\n            )\n        self._stream.close()\n",
        tests=(f"{HURRIED}::test_after_ctrl_c_nothing_is_waited_for_long_that_does_not_come",),
    ),
    Mutant(
        name="again: after Ctrl-C at the end of a script without a block servers are waited for",
        file="ps_worker/worker.py",
        text="hurried=self._interrupted or stopping.interrupted())\n",
        fault="hurried=self._interrupted)\n",
        tests=(f"{HURRIED}::test_after_ctrl_c_nothing_is_waited_for_long_that_does_not_come",),
    ),
    Mutant(
        name="again: each wait of a worker that leaves in a hurry has the time of all",
        file="ps_worker/process/farewell.py",
        text="        return min(limit_s, max(self._until_s - self._clock(), 0.0))\n",
        fault="        return min(limit_s, 0.05)\n",
        tests=(f"{FAREWELL}::test_all_waits_together_take_no_longer_than_they_may",),
    ),
    Mutant(
        name="again: the end of a job without a table is said to be a broken connection",
        file="ps_worker/job/job_link.py",
        text="                        connection.quiet()\n",
        fault="                        pass\n",
        tests=(f"{UNTRAINED}::test_the_end_of_a_job_without_a_table_is_not_said_to_be_a_broken_connection",),
    ),
    Mutant(
        name="again: an epoch that was asked for between two is begun, though the loop goes elsewhere",
        file="ps_worker/job/job_link.py",
        text="                if not self._listener.arrived():  # else the job would have an epoch that nobody begins\n",
        fault="                if False:\n",
        tests=(
            "tests/component/snapshots/test_loops.py::test_an_epoch_that_was_asked_for_and_not_begun_is_none_that_a_job_ends_after",
        ),
    ),
)
