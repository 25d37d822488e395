"""Faults in what is bounded, and at the edges of starts: generations, memory, hand-offs, tokens, orders."""

from tests.mutants.mutant import Mutant

GENERATIONS = "tests/unit/ps_server/coordinator/fleet/test_generations.py"
ROLLED_BACK = "tests/unit/ps_server/coordinator/test_rolled_back.py"
SHARD = "tests/unit/ps_server/shard/test_shard.py"
GOING_BACK = "tests/component/snapshots/test_going_back.py"
HAND_OFF = "tests/unit/ps_server/shard/test_hand_off.py"
GARBAGE = "tests/unit/ps_server/shard/test_garbage.py"
CONNECTING = "tests/component/connections/test_connecting.py"
ROLLBACK = "tests/component/snapshots/test_rollback.py"
KEPT = "tests/unit/ps_server/shard/table/test_kept_hyperparameters.py"
TABLE = "tests/unit/ps_server/shard/table/test_table.py"
LANES = "tests/unit/ps_server/test_lanes.py"
BESIDE = "tests/unit/ps_server/coordinator/test_beside.py"
CALLS = "tests/unit/ps_server/coordinator/test_refused_calls.py"
SAID = "tests/unit/ps_server/coordinator/test_said.py"
MAILBOX = "tests/unit/ps_server/coordinator/jobs/test_mailbox.py"
PIECES = "tests/unit/ps_server/rpc/test_pieces.py"
PAST_16_BITS = f"{ROLLBACK}::test_a_service_goes_on_past_65535_generations"

