"""Faults of groups of ranks: how they meet, what they reduce, and what ends them together."""

from .mutant import Mutant

UNIT = "tests/unit/ps_worker/group"
REDUCE, CHANNEL, WATCH = f"{UNIT}/test_gradient_reduce.py", f"{UNIT}/test_channel.py", f"{UNIT}/test_watch.py"
RANKS, LINES = f"{UNIT}/test_ranks.py", f"{UNIT}/test_lines.py"
NETWORK = "tests/unit/ps_lab/cluster/test_network.py"
MEETINGS = "tests/unit/ps_server/coordinator/test_meetings.py"
SHARES = "tests/unit/ps_worker/data/test_index_share.py"
GROUPS, FAULTS = "tests/integration/test_groups.py", "tests/faults/test_groups.py"
SERVERS = "tests/search/test_deadlock_servers.py"
CHANGES = "tests/unit/ps_server/coordinator/jobs/test_membership_changes.py"
WINDOWS = "tests/unit/ps_worker/memory/test_mapped_windows.py"

PROMISE = "tests/unit/ps_worker/membership/test_snapshot_promise.py"
CAPTURE = "tests/unit/ps_worker/job/test_group_capture.py"

CLIPPED = f"{UNIT}/test_clipped_reduce.py"
BESIDE = f"{UNIT}/test_beside.py"
EARLY = "tests/unit/ps_worker/exchange/test_early_pushes.py"
DEVICES, GPUS = f"{UNIT}/test_device_collectives.py", f"{UNIT}/test_gpus.py"
STAGING = "tests/contracts/test_staging.py"

