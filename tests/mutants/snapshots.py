"""Faults of cuts, snapshots, what is durable, and what goes on from it."""

from .mutant import Mutant

CUT = "ps_server/shard/partition/cut.py"
CUT_CELL = "ps_server/shard/partition/cell_cut.py"
CUT_TABLE = "ps_server/shard/table/cuts.py"
SNAPSHOT_CUT = "ps_server/agreement/cut_points.py"
SAVING = "ps_server/shard/state/snapshot_writer.py"
TAKING = "ps_server/coordinator/snapshots/attempt.py"
TAKINGS = "ps_server/coordinator/snapshots/scheduler.py"
CELL = "ps_server/shard/partition/cell.py"
MACHINE = "ps_server/shard/partition/machine.py"
VALUES = "ps_server/shard/optimizer/partition_tensors.py"
CODEC = "ps_server/shard/state/codec.py"
STATES = "ps_server/coordinator/state_store.py"
WRITING = "ps_wire/snapshot/writing.py"
STORE = "ps_wire/snapshot/store.py"
RECOVERY = "ps_server/coordinator/recovery.py"
RESTORING = "ps_server/shard/restoring.py"
STREAMS = "tests/component/snapshots/test_rollback_streams.py"
WATCHED = "tests/component/connections/test_watched_tasks.py"
AGAIN_AND_AGAIN = (
    "tests/security/test_manifests.py"
    "::test_who_joins_again_and_again_has_a_snapshot_that_cannot_be_used_tried_only_so_often"
)
HAND_OFF = "ps_server/shard/hand_off.py"
CAPTURE = "ps_worker/membership/snapshot_promise.py"
CUTS = "tests/unit/ps_server/shard/partition/test_cut.py"
SNAPSHOT_CUTS = "tests/unit/ps_server/agreement/test_cut_points.py"
STORES = "tests/unit/ps_wire/snapshot/test_store.py"
SNAPSHOTS = "tests/component/snapshots/test_snapshots.py"
ROLLBACK = "tests/component/snapshots/test_rollback.py"
BROUGHT = "tests/component/snapshots/test_snapshot_places.py"
LAW_15 = "tests/component/snapshots/test_law_15.py"
TABLE_STATE = "tests/unit/ps_server/shard/state/test_table_state.py"

