"""Faults between threads: of tables, of background tasks, of what is read without its lock."""

from .mutant import Mutant

FIGURES = "tests/unit/ps_server/shard/partition/test_cell_figures.py"
TASKS = "tests/component/connections/test_watched_tasks.py"
WATCHED = "tests/unit/ps_wire/process/test_watched.py"
WINDOWS = "tests/unit/ps_worker/memory/test_mapped_windows.py"
TABLE = "tests/component/tables/test_table_threads.py"
ONE_THREAD = "tests/unit/ps_worker/process/test_one_thread.py"

IN_FLIGHT = "tests/unit/ps_worker/exchange/test_in_flight.py"
INTERRUPTED = "tests/component/tables/test_interrupted_tables.py"
BROKEN_OFF = f"{INTERRUPTED}::test_a_push_that_was_broken_off_holds_up_no_finish_and_no_leave"

MUTANTS = (
    Mutant(
        name="a pull asks while the answer before it is still copied",
        file="ps_worker/exchange/in_flight.py",
        text="                self._changed.wait_for(lambda: not self._reading)",
        fault="                pass",
        tests=(
            f"{TABLE}::test_a_pull_waits_until_what_was_answered_before_is_copied",
            f"{TABLE}::test_weights_that_are_read_at_the_end_wait_for_a_copy_too",
        ),
    ),
    Mutant(
        name="an answer's weights are nobody's while they are copied",
        file="ps_worker/exchange/in_flight.py",
        text="        if due:\n            self._reading.add(threading.get_ident())\n        return due\n",
        fault="        return due\n",
        tests=(f"{TABLE}::test_a_pull_waits_until_what_was_answered_before_is_copied",),
    ),
    Mutant(
        name="flat weights stay taken while a future's callbacks run",
        file="ps_worker/exchange/in_flight.py",
        text="""        finally:
            self._end_reading()
        for _, then in due:
            then(None)
""",
        fault="""            for _, then in due:
                then(None)
        finally:
            self._end_reading()
""",
        tests=(f"{TABLE}::test_a_done_callback_finds_the_flat_memory_free",),
    ),
    Mutant(
        name="who was interrupted while it read weights waits for itself when it asks for others",
        file="ps_worker/exchange/in_flight.py",
        text="                self._reading.discard(threading.get_ident())  # it does not",
        fault="                pass  # it does not",
        tests=(f"{IN_FLIGHT}::test_wherever_ctrl_c_lands_in_a_call_that_reads_the_next_ones_are_asked_for",),
    ),
    Mutant(
        name="a step of a table that was broken off as it left is taken once more",
        file="ps_worker/table.py",
        text="        step, exchange = self._sending, self._exchange\n",
        fault="        step, exchange = None, self._exchange\n",
        tests=(BROKEN_OFF,),
    ),
    Mutant(
        name="who is asked for a step of a table that was broken off takes one more",
        file="ps_worker/table.py",
        text="        if self.step == step:  # else",
        fault="        if (step := self.step) >= 0:  # else",
        tests=(f"{INTERRUPTED}::test_a_step_that_was_broken_off_is_the_one_that_others_ask_for",),
    ),
    Mutant(
        name="a finish waits for a table's push that was never sent",
        file="ps_worker/steps.py",
        text="        for table in self.tables:\n            self._settle(table)\n        if self.link.ended:",
        fault="        if self.link.ended:",
        tests=(BROKEN_OFF,),
    ),
    Mutant(
        name="a pull waits for one that was never sent",
        file="ps_worker/table.py",
        text="        self._exchange.forget_broken_off()\n",
        fault="",
        tests=(f"{INTERRUPTED}::test_wherever_ctrl_c_lands_in_push_pull_or_abstain_the_next_push_counts",),
    ),
    Mutant(
        name="an answer writes the step, on its connection's thread",
        file="ps_worker/table.py",
        text="        exchange = self._exchange\n        views = exchange.weights.views\n",
        fault="""        exchange = self._exchange
        self._taken = exchange.in_flight.step_of(self._taken)
        views = exchange.weights.views
""",
        tests=(f"{TABLE}::test_a_step_is_taken_by_the_script_alone",),
    ),
    Mutant(
        name="a copy that fails ends the connection, and its future is never done",
        file="ps_worker/table.py",
        text="            self._failed = error\n",
        fault="            raise\n",
        tests=(f"{TABLE}::test_a_copy_that_cannot_be_made_is_the_error_of_who_asked",),
    ),
    Mutant(
        name="what is asked for is listed without the lock",
        file="ps_worker/exchange/in_flight.py",
        text="nothing=nothing)\n            return [self._asked(shard, now) for shard in range(self._num_shards)]\n",
        fault="nothing=nothing)\n        return [self._asked(shard, now) for shard in range(self._num_shards)]\n",
        tests=(f"{TABLE}::test_what_is_asked_for_does_not_change_while_the_question_is_written",),
    ),
    Mutant(
        name="a second thread waits inside a worker instead of being refused",
        file="ps_worker/process/one_thread.py",
        text="            (held,) = map(self._lock.acquire, (False,))\n",
        fault="            held = self._lock.acquire()\n",
        tests=(f"{TABLE}::test_a_second_thread_inside_a_worker_is_refused_by_name",),
    ),
    Mutant(
        name="who is interrupted on the way into a worker is inside for good",
        file="ps_worker/process/one_thread.py",
        text="        except BaseException:  # Ctrl-C on the way in\n",
        fault="        except UsageError:\n",
        tests=(f"{ONE_THREAD}::test_wherever_ctrl_c_lands_on_the_way_in_or_out_another_thread_may_enter",),
    ),
    Mutant(
        name="who is interrupted just as it takes a worker's lock is inside for good",
        file="ps_worker/process/one_thread.py",
        text="            (held,) = map(self._lock.acquire, (False,))\n",
        fault="            held = self._lock.acquire(False)\n",
        tests=(f"{ONE_THREAD}::test_whenever_a_signal_comes_another_thread_may_enter",),
    ),
    Mutant(
        name="who is interrupted on the way out of a worker is inside for good",
        file="ps_worker/process/one_thread.py",
        text="""    __exit__ = property(attrgetter("_lock.__exit__"))
""",
        fault="""    def __exit__(self, *_: object) -> None:
        self._lock.release()
""",
        tests=(f"{ONE_THREAD}::test_wherever_ctrl_c_lands_on_the_way_in_or_out_another_thread_may_enter",),
    ),
    Mutant(
        name="a callback of a future may push",
        file="ps_worker/process/one_thread.py",
        text="    _thread.answers = True\n",
        fault="    _thread.answers = False\n",
        tests=(f"{TABLE}::test_a_callback_of_a_future_may_not_push_or_pull",),
    ),
    Mutant(
        name="a connection's thread does not say that it receives answers",
        file="ps_worker/transport/connection.py",
        text="        receives_answers()\n",
        fault="",
        tests=(f"{TABLE}::test_a_callback_of_a_future_may_not_push_or_pull",),
    ),
    Mutant(
        name="each table of a worker has its own thread",
        file="ps_worker/table.py",
        text="        with self._host.inside:\n            if self._host.announce()",
        fault="        with type(self._host.inside)():\n            if self._host.announce()",
        tests=(f"{TABLE}::test_tables_of_one_worker_are_one",),
    ),
    Mutant(
        name="a partition's figures are read without its lock",
        file="ps_server/shard/partition/cell.py",
        text="""        with self.lock:
            machine = self.machine
""",
        fault="""        if self.lock:
            machine = self.machine
""",
        tests=(FIGURES,),
    ),
    Mutant(
        name="what ends a thread is not logged",
        file="ps_wire/process/watched.py",
        text="    except Exception as error:  # noqa: BLE001 - whatever it is, somebody has to hear of it\n",
        fault="    except OSError as error:\n",
        tests=(f"{WATCHED}::test_a_thread_that_ends_by_a_bug_is_logged_and_told",),
    ),
    Mutant(
        name="a task without an end ends with its first bug",
        file="ps_wire/process/watched.py",
        text="                await pause(AGAIN_S)\n",
        fault="                return None\n",
        tests=(f"{WATCHED}::test_a_task_without_an_end_begins_again_until_it_returns", TASKS),
    ),
    Mutant(
        name="a thread without an end ends with its first bug",
        file="ps_wire/process/watched.py",
        text="        while not _once(name, run, log, None, again=True):\n            pause(AGAIN_S)\n",
        fault="        _once(name, run, log, None, again=True)\n",
        tests=(f"{TASKS}::test_connections_are_accepted_after_a_bug",),
    ),
    Mutant(
        name="nobody hears of a task that a bug has ended",
        file="ps_wire/process/watched.py",
        text="    outcome(name, made, log=log, failed=failed)\n",
        fault="",
        tests=(f"{TASKS}::test_a_bug_while_a_worker_is_heard_is_said_to_it",),
    ),
    Mutant(
        name="one job that cannot be looked at keeps the leases of others",
        file="ps_server/coordinator/lease_watch.py",
        text="except Exception as error:  # noqa: BLE001 - the leases of other jobs end all the same\n",
        fault="except KeyError as error:\n",
        tests=(f"{TASKS}::test_leases_and_periodic_snapshots_go_on_after_a_bug",),
    ),
    Mutant(
        name="one job that cannot be looked at keeps others from their snapshots",
        file="ps_server/coordinator/snapshots/scheduler.py",
        text="except Exception as error:  # noqa: BLE001 - other jobs have theirs all the same\n",
        fault="except PsError as error:\n",
        tests=(f"{TASKS}::test_leases_and_periodic_snapshots_go_on_after_a_bug",),
    ),
    Mutant(
        name="a bug in an order leaves the job's next orders waiting for ever",
        file="ps_server/coordinator/jobs/runner.py",
        text="except Exception as error:  # noqa: BLE001 - else nothing would follow, and all would wait\n",
        fault="except OSError as error:\n",
        tests=(f"{TASKS}::test_a_bug_in_an_order_is_the_error_of_who_waits_for_it",),
    ),
    Mutant(
        name="a connection's thread ends, and its exchanges wait",
        file="ps_worker/transport/connection.py",
        text="self._run, log=logger, failed=self._fail)",
        fault="self._run, log=logger)",
        tests=(f"{TASKS}::test_a_bug_on_a_thread_of_a_worker_ends_its_waits_by_name",),
    ),
    Mutant(
        name="a member's thread ends, and its worker waits",
        file="ps_worker/membership/member_stream.py",
        text="self._run, log=logger, failed=self._failed)",
        fault="self._run, log=logger)",
        tests=(f"{TASKS}::test_a_bug_on_a_thread_of_a_worker_ends_its_waits_by_name",),
    ),
    Mutant(
        name="an evicted worker's last answers reach the tables of the next incarnation",
        file="ps_worker/membership/incarnation.py",
        text="            connection.wait_received(RECEIVED_LIMIT_S)\n",
        fault="            del connection\n",
        tests=(f"{TABLE}::test_an_answer_that_is_being_taken_when_a_worker_joins_again_is_waited_for",),
    ),
    Mutant(
        name="two shards' halves are laid without a lock",
        file="ps_worker/memory/table_memory.py",
        text="""        with self._lock:
            if self._laid.get(shard) == inode""",
        fault="""        if self._lock:
            if self._laid.get(shard) == inode""",
        tests=(f"{WINDOWS}::test_connections_that_lay_at_one_time_are_all_looked_at",),
    ),
    Mutant(
        name="halves are laid after sharing has ended",
        file="ps_worker/memory/table_memory.py",
        text=" == inode or not self._halves:\n",
        fault=" == inode:\n",
        tests=(f"{WINDOWS}::test_what_is_laid_after_sharing_has_ended_changes_nothing",),
    ),
    Mutant(
        name="hooks of two devices send at one time",
        file="ps_worker/optimizer/table_gradients.py",
        text="            with self._sending, suppress(Evicted):  # step() joins again\n",
        fault="            with suppress(Evicted):\n",
        tests=(f"{TABLE}::test_hooks_of_several_devices_send_one_after_the_other",),
    ),
)