MUTANTS = (
    Mutant(
        name="groups: of what is reduced on devices the sum is pushed",
        file="ps_worker/group/device_collectives.py",
        text="copy_(total.div_(count), non_blocking=True)",
        fault="copy_(total, non_blocking=True)",
        tests=(f"{DEVICES}::test_of_the_mean_what_a_rank_owns_comes_to_its_host_and_nothing_else",),
    ),
    Mutant(
        name="groups: a rank without a gradient adds that of its step before, on its device",
        file="ps_worker/group/device_collectives.py",
        text="                terms.zero_()\n",
        fault="                terms.copy_(flat)\n",
        tests=(f"{DEVICES}::test_a_rank_without_a_gradient_takes_part_and_is_left_out_of_the_mean",),
    ),
    Mutant(
        name="groups: what is reduced on devices is written where the script's gradients lie",
        file="ps_worker/group/device_collectives.py",
        text="            terms = self._whole.like(flat)\n            if mine:\n                terms.copy_(flat)\n",
        fault="            terms = flat\n            if mine:\n                pass\n",
        tests=(f"{DEVICES}::test_of_the_mean_what_a_rank_owns_comes_to_its_host_and_nothing_else",),
    ),
    Mutant(
        name="groups: weights of partitions that no round has stay on their owner's device",
        file="ps_worker/group/device_collectives.py",
        text="            self._calls.broadcast(_bytes(_slice(shown, of[0])), self._owners[of[0].index]).wait()\n",
        fault="",
        tests=(f"{DEVICES}::test_weights_that_each_rank_has_pulled_come_to_all_devices_to_the_bit",),
    ),
    Mutant(
        name="groups: a collective that fails ends its thread, and says nothing",
        file="ps_worker/group/device_collectives.py",
        text="            except RuntimeError as error:\n",
        fault="            except LookupError as error:\n",
        tests=(f"{DEVICES}::test_a_collective_that_fails_ends_the_group_and_says_why",),
    ),
    Mutant(
        name="groups: gradients of a table on devices are copied to the host",
        file="ps_worker/memory/table_memory.py",
        text="        return self.gradients if self.on_device is None else self.on_device.gradients\n",
        fault="        return self.gradients\n",
        tests=(f"{GROUPS}::test_a_step_of_groups_is_the_mean_of_their_means_in_rank_order_to_the_bit",),
    ),
    Mutant(
        name="groups: two hosts with a GPU each are taken for one with one",
        file="ps_worker/group/gpus.py",
        text="        other = by_gpu.setdefault((hosts.of(rank), gpu), rank)\n",
        fault="        other = by_gpu.setdefault((0, gpu), rank)\n",
        tests=(f"{GPUS}::test_a_table_is_reduced_on_gpus_where_it_is_on_another_one_of_each_rank",),
    ),
    Mutant(
        name="groups: ranks of one host that see the same GPU count as having two",
        file="ps_worker/group/gpus.py",
        text="        if count < len(ranks):\n",
        fault="        if not count:\n",
        tests=(f"{GPUS}::test_each_rank_needs_a_gpu_of_its_own",),
    ),
    Mutant(
        name="staging: work in a lane does not wait for what was queued before",
        file="ps_worker/memory/staging.py",
        text="        self._stream.wait_event(mark)\n        with self._module.stream(self._stream):\n            yield\n",
        fault="        with self._module.stream(self._stream):\n            yield\n",
        tests=(f"{STAGING}::test_work_in_a_lane_begins_after_its_mark_and_is_done_at_its_end",),
    ),
    Mutant(
        name="staging: work in a lane is not waited for",
        file="ps_worker/memory/staging.py",
        text="        self._stream.record_event().synchronize()\n",
        fault="        self._stream.record_event()\n",
        tests=(f"{STAGING}::test_work_in_a_lane_begins_after_its_mark_and_is_done_at_its_end",),
    ),
    Mutant(
        name="groups: each rank clips by the norm of what it owns",
        file="ps_worker/group/clipped_reduce.py",
        text='        norm = sum(float(one.fields["squares"]) for one in said) ** 0.5\n',
        fault="        norm = squares**0.5\n",
        tests=(f"{CLIPPED}::test_ranks_clip_their_mean_as_one_process_does_and_push_nothing_before",),
    ),
    Mutant(
        name="groups: a rank that abstains pushes what it owns unclipped",
        file="ps_worker/group/clipped_reduce.py",
        text="        if every:\n            self._clip(every, step)\n",
        fault='        if every:\n            self._channel.share(f"the norm of step {step}", {"squares": 0.0})\n',
        tests=(f"{CLIPPED}::test_a_rank_without_a_gradient_clips_what_it_owns_of_the_others_too",),
    ),
    Mutant(
        name="groups: each rank clips its own gradient where servers form no mean",
        file="ps_worker/worker.py",
        text="clipped_as_it_leaves=mean or self.group_size > 1,",
        fault="clipped_as_it_leaves=mean,",
        tests=(f"{GROUPS}::test_under_asp_a_group_clips_the_mean_of_its_ranks",),
    ),
    Mutant(
        name="groups: the leader promises a step that another rank has begun unheard",
        file="ps_worker/membership/snapshot_promise.py",
        text="                table: step + self._foretells + (known.get(table, -1) >= step)\n",
        fault="                table: step + (known.get(table, -1) >= step)\n",
        tests=(
            f"{PROMISE}::test_the_leader_of_a_group_promises_no_step_that_another_rank_may_have_begun_unheard",
        ),
    ),
    Mutant(
        name="groups: ranks hear of a step before the cut that comes is known",
        file="ps_worker/membership/snapshot_promise.py",
        text="            self._wait_known()\n            self._foretold =",
        fault="            self._foretold =",
        tests=(f"{PROMISE}::test_what_the_ranks_hear_of_a_step_waits_for_the_cut_that_comes",),
    ),
    Mutant(
        name="groups: a rank captures for a cut that its leader has given up",
        file="ps_worker/membership/snapshot_promise.py",
        text="            self._number = self._cut = None\n            if cut is not None:\n",
        fault="            if cut is not None:\n",
        tests=(
            f"{PROMISE}::test_a_rank_captures_where_its_leader_has_foretold_and_no_cut_that_was_given_up",
        ),
    ),
    Mutant(
        name="groups: what was captured for a cut that was given up is put in the next",
        file="ps_worker/membership/snapshot_promise.py",
        text="            if number in (None, self.captured):\n                self.captured = None\n",
        fault="",
        tests=(
            f"{CAPTURE}::test_a_cut_that_is_given_up_when_the_ranks_have_heard_of_it_leaves_nothing_of_it_in_the_next",
        ),
    ),
    Mutant(
        name="groups: a snapshot holds what rank 0 has alone",
        file="ps_worker/job/group_capture.py",
        text="        if blob:\n",
        fault="        if False:\n",
        tests=(
            f"{CAPTURE}::test_all_ranks_capture_at_one_step_and_the_leader_puts_what_all_have",
            f"{GROUPS}::test_groups_whose_servers_and_ranks_were_killed_go_on_from_the_snapshot_to_the_same_bits",
        ),
    ),
    Mutant(
        name="groups: a note holds what rank 0 has alone",
        file="ps_worker/job/side_uploads.py",
        text="            self.noting.at_epoch(note)\n",
        fault="            self.noting.at_epoch()\n",
        tests=(
            f"{GROUPS}::test_a_group_that_was_killed_goes_on_where_its_job_is_each_rank_with_its_own_generators",
        ),
    ),
    Mutant(
        name="groups: who clips, and does not have to in the first step, clips its own gradient in a later one",
        file="ps_worker/optimizer/sender.py",
        text="                if any(written):\n",
        fault="                if False:\n",
        tests=(f"{GROUPS}::test_what_is_not_built_for_groups_is_refused_by_name_and_the_group_goes_on",),
    ),
    Mutant(
        name="groups: a rank that was not there takes rank 0's generators",
        file="ps_worker/job/group_capture.py",
        text="if not (rank and is_owners(name))}\n",
        fault="}\n",
        tests=(f"{CAPTURE}::test_a_rank_that_was_not_there_then_takes_what_is_not_rank_0s_alone",),
    ),
    Mutant(
        name="groups: each rank clips its own gradient, and nobody hears of it",
        file="ps_worker/optimizer/sender.py",
        text="                written = [table.check_brought() for table in self.tables]\n",
        fault="                written = [False]\n",
        tests=(f"{GROUPS}::test_what_is_not_built_for_groups_is_refused_by_name_and_the_group_goes_on",),
    ),
    Mutant(
        name="groups: a shard's memory is laid where weights of another rank are being written",
        file="ps_worker/memory/table_memory.py",
        text="        with self._lock:\n            yield frozenset(self._laid)\n",
        fault="        yield frozenset(self._laid)\n",
        tests=(f"{WINDOWS}::test_nothing_is_laid_while_weights_come_from_other_ranks",),
    ),
    Mutant(
        name="groups: silence is counted before the ranks are connected",
        file="ps_worker/group/group.py",
        text="        try:\n            # Kept for as long",
        fault="        self._watch = Watch(ranks, met.store, self._abort, lease_s=lease_s, hosts=met.hosts)\n"
        "        early, self._made = self._watch, None\n"
        '        globals()["Watch"] = lambda *_, **__: early\n'
        "        try:\n            # Kept for as long",
        tests=(f"{UNIT}/test_group.py",),
    ),
    Mutant(
        name="groups: the sum of ranks is not divided",
        file="ps_wire/process/rank_mean.py",
        text="    return out.copy_(total.div_(len(parts)))\n",
        fault="    return out.copy_(total)\n",
        tests=(f"{REDUCE}::test_the_mean_is_that_of_the_servers_to_the_bit",),
    ),
    Mutant(
        name="groups: ranks are added from the last",
        file="ps_worker/group/gradient_reduce.py",
        text="            self._mean(it, [received.get((rank, it.index)) for rank in self._header.there])\n",
        fault="            self._mean(it, [received.get((rank, it.index)) for rank in reversed(self._header.there)])\n",
        tests=(f"{REDUCE}::test_the_mean_is_that_of_the_servers_to_the_bit",),
    ),
    Mutant(
        name="groups: a rank without a gradient counts in the mean",
        file="ps_worker/group/step_header.py",
        text='        self.there = [rank for rank, one in enumerate(said) if one.get("there")]\n',
        fault="        self.there = list(range(len(said)))\n",
        tests=(f"{REDUCE}::test_where_no_rank_has_a_gradient_nothing_is_pushed",),
    ),
    Mutant(
        name="groups: sixteen bits are added in sixteen bits",
        file="ps_wire/process/rank_mean.py",
        text="    total = torch.add(parts[0].float(), parts[1]) if out.dtype in NARROW else parts[0] + parts[1]\n",
        fault="    total = parts[0] + parts[1]\n",
        tests=(f"{REDUCE}::test_sixteen_bits_are_added_in_float32_and_rounded_once",),
    ),
    Mutant(
        name="groups: a parameter is there only if rank 0 has used it",
        file="ps_worker/group/gradient_reduce.py",
        text="            union = theirs if union is None else [[*map(or_, *it)] for it in zip(union, theirs, strict=True)]\n",
        fault="            union = theirs if union is None else union\n",
        tests=(f"{REDUCE}::test_a_parameter_is_there_if_one_rank_has_used_it",),
    ),
    Mutant(
        name="groups: hyper-parameters of ranks are not compared",
        file="ps_worker/group/step_header.py",
        text="    if len(set(hypers) - {None}) > 1:\n",
        fault="    if False:\n",
        tests=(f"{REDUCE}::test_ranks_with_other_hyper_parameters_end_together",),
    ),
    Mutant(
        name="groups: what lay in flat memory of all ranks is taken for zeros",
        file="ps_worker/optimizer/bucket_gradients.py",
        text="            self._zeros.clear()\n",
        fault="            pass\n",
        tests=(f"{GROUPS}::test_a_step_of_groups_is_the_mean_of_their_means_in_rank_order_to_the_bit",),
    ),
    Mutant(
        name="groups: SIGTERM of one rank is not passed on",
        file="ps_worker/group/step_header.py",
        text='        self._ending.heard(any(one.get("ends") for one in said))\n',
        fault='        self._ending.heard(bool(mine["ends"]))\n',
        tests=(f"{REDUCE}::test_one_rank_that_is_to_end_ends_all_at_the_same_step",),
    ),
    Mutant(
        name="groups: a rank ends at SIGTERM before its group has agreed",
        file="ps_worker/process/stopping.py",
        text="        if self.asked and all(groups):\n",
        fault="        if self.asked:\n",
        tests=(f"{FAULTS}::test_sigterm_of_one_rank_ends_all_ranks_of_its_group_at_the_same_step",),
    ),
    Mutant(
        name="groups: what ranks are about to do is not compared",
        file="ps_worker/group/channel.py",
        text="        if second != first:\n",
        fault="        if False:\n",
        tests=(f"{CHANNEL}::test_ranks_that_do_different_things_end_together_and_both_are_named",),
    ),
    Mutant(
        name="groups: an error of the leader's question is its own",
        file="ps_worker/group/channel.py",
        text='            self.tell(what, {"error": [type(error).__name__, error.message, facts_to_json(error)]})\n',
        fault="            self.tell(what, {})\n",
        tests=(f"{CHANNEL}::test_an_error_of_the_leaders_question_is_raised_on_all_ranks",),
    ),
    Mutant(
        name="groups: who waits for a rank does not hear of the group's end",
        file="ps_worker/group/abort.py",
        text="            self.changed.notify_all()\n            error, told = self.error, self._told.copy()\n",
        fault="            error, told = self.error, self._told.copy()\n",
        tests=(f"{CHANNEL}::test_the_end_of_the_group_frees_who_waits_though_nothing_comes",),
        survives="who waits looks again twice a second: it is freed later, and no test measures that",
    ),
    Mutant(
        name="groups: a silent rank is not missed",
        file="ps_worker/group/watch.py",
        text="            elif now_s - since_s > self._silent_s:\n",
        fault="            elif False:\n",
        tests=(f"{WATCH}::test_a_rank_that_is_silent_for_half_a_lease_ends_the_group_and_is_named",),
    ),
    Mutant(
        name="groups: a rank that left in order is missed",
        file="ps_worker/group/watch.py",
        text="                self._gone.add(rank)\n",
        fault="                pass\n",
        tests=(f"{WATCH}::test_a_rank_that_has_left_in_order_is_not_missed",),
        survives="its last word stays in the store, and is looked at again each time: that costs, and changes nothing",
    ),
    Mutant(
        name="groups: a store that hangs is waited for",
        file="ps_worker/group/watch.py",
        text="        if silent_s > self._silent_s and not self._closed.is_set():\n",
        fault="        if False:\n",
        tests=(f"{WATCH}::test_a_store_that_does_not_answer_ends_who_waits_and_is_asked_no_more",),
    ),
    Mutant(
        name="groups: two live processes may have one rank",
        file="ps_server/coordinator/meetings.py",
        text="        if known is not None and known.process != guest.process:\n",
        fault="        if False:\n",
        tests=(f"{MEETINGS}::test_two_live_processes_with_one_rank_are_refused_and_the_first_is_named",),
    ),
    Mutant(
        name="groups: one that has gone keeps its rank in a meeting",
        file="ps_server/coordinator/meetings.py",
        text="        self._forget(now_s)\n        if guest.size",
        fault="        if guest.size",
        tests=(f"{MEETINGS}::test_one_that_has_stopped_asking_makes_room",),
    ),
    Mutant(
        name="groups: a rank of another job's token may meet",
        file="ps_server/coordinator/service.py",
        text="        gatekeeper.check_job(request.job)\n        check_protocol(request.protocol)\n",
        fault="        check_protocol(request.protocol)\n",
        tests=(
            "tests/component/connections/test_access.py::test_the_token_of_one_job_opens_nothing_of_another",
        ),
    ),
    Mutant(
        name="groups: a launcher's processes need not divide into groups",
        file="ps_wire/process/ranks.py",
        text="        if count % size:\n",
        fault="        if False:\n",
        tests=(f"{RANKS}::test_what_does_not_fit_is_refused_with_its_variable",),
    ),
    Mutant(
        name="groups: each rank hands out whole batches",
        file="ps_worker/data/index_share.py",
        text="            first, last = (size * part // self._parts for part in (self._part, self._part + 1))\n",
        fault="            first, last = 0, size\n",
        tests=(f"{SHARES}::test_every_rank_of_a_group_gets_a_part_of_every_batch",),
    ),
    Mutant(
        name="groups: a last batch may be smaller than the group",
        file="ps_worker/data/index_share.py",
        text="            if 0 < rest < self.least:  # a rank would have none of the last batch\n",
        fault="            if False:\n",
        tests=(f"{SHARES}::test_every_rank_of_a_group_gets_a_part_of_every_batch",),
    ),
    Mutant(
        name="groups: who does not know the group's secret gets a line",
        file="ps_worker/group/lines.py",
        text="    return int.from_bytes(said[TOKEN_BYTES:]) if hmac.compare_digest(said[:TOKEN_BYTES], secret) else None\n",
        fault="    return int.from_bytes(said[TOKEN_BYTES:])\n",
        tests=(f"{LINES}::test_who_does_not_know_the_secret_of_the_store_gets_no_line",),
    ),
    Mutant(
        name="groups: what is queued leaves only where nothing is heard",
        file="ps_worker/group/lines.py",
        text="            events = select.POLLIN * (other == rank) | select.POLLOUT * bool(self._unsent[other])\n",
        fault="            events = select.POLLIN if other == rank else select.POLLOUT * bool(self._unsent[other])\n",
        tests=(f"{LINES}::test_ranks_that_send_each_other_more_than_sockets_hold_both_get_it",),
    ),
    Mutant(
        name="groups: who waits for a message is not woken",
        file="ps_worker/group/lines.py",
        text="        poll.register(self._woken, select.POLLIN)\n",
        fault="        pass\n",
        tests=(f"{LINES}::test_who_waits_is_woken",),
    ),
    Mutant(
        name="groups: a group weighs one, however many ranks it has",
        file="ps_worker/worker.py",
        text='        even = float(self.group_size) if weight == "ranks" and pipe is None else 1.0\n',
        fault="        even = 1.0\n",
        tests=(f"{GROUPS}::test_groups_of_different_size_weigh_as_their_ranks_where_that_is_wanted",),
    ),
    Mutant(
        name="groups: hosts of a bench have no slow links",
        file="ps_lab/cluster/network.py",
        text='        _run(*inside.enter, "tc", *shape(link, INTERFACE))\n',
        fault="        pass\n",
        tests=(f"{NETWORK}::test_a_link_between_two_hosts_is_as_slow_as_it_should_be",),
        survives="the other end of the link is as slow",
    ),
    Mutant(
        name="groups: the reason why there are no namespaces is kept",
        file="ps_lab/cluster/network.py",
        text='            f"{why[-1]}{delay}"\n',
        fault='            ""\n',
        tests=(f"{NETWORK}::test_where_namespaces_are_not_permitted_the_reason_is_named",),
    ),
    Mutant(
        name="groups: hosts of a bench talk as a single one",
        file="ps_lab/bench/cli.py",
        text="    if setup.asked_carrier != Carrier.TCP:\n",
        fault="    if False:\n",
        tests=(f"{NETWORK}::test_options_of_hosts_that_do_not_go_together_are_refused",),
    ),
    Mutant(
        name="groups: what comes first is heard first, late or not",
        file="ps_worker/group/channel.py",
        text="            self._kept[source, is_late].append(said)\n",
        fault="            self._kept[source, late].append(said)\n",
        tests=(f"{CHANNEL}::test_what_is_said_for_later_is_heard_in_its_order_whatever_else_is_exchanged",),
    ),
    Mutant(
        name="groups: the thread keeps the tensors of its latest call",
        file="ps_worker/group/channel.py",
        text="            del todo, call  #",
        fault="            pass  #",
        tests=(f"{CHANNEL}::test_what_has_been_sent_and_received_is_not_kept",),
    ),
    Mutant(
        name="groups: models of ranks are not compared",
        file="ps_worker/job/relayed_seat.py",
        text="                    check_same(spec, theirs)\n",
        fault="                    pass\n",
        tests=(f"{GROUPS}::test_ranks_with_different_models_are_refused_by_name_on_all_ranks",),
    ),
    Mutant(
        name="groups: what a broken group has pushed to some shards counts there",
        file="ps_server/coordinator/jobs/job.py",
        text="        if torn and member.state is MemberState.JOINED and not member.reader:\n",
        fault="        if False:\n",
        tests=(f"{SERVERS}::test_law_17_a_group_whose_ranks_die_one_by_one_holds_nobody_up", CHANGES),
    ),
    Mutant(
        name="groups: the leader of a broken group leaves as one that is whole",
        file="ps_worker/job/presence.py",
        text="            torn = not (in_order and self._group.leave())\n",
        fault="            _ = in_order and self._group.leave()\n",
        tests=(
            f"{FAULTS}::test_a_killed_rank_takes_its_group_out_as_one_worker_and_the_other_group_goes_on",
        ),
    ),
    Mutant(
        name="groups: a leader that nobody has followed takes them to have left",
        file="ps_worker/group/watch.py",
        text="        return not waited_for\n",
        fault="        return True\n",
        tests=(f"{WATCH}::test_the_leader_waits_for_the_others_before_it_takes_the_store_away",),
    ),
    Mutant(
        name="groups: a thread waits for another rank while the process ends",
        file="ps_worker/group/group.py",
        text="                    cut(wires, self.ranks)\n",
        fault="                    pass\n",
        tests=(f"{UNIT}/test_group.py",),
    ),
    Mutant(
        name="groups: every rank of a host sends the host's sum",
        file="ps_worker/group/gradient_reduce.py",
        text="not in near and acting(near, it.index) == self._rank\n",
        fault="not in near\n",
        tests=(
            f"{REDUCE}::test_on_several_hosts_each_sums_by_itself_and_owners_add_the_sums_in_the_order_of_hosts",
        ),
    ),
    Mutant(
        name="groups: weights go to each rank of a host over the link",
        file="ps_worker/group/hosts.py",
        text="            if owner in ranks or len(there) < 2:\n",
        fault="            if True:\n",
        tests=(f"{UNIT}/test_hosts.py",),
    ),
    Mutant(
        name="groups: with certificates ranks on several hosts send in the clear",
        file="ps_worker/settings.py",
        text="        if self.tls_dir is None or self.insecure_group:\n",
        fault="        if True:\n",
        tests=(RANKS,),
    ),
    Mutant(
        name="groups: ranks of several hosts meet where only one of them is reached",
        file="ps_worker/group/rendezvous.py",
        text="            if not host:\n",
        fault="            if False:\n",
        tests=(f"{UNIT}/test_rendezvous.py",),
    ),
    Mutant(
        name="beside: calls are made in the order in which hooks fire",
        file="ps_worker/exchange/exchange.py",
        text="            beside.put(bucket, lambda:",
        fault="            beside.put(len(beside._calls) + beside._turn, lambda:",
        tests=(
            f"{EARLY}::test_a_bucket_that_leaves_early_and_all_behind_it_are_pushed_beside_in_their_order",
        ),
    ),
    Mutant(
        name="beside: what leaves in step() does not wait behind what has left in backward",
        file="ps_worker/exchange/exchange.py",
        text="        if beside is not None and (early or beside.used):\n",
        fault="        if beside is not None and early:\n",
        tests=(
            f"{EARLY}::test_a_bucket_that_leaves_early_and_all_behind_it_are_pushed_beside_in_their_order",
        ),
    ),
    Mutant(
        name="beside: an abstention does not wait for what has left in backward",
        file="ps_worker/exchange/exchange.py",
        text="            self._wait_beside(self._ranks, step)\n            self._push_reduced(self._ranks.abstain(step), step)\n",
        fault="            self._push_reduced(self._ranks.abstain(step), step)\n",
        tests=(
            f"{EARLY}::test_a_bucket_that_leaves_early_and_all_behind_it_are_pushed_beside_in_their_order",
        ),
    ),
    Mutant(
        name="beside: the first call is over while it is under way",
        file="ps_worker/group/beside.py",
        text="            return self._under_way or bool(self._turn or self._calls)\n",
        fault="            return bool(self._turn or self._calls)\n",
        tests=(f"{BESIDE}::test_a_group_that_has_ended_frees_who_waits_for_a_call_and_takes_no_more",),
    ),
    Mutant(
        name="beside: a bucket of a step that was broken off leaves with the next step",
        file="ps_worker/group/beside.py",
        text="                self._calls.clear()\n",
        fault="                pass\n",
        tests=(f"{BESIDE}::test_a_call_whose_turn_has_not_come_is_forgotten_at_the_end_of_a_step",),
    ),
    Mutant(
        name="beside: who waits hears nothing of the group's end",
        file="ps_worker/group/beside.py",
        text="lambda: self._over or self._abort.error is not None, LOOK_S)",
        fault="lambda: self._over, LOOK_S)",
        tests=(f"{BESIDE}::test_a_group_that_has_ended_frees_who_waits_for_a_call_and_takes_no_more",),
    ),
    Mutant(
        name="beside: after an error the calls behind it are made",
        file="ps_worker/group/beside.py",
        text="(self._error is None and self._turn in self._calls)",
        fault="(self._turn in self._calls)",
        tests=(
            f"{BESIDE}::test_an_error_ends_the_calls_of_the_step_and_is_raised_where_they_are_waited_for",
        ),
    ),
    Mutant(
        name="beside: a script that waits in its step does not say so to those of other ranks",
        file="ps_worker/group/gradient_reduce.py",
        text="            self._scripts.stand(",
        fault="            str(",
        tests=(f"{REDUCE}::test_a_rank_in_its_step_is_named_by_one_that_is_elsewhere",),
    ),
    Mutant(
        name="beside: the place of a script is not compared with what another one says",
        file="ps_worker/group/channel.py",
        text="            self._hear_all(place.mine, {}, late=False)\n",
        fault="            pass\n",
        tests=(f"{CHANNEL}::test_scripts_that_stand_at_the_same_place_compare_it_before_what_they_say_next",),
    ),
    Mutant(
        name="beside: scripts that wait in two places do not look",
        file="ps_worker/group/channel.py",
        text="            for rank in self._all_others if me == 0 else [0]:\n",
        fault="            for rank in []:\n",
        tests=(f"{CHANNEL}::test_a_script_that_stands_elsewhere_is_named_though_it_waits_for_others_there",),
    ),
    Mutant(
        name="beside: the thread beside compares what its script may be reading",
        file="ps_worker/group/channel.py",
        text="        if self._place is None or self._place[1] != threading.get_ident():\n",
        fault="        if self._place is None:\n",
        tests=(f"{CHANNEL}::test_another_thread_than_the_scripts_compares_nothing",),
    ),
    Mutant(
        name="beside: a bucket comes with the one behind it",
        file="ps_worker/group/gradient_reduce.py",
        text="        return self._heard(waits=waits)\n",
        fault="        return self._heard(waits=False)\n",
        tests=(
            f"{REDUCE}::test_buckets_that_leave_beside_a_script_wait_for_ranks_that_reduce_in_their_step",
        ),
    ),
    Mutant(
        name="beside: the mean over what was sent is taken for a change of the script's",
        file="ps_worker/optimizer/bucket_gradients.py",
        text="            sent = self._sent_rows[place] if self._exchange.sums else self._sample.row(self._views[index])\n",
        fault="            sent = self._sample.row(self._views[index])\n",
        tests=(
            f"{EARLY}::test_a_sum_over_what_was_sent_is_no_change_of_the_scripts_and_one_past_autograd_is",
        ),
    ),
    Mutant(
        name="beside: a change past autograd is not seen in a group",
        file="ps_worker/optimizer/bucket_gradients.py",
        text="        return None if row is None else row.clone()\n",
        fault="        return None\n",
        tests=(
            f"{EARLY}::test_a_sum_over_what_was_sent_is_no_change_of_the_scripts_and_one_past_autograd_is",
        ),
    ),
    Mutant(
        name="beside: groups reduce in step() alone",
        file="ps_worker/optimizer/sender.py",
        text="            untouched = self._may_overlap and all(",
        fault="            untouched = not self.of_one_rank and all(",
        tests=(f"{GROUPS}::test_a_step_of_groups_is_the_mean_of_their_means_in_rank_order_to_the_bit",),
    ),
    Mutant(
        name="beside: where p.grad lies the mean is written unasked while a script may read it",
        file="ps_worker/optimizer/wrapped.py",
        text=" and not (of_one_rank and as_views)),\n",
        fault="),\n",
        tests=(f"{GROUPS}::test_a_step_of_groups_is_the_mean_of_their_means_in_rank_order_to_the_bit",),
    ),
)