MUTANTS = (
    Mutant(
        name="generations: they end with 16 bits",
        file="ps_wire/frames/frame.py",
        text="MAX_GENERATION = (1 << 32) - 1  #",
        fault="MAX_GENERATION = (1 << 16) - 1  #",
        tests=(GENERATIONS, PAST_16_BITS),
    ),
    Mutant(
        name="generations: incarnations of a rollback begin as after the one before",
        file="ps_server/coordinator/recovery.py",
        text="    return generation * (MAX_GENERATION + 1)\n",
        fault="    return 1 << 48\n",
        tests=(GENERATIONS, PAST_16_BITS),
    ),
    Mutant(
        name="frame: the upper half of an incarnation is lost",
        file="ps_wire/frames/frame.py",
        text="        frame.generation,\n        frame.incarnation,\n",
        fault="        frame.generation,\n        frame.incarnation & 0xFFFFFFFF,\n",
        tests=("tests/unit/ps_wire/frames/test_frame.py",),
    ),
    Mutant(
        name="resume: an incarnation that nobody has given is taken",
        file="ps_server/coordinator/member_streams.py",
        text="        of_before = resume.incarnation <= runner.job.roster.floor  #",
        fault="        of_before = True  #",
        tests=(ROLLED_BACK,),
    ),
    Mutant(
        name="memory: a slice per worker is counted where pushes are applied as they come",
        file="ps_server/shard/memory_budget.py",
        text="        staged = num_workers if gate.aggregates else 0  #",
        fault="        staged = num_workers  #",
        tests=(SHARD,),
    ),
    Mutant(
        name="memory: what torch does not give is still counted",
        file="ps_server/shard/shard.py",
        text="        except Exception as error:\n            with self._jobs.lock:\n",
        fault="        except (OSError, MemoryError, OverflowError) as error:\n            with self._jobs.lock:\n",
        tests=(SHARD,),
    ),
    Mutant(
        name="recovery: a snapshot that does not fit counts as one that cannot be used",
        file="ps_server/coordinator/recovery.py",
        text="            except MemoryLimitExceeded as error:  # nothing is wrong with the snapshot\n",
        fault="            except AssertionError as error:\n",
        tests=(GOING_BACK,),
    ),
    Mutant(
        name="a job that does not fit is refused while shards still hold parts of it",
        file="ps_server/coordinator/recovery.py",
        text="            await self._give_up(name, error)\n        finally:\n",
        fault="            self._refused[name] = _Refusal(error, self._clock() + REFUSED_S)\n"
        "            await self._give_up(name, error)\n        finally:\n",
        tests=(
            f"{GOING_BACK}::test_a_snapshot_that_does_not_fit_into_the_memory_limit_is_kept_and_its_job_refused_by_name",
        ),
    ),
    Mutant(
        name="a job is refused for what a shard had before it came back",
        file="ps_server/coordinator/recovery.py",
        text="            if name not in self._pending:  # else a shard has come back meanwhile, and it is tried again\n",
        fault="            if True:\n",
        tests=(
            f"{GOING_BACK}::test_a_job_that_does_not_fit_is_tried_again_where_a_shard_comes_back_before_it_is_refused",
        ),
    ),
    Mutant(
        name="recovery: who comes again to a job that did not fit begins it anew",
        file="ps_server/coordinator/recovery.py",
        text="            del self._refused[job]\n            self._asleep.add(job)\n",
        fault="            del self._refused[job]\n",
        tests=(GOING_BACK,),
    ),
    Mutant(
        name="sync: a folder above that may not be opened is an error",
        file="ps_wire/snapshot/writing.py",
        text="        with suppress(PermissionError):\n",
        fault="        with suppress(KeyError):\n",
        tests=(GENERATIONS, HAND_OFF),
    ),
    Mutant(
        name="hand-off: it is gone though the process that could not set it aside never served",
        file="ps_server/shard/hand_off.py",
        text="                used.rename(self.path)\n",
        fault="",
        tests=(HAND_OFF,),
    ),
    Mutant(
        name="connection: a token of the process before is final over gRPC",
        file="ps_worker/transport/connection.py",
        text="raise _for_now(refusal(frame))",
        fault="raise refusal(frame)",
        tests=(CONNECTING,),
    ),
    Mutant(
        name="connection: a token of the process before is final over a socket",
        file="ps_worker/transport/carrier_choice.py",
        text="                except StrangerRefused:  #",
        fault="                except KeyError:  #",
        tests=(CONNECTING,),
    ),
    Mutant(
        name="follower: an order that is not known ends its stream",
        file="ps_server/agreement/messages.py",
        text='    if kind is None:\n        return ""\n',
        fault="",
        tests=("tests/unit/ps_server/shard/test_follower.py",),
    ),
    Mutant(
        name="tables: all objects are looked through again and again while one is opened",
        file="ps_server/shard/orders.py",
        text="    with garbage.PAUSE:\n",
        fault="    if True:\n",
        tests=(GARBAGE,),
    ),
    Mutant(
        name="tables: the collector is on again when the first of several is over",
        file="ps_server/shard/garbage.py",
        text="            if self._lasting == 0 and self._was_on:\n",
        fault="            if self._was_on:\n",
        tests=(GARBAGE,),
    ),
    Mutant(
        name="tables: one that others have made is compared on the event loop",
        file="ps_server/coordinator/member_streams.py",
        text="    return known[spec.number] if same else spec\n",
        fault="    return spec\n",
        tests=(GARBAGE,),
    ),
    Mutant(
        name="hyper-parameters: each rank's are kept, though all are alike",
        file="ps_server/shard/table/kept_hyperparameters.py",
        text="kept = self._sets.setdefault(hyper, _Set(hyper))\n",
        fault="kept = self._sets[hyper] = _Set(hyper)\n",
        tests=(f"{KEPT}::test_what_thousands_send_alike_is_kept_once_and_let_go_with_the_last_of_them",),
    ),
    Mutant(
        name="hyper-parameters: as many that differ as somebody likes",
        file="ps_server/shard/table/kept_hyperparameters.py",
        text="            if len(self._sets) > self._most:\n",
        fault="            if False:\n",
        tests=(f"{KEPT}::test_what_differs_is_refused_by_name_beyond_a_number_and_all_before_stays",),
    ),
    Mutant(
        name="hyper-parameters: what is refused is kept all the same",
        file="ps_server/shard/table/kept_hyperparameters.py",
        text="                self._let_go(self._kept[sender].pop(number))\n                raise",
        fault="                raise",
        tests=(f"{KEPT}::test_what_differs_is_refused_by_name_beyond_a_number_and_all_before_stays",),
    ),
    Mutant(
        name="hyper-parameters: what is sent again counts twice",
        file="ps_server/shard/table/kept_hyperparameters.py",
        text="            self._let_go(own.pop(number))\n",
        fault="            own.pop(number)\n",
        tests=(f"{KEPT}::test_one_that_is_sent_again_counts_once",),
    ),
    Mutant(
        name="hyper-parameters: of who is evicted they stay",
        file="ps_server/shard/table/table.py",
        text="limit, now_s) for cell in self._cells.values()]\n            self._hyper.forget(worker)\n",
        fault="limit, now_s) for cell in self._cells.values()]\n",
        tests=(f"{TABLE}::test_hyper_parameters_of_who_has_gone_are_kept_no_more",),
    ),
    Mutant(
        name="hyper-parameters: of who leaves they stay",
        file="ps_server/shard/table/table.py",
        text="cell.leave(worker, incarnation, now_s) for cell in self._cells.values()]\n"
        "            self._hyper.forget(worker)\n",
        fault="cell.leave(worker, incarnation, now_s) for cell in self._cells.values()]\n",
        tests=(f"{TABLE}::test_hyper_parameters_of_who_has_gone_are_kept_no_more",),
    ),
    Mutant(
        name="hyper-parameters: texts of any length",
        file="ps_wire/spec/table.py",
        text="if len(name) > MAX_TEXT or (isinstance(value, str) and len(value) > MAX_TEXT):",
        fault="if len(name) > MAX_TEXT:",
        tests=(f"{KEPT}::test_texts_are_short",),
    ),
    Mutant(
        name="memory: hyper-parameters that workers send are not counted",
        file="ps_server/shard/memory_budget.py",
        text="        total += set_bytes(hyper) * (1 + most_sets(hyper, num_workers))\n",
        fault="",
        tests=(SHARD,),
    ),
    Mutant(
        name="memory: parameters are not counted, nor their names",
        file="ps_server/shard/memory_budget.py",
        text="        total += sum(PARAMETER_BYTES + len(parameter.name) for parameter in spec.parameters)\n",
        fault="",
        tests=(SHARD,),
    ),
    Mutant(
        name="lanes: what a caller asked who has gone is begun",
        file="ps_server/lanes.py",
        text="        self._put(job, future, partial(copy_context().run",
        fault="        future.set_running_or_notify_cancel()\n        self._put(job, future, partial(copy_context().run",
        tests=(f"{LANES}::test_what_a_caller_asked_that_has_gone_meanwhile_is_not_begun",),
    ),
    Mutant(
        name="lanes: work does not know who asks",
        file="ps_server/lanes.py",
        text="partial(copy_context().run, work, *arguments)",
        fault="partial(work, *arguments)",
        tests=(f"{LANES}::test_an_event_loop_waits_for_work_that_is_done_in_the_context_of_who_asks",),
    ),
    Mutant(
        name="tables: those of one job are read on all threads of the loop",
        file="ps_server/coordinator/member_streams.py",
        text="spec = await self._fleet.beside.run(runner.job.name, _table_of, made, runner.job.specs)",
        fault="spec = await asyncio.to_thread(_table_of, made, runner.job.specs)",
        tests=(f"{BESIDE}::test_tables_that_one_job_makes_hold_up_no_other_job",),
    ),
    Mutant(
        name="snapshots: names for one job are looked for on all threads of the loop",
        file="ps_server/coordinator/snapshots/scheduler.py",
        text="return await self._fleet.beside.run(job, self._place().name_to_bring, job)",
        fault="return await asyncio.to_thread(self._place().name_to_bring, job)",
        tests=(f"{BESIDE}::test_names_of_snapshots_that_one_job_asks_for_hold_up_no_other_job",),
    ),
    Mutant(
        name="snapshots: one job has its own looked for on all threads of the loop",
        file="ps_server/coordinator/recovery.py",
        text="await self._fleet.beside.run(job, look)",
        fault="await asyncio.to_thread(look)",
        tests=(f"{BESIDE}::test_snapshots_that_one_job_looks_for_hold_up_no_other_job",),
    ),
    Mutant(
        name="log: a line for each snapshot that cannot be taken",
        file="ps_server/coordinator/snapshots/scheduler.py",
        text='            self._fleet.own.complaints.say(logging.ERROR, f"job {name}", said, error)\n',
        fault='            logging.getLogger("ps_server").error(said, error)\n',
        tests=(f"{CALLS}::test_snapshots_of_a_job_that_has_none_to_take",),
    ),
    Mutant(
        name="log: a line for each look at a snapshot that cannot be used",
        file="ps_server/coordinator/snapshots/saved_jobs.py",
        text='                self._complaints.say(logging.ERROR, f"job {job}", "%s", error)\n',
        fault='                logging.getLogger("ps_server").error("job %s: %s", job, error)\n',
        tests=(f"{CALLS}::test_snapshots_that_cannot_be_used",),
    ),
    Mutant(
        name="log: a line for each table that does not fit",
        file="ps_server/shard/memory_budget.py",
        text="        self.complaints.say(\n",
        fault="        Complaints().say(\n",
        tests=(f"{CALLS}::test_tables_that_do_not_fit",),
    ),
    Mutant(
        name="said: steps of tables that no job has",
        file="ps_server/coordinator/said.py",
        text="if len(said) > MAX_TABLES or max(said, default=0) >= MAX_TABLES:",
        fault="if len(said) > MAX_TABLES:",
        tests=(SAID,),
    ),
    Mutant(
        name="said: where somebody leaves is kept as it comes",
        file="ps_server/coordinator/member_streams.py",
        text="steps_by_table(message.leave.clocks), torn=torn",
        fault="dict(message.leave.clocks), torn=torn",
        tests=(SAID,),
    ),
    Mutant(
        name="said: any message may be as large as a table",
        file="ps_server/coordinator/member_streams.py",
        text="                    check_size(message)\n",
        fault="                    pass\n",
        tests=(SAID,),
    ),
    Mutant(
        name="said: a table with millions of empty entries waits to be read",
        file="ps_server/coordinator/member_streams.py",
        text="                    check_counts(made.table)\n",
        fault="",
        tests=(f"{SAID}::test_a_table_with_too_many_of_anything_does_not_wait_to_be_read",),
    ),
    Mutant(
        name="said: hyper-parameters of a table are not counted",
        file="ps_server/coordinator/said.py",
        text="    if pairs > MAX_PAIRS:\n",
        fault="    if False:\n",
        tests=(f"{SAID}::test_a_table_with_too_many_of_anything_does_not_wait_to_be_read",),
    ),
    Mutant(
        name="calls: any message may be of 16 MiB",
        file="ps_server/rpc/errors.py",
        text="if small and len(data) > MAX_REQUEST_BYTES:",
        fault="if False:",
        tests=("tests/unit/ps_server/rpc/test_errors.py",),
    ),
    Mutant(
        name="pieces: a large message is parsed in one call",
        file="ps_server/rpc/pieces.py",
        text="    if len(data) <= AT_ONCE_BYTES:\n",
        fault="    if True:\n",
        tests=(PIECES,),
    ),
    Mutant(
        name="pieces: the loop does not turn between them",
        file="ps_server/rpc/pieces.py",
        text="            await asyncio.sleep(0)\n",
        fault="            pass\n",
        tests=(PIECES,),
    ),
    Mutant(
        name="pieces: a part that is large is one piece",
        file="ps_server/rpc/pieces.py",
        text="        if part is not None:\n",
        fault="        if False:\n",
        tests=(PIECES,),
    ),
    Mutant(
        name="pieces: as many fields as fit into a message",
        file="ps_server/rpc/pieces.py",
        text="        if count > MAX_FIELDS:\n",
        fault="        if False:\n",
        tests=(f"{PIECES}::test_millions_of_empty_entries_are_refused_and_the_loop_has_turned_meanwhile",),
    ),
    Mutant(
        name="pieces: a list of numbers of any length",
        file="ps_server/rpc/pieces.py",
        text=" and nbytes > MAX_PACKED_BYTES:",
        fault=" and False:",
        tests=(f"{PIECES}::test_a_list_of_millions_of_numbers_is_refused",),
    ),
    Mutant(
        name="pieces: all callers take turns together",
        file="ps_server/rpc/pieces.py",
        text="    caller = gatekeeper.bound_to()\n",
        fault="    caller = None\n",
        tests=(
            f"{PIECES}::test_many_messages_of_one_job_take_turns_and_one_of_another_does_not_wait_for_them",
        ),
    ),
    Mutant(
        name="states: a message with millions of empty tensors waits",
        file="ps_server/shard/service.py",
        text="            if len(message.tensors) > MAX_TENSORS:",
        fault="            if False:",
        tests=("tests/unit/ps_server/shard/test_service.py",),
    ),
    Mutant(
        name="mailbox: what is never heard is kept for ever",
        file="ps_server/coordinator/jobs/mailbox.py",
        text="        if len(self._kept) >= MAX_UNHEARD:\n",
        fault="        if False:\n",
        tests=(
            f"{MAILBOX}::test_one_that_never_says_what_it_has_heard_is_refused_and_nothing_more_is_kept_for_it",
        ),
    ),
    Mutant(
        name="mailbox: more is kept behind the last word",
        file="ps_server/coordinator/jobs/mailbox.py",
        text="        if self._deaf:\n            return\n",
        fault="",
        tests=(
            f"{MAILBOX}::test_one_that_never_says_what_it_has_heard_is_refused_and_nothing_more_is_kept_for_it",
        ),
    ),
    Mutant(
        name="mailbox: who does not read is asked again and again",
        file="ps_server/coordinator/jobs/mailbox.py",
        text=" and self._stream.qsize() < MAX_UNHEARD:",
        fault=":",
        tests=(f"{MAILBOX}::test_who_does_not_read_its_stream_is_not_asked_for_ever",),
    ),
    Mutant(
        name="status: of all jobs where one is too large the workers are left out",
        file="ps_server/rpc/reply_size.py",
        text="while (size := entry.ByteSize()) > share and (count",
        fault="while (size := entry.ByteSize()) > 0 and (count",
        tests=("tests/unit/ps_server/rpc/test_reply_size.py",),
    ),
    Mutant(
        name="status: that of a job of many workers is not cut",
        file="ps_server/coordinator/service.py",
        text="        reply_size.cut(jobs)\n",
        fault="",
        tests=("tests/unit/ps_server/rpc/test_reply_size.py",),
    ),
    Mutant(
        name="tables: figures of those of a job of many workers are not cut",
        file="ps_server/shard/service.py",
        text="        reply_size.cut(tables)\n",
        fault="",
        tests=("tests/unit/ps_server/rpc/test_reply_size.py",),
    ),
    Mutant(
        name="epochs: answers of who has gone are kept for ever",
        file="ps_server/coordinator/epochs/epoch_book.py",
        text="            del self._answers[key]\n",
        fault="            pass\n",
        tests=("tests/unit/ps_server/coordinator/epochs/test_epoch_book.py",),
    ),
    Mutant(
        name="shared memory: places of all ranks' gradients are kept, however many",
        file="ps_server/shard/transport/shared_regions.py",
        text="            if self._has_room:\n                known[partition]",
        fault="            if True:\n                known[partition]",
        tests=("tests/unit/ps_server/shard/transport/test_shared_regions.py",),
    ),
    Mutant(
        name="shared memory: places that weights are copied to are kept, however many",
        file="ps_server/shard/transport/shared_regions.py",
        text="            if self._has_room:\n                self.copies[partition]",
        fault="            if True:\n                self.copies[partition]",
        tests=("tests/unit/ps_server/shard/transport/test_shared_regions.py",),
    ),
)