MUTANTS = (
    Mutant(
        name="cut: a push of the cut's step goes through",
        file=CUT,
        text="        return self._limits is None or step >= self._limits.get(worker, 0)\n",
        fault="        return self._limits is None or step > self._limits.get(worker, 0)\n",
        tests=(CUTS,),
    ),
    Mutant(
        name="cut: a pull goes before the push that it follows",
        file=CUT,
        text="return any(kept.pushes and (kept.worker, kept.step + 1) == (worker, step) for",
        fault="return any(False for",
        tests=(CUTS, "tests/unit/ps_server/shard/table/test_cuts.py"),
    ),
    Mutant(
        name="cut: the moment comes while a step is half pushed",
        file=CUT,
        text="        if self.key is None or limits is None or self.machine.staged:\n",
        fault="        if self.key is None or limits is None:\n",
        tests=("tests/unit/ps_server/shard/table/test_closing.py",),
    ),
    Mutant(
        name="cut: who has left is given again",
        file=CUT,
        text="        self._kept = [kept for kept in self._kept if kept.worker != worker]\n",
        fault="        pass\n",
        tests=(CUTS, SNAPSHOT_CUTS, "tests/unit/ps_server/shard/table/test_cuts.py"),
    ),
    Mutant(
        name="cut: what is kept goes on in reverse",
        file=CUT,
        text="        for index, kept in enumerate(self._kept):\n            if not self._waits(",
        fault="        for index, kept in [*enumerate(self._kept)][::-1]:\n            if not self._waits(",
        tests=(
            CUTS,
            "tests/unit/ps_server/shard/table/test_cuts.py",
        ),
        survives="What waits for an input of its own worker still does; between workers no order is promised.",
    ),
    Mutant(
        name="cut: the end of an older cut ends this one",
        file=CUT,
        text='        """The cut is over: what is kept may go on."""\n        if key == self.key:\n',
        fault='        """The cut is over: what is kept may go on."""\n        if key:\n',
        tests=(CUTS, "tests/unit/ps_server/shard/table/test_cuts.py"),
    ),
    Mutant(
        name="cut: a worker beyond the cut is not seen",
        file=CUT_CELL,
        text="        if beyond:\n            self.end(key)\n",
        fault="        if not limits:\n            self.end(key)\n",
        tests=("tests/unit/ps_server/shard/table/test_closing.py",),
    ),
    Mutant(
        name="cut: the limit of a cut that has ended ends the next one",
        file=CUT_TABLE,
        text="            if self._limit is None or self._limit[0] != key:\n                return\n",
        fault="            if self._limit is None:\n                return\n",
        tests=("tests/unit/ps_server/shard/table/test_cuts.py",),
    ),
    Mutant(
        name="cut: a hold never ends by itself",
        file=CUT_TABLE,
        text="        timer.start()\n",
        fault="",
        tests=("tests/unit/ps_server/shard/table/test_cuts.py",),
    ),
    Mutant(
        name="snapshot cut: workers of bsp are cut at different steps",
        file=SNAPSHOT_CUT,
        text="        return dict.fromkeys(asked, newest)\n",
        fault="        return dict(asked)\n",
        tests=(SNAPSHOT_CUTS,),
    ),
    Mutant(
        name="snapshot cut: a worker of ssp is cut farther behind than others can wait",
        file=SNAPSHOT_CUT,
        text="max(step, newest - 1 - gate.staleness)",
        fault="max(step, newest - 2 - gate.staleness)",
        tests=(SNAPSHOT_CUTS,),
    ),
    Mutant(
        name="snapshot cut: who had finished before its step of the cut takes it again",
        file=SNAPSHOT_CUT,
        text="    return over | {worker: steps[worker] for worker in captured}\n",
        fault="    return over | dict(steps)\n",
        tests=(SNAPSHOT_CUTS,),
    ),
    Mutant(
        name="snapshot: it keeps live weights",
        file=VALUES,
        text="            weights=self.now.clone(),\n",
        fault="            weights=self.now,\n",
        tests=(LAW_15,),
    ),
    Mutant(
        name="snapshot: the clocks are those of when it is written",
        file=MACHINE,
        text="            ledgers={worker: replace(ledger) for worker, ledger in self.ledgers.items()},\n",
        fault="            ledgers=self.ledgers,\n",
        tests=(LAW_15,),
    ),
    Mutant(
        name="snapshot: what is staged is read where a worker has it",
        file=CELL,
        text="            if going_on:  # in memory of ours: workers write in theirs once it is handed over\n",
        fault="            if False:\n",
        tests=("tests/unit/ps_server/shard/table/test_closing.py",),
    ),
    Mutant(
        name="snapshot: a restored partition begins at version 0",
        file=MACHINE,
        text="        self.version = state.version\n",
        fault="",
        tests=(TABLE_STATE,),
    ),
    Mutant(
        name="snapshot: a restored optimizer has no state",
        file=VALUES,
        text="        self.import_state(state.optimizer, state.parts)\n",
        fault="",
        tests=(TABLE_STATE,),
    ),
    Mutant(
        name="hand-off: an error that nobody has heard is forgotten",
        file=CELL,
        text="            self.owed.load(state.owed)\n",
        fault="",
        tests=("tests/unit/ps_server/shard/table/test_closing.py",),
    ),
    Mutant(
        name="hand-off: a step that was complete waits for another push",
        file=CELL,
        text="            self._carry_out(self.machine.resume(now_s), now_s)\n",
        fault="            pass\n",
        tests=(f"{TABLE_STATE}::test_a_step_that_is_complete_when_a_table_is_handed_off_closes_there",),
    ),
    Mutant(
        name="snapshot: parts that have counted different steps become one",
        file=CODEC,
        text="(kind, self._scalar(part, kind).item() if kind in scalars else None)",
        fault="(kind, None)",
        tests=(TABLE_STATE,),
    ),
    Mutant(
        name="snapshot: a part is taken from its beginning",
        file=CODEC,
        text="saved, offsets[index], at - offsets[index], until - offsets[index])",
        fault="saved, offsets[index], 0, until - at)",
        tests=(TABLE_STATE,),
    ),
    Mutant(
        name="snapshot: it is written before all partitions have come",
        file=SAVING,
        text="            if self._waiting or self._over:\n",
        fault="            if self._waiting > 1 or self._over:\n",
        tests=(SNAPSHOTS, LAW_15),
    ),
    Mutant(
        name="snapshot: one that was given up is written",
        file=SAVING,
        text="            if self._waiting or self._over:\n",
        fault="            if self._waiting:\n",
        tests=(SNAPSHOTS, "tests/component/snapshots/test_cut_limits.py"),
    ),
    Mutant(
        name="snapshot: an error of the thread that writes is nobody's",
        file=SAVING,
        text="            with self._lock:\n                self._error = error\n",
        fault="            pass\n",
        tests=(f"{SNAPSHOTS}::test_a_full_disk_costs_the_snapshot_and_nothing_else",),
    ),
    Mutant(
        name="snapshot: the manifest waits for no worker's state",
        file=TAKING,
        text='                await self._wait(self._all_captured, "workers to reach the cut")\n',
        fault="",
        tests=(SNAPSHOTS,),
    ),
    Mutant(
        name="snapshot: the manifest waits for one worker's state",
        file=TAKING,
        text="        return self._members.keys() <= self._writes.keys()\n",
        fault="        return bool(self._members.keys() & self._writes.keys())\n",
        tests=(SNAPSHOTS,),
    ),
    Mutant(
        name="snapshot: the manifest names only what is written already",
        file=TAKING,
        text="for worker in self._members if worker in self._writes)",
        fault="for worker in self._members if worker in self._writes and self._writes[worker].done())",
        tests=(SNAPSHOTS,),
    ),
    Mutant(
        name="snapshot: workers go on before the shards know the cut",
        file=TAKING,
        text="        await self._fleet.order(pb.Order(save_cut=save))\n        for worker",
        fault="        saving = asyncio.ensure_future(self._fleet.order(pb.Order(save_cut=save)))\n"
        "        saving.add_done_callback(lambda it: it.exception())\n        for worker",
        tests=(f"{SNAPSHOTS}::test_workers_go_on_when_all_shards_know_the_cut",),
    ),
    Mutant(
        name="snapshot: one that was given up leaves its files",
        file=TAKING,
        text="                await self._on_storage(self._store.delete, self._job.name, self._name)\n",
        fault="                pass\n",
        tests=(f"{SNAPSHOTS}::test_a_full_disk_costs_the_snapshot_and_nothing_else",),
    ),
    Mutant(
        name="snapshot: what workers answered to a cut of before counts",
        file=TAKING,
        text="        if number == self._number and self._members.get(member.worker) is member:\n"
        "            self._ready",
        fault="        if self._members.get(member.worker) is member:\n            self._ready",
        tests=(
            "tests/component/snapshots/test_cut_limits.py::test_an_answer_to_a_cut_of_before_does_not_count",
        ),
    ),
    Mutant(
        name="snapshots: one is due at every look",
        file=TAKINGS,
        text="            return step // every_steps > last_step // every_steps\n",
        fault="            return step // every_steps >= last_step // every_steps\n",
        tests=(f"{SNAPSHOTS}::test_none_is_taken_before_so_many_steps_have_been",),
    ),
    Mutant(
        name="snapshots: a job that goes back is still taken",
        file=TAKINGS,
        text='            self._attempts[job].disturb(SnapshotFailed(f"job {job} goes back to a snapshot"))\n',
        fault="            pass\n",
        tests=(
            "tests/component/snapshots/test_rollback.py",
            "tests/component/snapshots/test_going_back.py",
        ),
    ),
    Mutant(
        name="capture: a step that was promised not to begin begins",
        file=CAPTURE,
        text="        if self._cut is None and _any_reached(begins, self._promised):\n",
        fault="        if False:\n",
        tests=("tests/unit/ps_worker/membership/test_snapshot_promise.py",),
    ),
    Mutant(
        name="capture: it promises a step that has begun",
        file=CAPTURE,
        text="step + self._foretells + (known.get(table, -1) >= step)",
        fault="step + self._foretells",
        tests=("tests/unit/ps_worker/membership/test_snapshot_promise.py",),
    ),
    Mutant(
        name="capture: a worker waits for ever for a coordinator that is gone",
        file=CAPTURE,
        text="        if not self._changed.wait_for(known, PROMISE_LIMIT_S):\n",
        fault="        if not self._changed.wait_for(known, 1000 * PROMISE_LIMIT_S):\n",
        tests=("tests/unit/ps_worker/membership/test_snapshot_promise.py",),
    ),
    Mutant(
        name="capture: it is captured a step too late",
        file=CAPTURE,
        text="return all(clocks.get(table, step) >= step for table, step in self._cut.items())",
        fault="return all(clocks.get(table, step) > step for table, step in self._cut.items())",
        tests=("tests/unit/ps_worker/membership/test_snapshot_promise.py",),
    ),
    Mutant(
        name="writing: a file is not durable when it is there",
        file=WRITING,
        text="                os.fsync(self._file.fileno())\n",
        fault="",
        tests=(STORES,),
    ),
    Mutant(
        name="writing: the name of a file is not durable",
        file=WRITING,
        text="                sync_folder(self._target.parent, above=2)  # the snapshot's; the job's, and that of all\n",
        fault="                pass\n",
        tests=(STORES,),
    ),
    Mutant(
        name="writing: a file has its name before it is durable",
        file=WRITING,
        text=(
            "                os.fsync(self._file.fileno())\n"
            "                self._file.close()\n"
            "                self._unfinished.rename(self._target)\n"
        ),
        fault=(
            "                self._unfinished.rename(self._target)\n"
            "                os.fsync(self._file.fileno())\n"
            "                self._file.close()\n"
        ),
        tests=(STORES,),
    ),
    Mutant(
        name="writing: what could not be written is left",
        file=WRITING,
        text="                self._unfinished.unlink()\n",
        fault="                pass\n",
        tests=(STORES,),
    ),
    Mutant(
        name="writing: a part that the system took in part is taken as whole",
        file=WRITING,
        text="    while left:\n        left = left[file.write(left) :]\n",
        fault="    file.write(left)\n",
        tests=(STORES,),
    ),
    Mutant(
        name="store: what is kept is one too few",
        file=STORE,
        text="        kept, gone = complete[-count:], complete[:-count]\n",
        fault="        kept, gone = complete[1 - count:], complete[:1 - count]\n",
        tests=(STORES, SNAPSHOTS),
    ),
    Mutant(
        name="store: one that is being written is deleted with the old ones",
        file=STORE,
        text="if name not in complete and kept and name < kept[-1]]",
        fault="if name not in complete and kept]",
        tests=(STORES,),
    ),
    Mutant(
        name="store: a file of the right size is what was written",
        file=STORE,
        text="        if digest.hexdigest() != record.sha256:\n",
        fault="        if not digest.hexdigest():\n",
        tests=(STORES,),
    ),
    Mutant(
        name="store: a snapshot is deleted before its manifest",
        file=STORE,
        text="                self._files.rm_file(self._path(job, name, MANIFEST))\n",
        fault="                pass\n",
        tests=(STORES,),
    ),
    Mutant(
        name="store: the oldest comes first",
        file=STORE,
        text="in reversed(self.lasting(job) if lasting else self.names(job)):",
        fault="in self.lasting(job) if lasting else self.names(job):",
        tests=(STORES,),
    ),
    Mutant(
        name="states: limits are each state's own",
        file=STATES,
        text="self._kept_bytes(job, name) + self._arriving[job] + len(part) > MAX_JOB_BYTES:",
        fault="self._kept_bytes(job, name) + len(parts) + len(part) > MAX_JOB_BYTES:",
        tests=("tests/unit/ps_server/coordinator/test_state_store.py",),
    ),
    Mutant(
        name="states: what is noted takes the room of what is needed",
        file=STATES,
        text=" and (_kind(name) == NOTED) == noted\n",
        fault="\n",
        tests=(
            "tests/unit/ps_server/coordinator/test_state_store.py::test_what_workers_note_takes_no_room_from_what_is_needed",
        ),
    ),
    Mutant(
        name="states: a worker puts what another one captured",
        file=STATES,
        text="        if kind == SAVED or (kind in (CAPTURED, NOTED) and number != str(worker)):\n",
        fault="        if kind == SAVED:\n",
        tests=("tests/unit/ps_server/coordinator/test_state_store.py",),
    ),
    Mutant(
        name="states: one that did not come whole is kept",
        file=STATES,
        text="            self._check_names(job, name)\n            yield receive\n",
        fault="            self._check_names(job, name)\n            try:\n                yield receive\n"
        "            except BaseException:\n                self.put(job, name, bytes(parts))\n"
        "                raise\n",
        tests=("tests/unit/ps_server/coordinator/test_state_store.py",),
    ),
    Mutant(
        name="recovery: a shard that is lost again while others read is not seen",
        file=RECOVERY,
        text="            if name not in self._pending:  # else a shard has lost",
        fault="            if True:  # else a shard has lost",
        tests=(
            "tests/component/snapshots/test_rollback.py::test_all_go_back_to_the_snapshot_together_and_go_on_bit_exactly",
        ),
        survives="The job goes back once more at once, before anybody is let in: members are told so twice.",
    ),
    Mutant(
        name="recovery: who comes while a job goes back is let in",
        file=RECOVERY,
        text='        if not self._listed or job in self._going:\n            raise ServerNotReady(f"servers',
        fault='        if not self._listed or job in self._pending:\n            raise ServerNotReady(f"servers',
        tests=(
            "tests/component/snapshots/test_rollback.py",
            "tests/component/snapshots/test_going_back.py",
        ),
    ),
    Mutant(
        name="recovery: a snapshot that one shard cannot use moves the generation of all",
        file=RECOVERY,
        text="                generation = generation or self._fleet.registry.generations.next()\n",
        fault="                generation = generation or self._fleet.registry.generations.next()\n"
        "                known = self._fleet.registry.known\n"
        "                known.update({shard: (boot, generation) for shard, (boot, _) in known.items()})\n",
        tests=(
            f"{STREAMS}::test_a_shard_that_cannot_use_the_snapshot_of_one_job_keeps_what_it_holds_of_others",
        ),
    ),
    Mutant(
        name="recovery: each snapshot that is tried takes a generation",
        file=RECOVERY,
        text="                generation = generation or self._fleet.registry.generations.next()\n",
        fault="                generation = self._fleet.registry.generations.next()\n",
        tests=(AGAIN_AND_AGAIN,),
    ),
    Mutant(
        name="recovery: whoever joins has a snapshot that cannot be used tried again",
        file=RECOVERY,
        text="            if self._clock() < refused.until_s:\n                raise refused.error\n",
        fault="            pass\n",
        tests=(AGAIN_AND_AGAIN,),
    ),
    Mutant(
        name="recovery: a line for each snapshot that cannot be used",
        file=RECOVERY,
        text='                self._complain(name, "snapshot %s cannot be used: %s", saved.snapshot, error)\n',
        fault='                logger.error("job %s: snapshot %s cannot be used: %s", name, saved.snapshot, error)\n',
        tests=(AGAIN_AND_AGAIN,),
    ),
    Mutant(
        name="recovery: a part that takes long to read is read again behind itself",
        file=RECOVERY,
        text="limit_s=None)\n            except ServerNotReady:",
        fault="limit_s=0.2)\n            except ServerNotReady:",
        tests=(f"{STREAMS}::test_a_part_that_takes_long_to_read_is_read_once",),
    ),
    Mutant(
        name="recovery: a job that a shard has lost meanwhile is said not to fit",
        file=RECOVERY,
        text="                if name not in self._pending:  # else a shard has come back",
        fault="                if True:  # else a shard has come back",
        tests=(f"{STREAMS}::test_what_did_not_fit_into_a_shard_that_has_come_back_meanwhile_is_tried_again",),
    ),
    Mutant(
        name="drain: a process comes in a holder's place while shard 0 is about to hand over",
        file="ps_server/coordinator/fleet/fleet.py",
        text="        if self._keeps_places and self.registry.loses(message):\n",
        fault="        if False:\n",
        tests=(
            f"{STREAMS}::test_a_shard_that_comes_back_empty_while_shard_0_stops_is_let_in_by_the_next_one",
        ),
    ),
    Mutant(
        name="drain: a job begins to go back while shard 0 is about to hand over",
        file=RECOVERY,
        text='        if self._closed:\n            raise ServerNotReady("shard 0 stops',
        fault='        if False:\n            raise ServerNotReady("shard 0 stops',
        tests=(f"{STREAMS}::test_while_shard_0_is_about_to_hand_over_no_job_begins_to_go_back",),
    ),
    Mutant(
        name="snapshot: one that is given up at a stop is a bug",
        file="ps_server/coordinator/snapshots/scheduler.py",
        text="            last = await self._try(runner, attempt)\n"
        "            self._last[name] = await self._step_of(runner), time.monotonic()\n",
        fault="            try:\n                last = await self._try(runner, attempt)\n            finally:\n"
        "                self._last[name] = await self._step_of(runner), time.monotonic()\n",
        tests=("tests/component/snapshots/test_going_back.py",),
    ),
    Mutant(
        name="recovery: one job goes back at a time",
        file=RECOVERY,
        text="                await self._recover(name)\n",
        fault="                while len(self._going) > 1 and name != next(iter(self._going)):\n"
        "                    await asyncio.sleep(AGAIN_S)\n"
        "                await self._recover(name)\n",
        tests=(f"{STREAMS}::test_jobs_go_back_beside_each_other",),
    ),
    Mutant(
        name="recovery: a job that could not go back cannot be dropped",
        file=RECOVERY,
        text="        return job in self._asleep or job in self._refused\n",
        fault="        return job in self._asleep\n",
        tests=("tests/component/members/test_dropped_jobs.py",),
    ),
    Mutant(
        name="snapshot: it waits for threads that wait for other storage",
        file=TAKING,
        text="run_in_executor(self._threads, ",
        fault="run_in_executor(None, ",
        tests=(
            (
                "tests/component/snapshots/test_going_back.py"
                "::test_a_snapshot_is_written_while_all_that_waits_for_other_storage_waits"
            ),
        ),
    ),
    Mutant(
        name="steps: one of two shards is closed by threads that wait for storage",
        file="ps_server/shard/table/step_closer.py",
        text="            self._submit(partial(self._decide, step, scale))\n",
        fault="            import asyncio\n\n"
        "            asyncio.get_running_loop().run_in_executor(None, partial(self._decide, step, scale))\n",
        tests=(
            (
                "tests/component/members/test_long_orders.py"
                "::test_clipped_steps_of_two_shards_go_on_while_all_that_waits_for_storage_waits"
            ),
        ),
    ),
    Mutant(
        name="steps: a bug in a clipped one is told to nobody",
        file="ps_server/shard/table/step_closer.py",
        text="        with self._telling(self._cells.values()), self._deciding:\n"
        "            if self._clipping is None",
        fault="        with self._deciding:\n            if self._clipping is None",
        tests=(WATCHED,),
    ),
    Mutant(
        name="steps: a bug in what follows from one is told to nobody",
        file="ps_server/shard/table/step_closer.py",
        text="        with self._telling(self._cells.values()):\n            if self._tally is not None:\n",
        fault="        with self._telling([]):\n            if self._tally is not None:\n",
        tests=(WATCHED,),
    ),
    Mutant(
        name="starts: a hand-off is used up before the threads that let connections in run",
        file="ps_server/process/server.py",
        text="            sockets.begin()\n            metrics.begin()\n            if handed_off is not None:\n"
        "                await asyncio.to_thread(handed_off.use_up)  # and before anything is taken\n",
        fault="            if handed_off is not None:\n"
        "                await asyncio.to_thread(handed_off.use_up)  # and before anything is taken\n"
        "            sockets.begin()\n            metrics.begin()\n",
        tests=("tests/faults/test_starts.py",),
    ),
    Mutant(
        name="recovery: a job goes back to a snapshot that cannot be used",
        file=RECOVERY,
        text="                elsewhere = elsewhere or self._of_others(saved, error)\n                continue\n",
        fault="                elsewhere = elsewhere or self._of_others(saved, error)\n                break\n",
        tests=("tests/component/snapshots/test_going_back.py", "tests/component/snapshots/test_rollback.py"),
    ),
    Mutant(
        name="restoring: incarnations of before are let in",
        file=RESTORING,
        text="            floor=incarnation,\n",
        fault="            floor=0,\n",
        tests=(
            "tests/unit/ps_server/coordinator/test_rolled_back.py",
            "tests/component/snapshots/test_rollback.py",
        ),
    ),
    Mutant(
        name="restoring: connections of before go on",
        file=RESTORING,
        text="            before.sever()  # its workers hear why when they connect again\n",
        fault="            pass\n",
        tests=(
            "tests/component/snapshots/test_rollback.py::test_who_is_connected_to_a_shard_that_goes_back_is_cut_off",
        ),
    ),
    Mutant(
        name="store: a snapshot that is brought is the next one",
        file=STORE,
        text="max(_newest(self._all(job)) + 1, self._last(job) + AHEAD)",
        fault="max(_newest(self._all(job)) + 1, self._last(job) + 1)",
        tests=(STORES, BROUGHT),
    ),
    Mutant(
        name="store: what is being brought counts for the numbers of what is taken",
        file=STORE,
        text="return max(_newest(self.names(job)), self.dropped(job))\n",
        fault="return max(_newest(self._all(job)), self.dropped(job))\n",
        tests=(STORES, BROUGHT),
    ),
    Mutant(
        name="store: two that are brought have one number",
        file=STORE,
        text="max(_newest(self._all(job)) + 1, self._last(job) + AHEAD)",
        fault="self._last(job) + AHEAD",
        tests=(STORES,),
    ),
    Mutant(
        name="store: one that is brought is not behind the mark of the job that was dropped",
        file=STORE,
        text="max(_newest(self._all(job)) + 1, self._last(job) + AHEAD)",
        fault="max(_newest(self._all(job)) + 1, _newest(self.names(job)) + AHEAD)",
        tests=(STORES,),
    ),
    Mutant(
        name="store: numbers have no end",
        file=STORE,
        text="        if number > MAX_NUMBER:\n",
        fault="        if False:\n",
        tests=(STORES,),
    ),
    Mutant(
        name="store: one that has just come counts for those that are kept",
        file=STORE,
        text="        complete = [name for name in self.names(job) if name <= until]\n",
        fault="        complete = self.names(job)\n",
        tests=(STORES,),
    ),
    Mutant(
        name="store: storage that does not answer has no snapshot",
        file=STORE,
        text='            raise SnapshotFailed(f"cannot look for {where}: {why(error)}") from error\n',
        fault="            return False\n",
        tests=(STORES,),
    ),
    Mutant(
        name="recovery: a job is lost where storage does not answer",
        file=RECOVERY,
        text="        except SnapshotFailed as error:  # storage does not answer",
        fault="        except AssertionError as error:  # storage does not answer",
        tests=(f"{ROLLBACK}::test_a_job_waits_for_storage_that_does_not_answer_and_then_goes_back",),
    ),
)
