"""Faults of data connections: peers that fall silent, shards that hang."""

from tests.mutants.mutant import Mutant

SOCKET = "tests/unit/ps_wire/sockets/test_frame_socket.py"
TLS = "tests/unit/ps_wire/sockets/test_tls_socket.py"
CONNECTION = "tests/component/connections/test_connection.py"
LIVENESS = "tests/component/connections/test_liveness.py"
HUNG = "tests/faults/test_hung_shards.py"
BOUNDED = "tests/component/tables/test_bounded_pushes.py"
PARTITION = "tests/unit/ps_server/shard/partition/test_machine.py"

LISTS, LISTED = "ps_wire/frames/lists.py", "tests/unit/ps_wire/frames/test_lists.py"
SESSION = "tests/unit/ps_server/shard/transport/test_session.py"
SHARED = "tests/contracts/test_shared_memory.py"
BEHIND = "tests/unit/ps_server/shard/transport/test_behind.py"
MACHINE = "tests/unit/ps_server/shard/partition/test_machine.py"
VERSIONED = "tests/unit/ps_server/shard/optimizer/test_versioned_weights.py"
KERNELS = "tests/unit/ps_server/shard/optimizer/test_kernels.py"
AHEAD = "tests/component/wrap/test_weights_ahead.py"
MONITOR = "tests/unit/ps_worker/exchange/test_in_flight.py"
EARLY = "tests/unit/ps_worker/exchange/test_early_pushes.py"
OF_RANKS = f"{EARLY}::test_weights_of_what_a_rank_owns_are_asked_for_beside_and_shown_when_all_ranks_have_all"

MUTANTS = (
    Mutant(
        name="tables: who comes again to a job that has ended pushes to it",
        file="ps_worker/table.py",
        text="        if (closed := self._host.closed()) is not None:\n            raise UsageError(closed)\n",
        fault="",
        tests=(
            f"{BOUNDED}::test_who_comes_again_to_a_job_that_has_ended_meanwhile_is_told_so_when_it_pushes",
        ),
    ),
    Mutant(
        name="ahead: a connection that comes meanwhile does not ask for what is being asked for",
        file="ps_worker/exchange/pulls.py",
        text="        self._unasked -= now\n",
        fault="",
        tests=(f"{MONITOR}::test_a_connection_that_comes_while_weights_are_asked_for_ahead_asks_for_them",),
    ),
    Mutant(
        name="ahead: all weights are asked for ahead, and shown before the step has asked",
        file="ps_worker/exchange/pulls.py",
        text="        if len(now) == len(self._unasked):\n            return ()\n",
        fault="        return now\n",
        tests=(f"{MONITOR}::test_the_last_ones_of_a_step_are_not_asked_ahead",),
    ),
    Mutant(
        name="ahead: what was asked for ahead is asked for again",
        file="ps_worker/exchange/pulls.py",
        text="            rest = self._unasked | self._unsure\n",
        fault="            rest = set(self._missing)\n",
        tests=(
            f"{MONITOR}::test_what_is_asked_ahead_is_not_asked_again_and_nothing_is_shown_before_the_rest_was_asked",
        ),
    ),
    Mutant(
        name="ahead: a new connection asks for what was not asked for yet",
        file="ps_worker/exchange/pulls.py",
        text="(it not in self._unasked if only is None else it in only)]\n",
        fault="(only is None or it in only)]\n",
        tests=(
            f"{MONITOR}::test_what_is_asked_ahead_is_not_asked_again_and_nothing_is_shown_before_the_rest_was_asked",
        ),
    ),
    Mutant(
        name="ahead: what Ctrl-C kept from being asked for ahead is never asked for",
        file="ps_worker/exchange/in_flight.py",
        text="            now = self._pulls.ask_ahead(self._pulled, partitions, step)\n",
        fault="            now = self._pulls.ask_ahead(self._pulled, partitions, step)\n            self._pulls.note_ahead(now, step)\n",
        tests=(f"{MONITOR}::test_what_was_about_to_be_asked_ahead_is_asked_with_the_rest",),
    ),
    Mutant(
        name="ahead: who joins again goes on with what was asked for ahead",
        file="ps_worker/exchange/pulls.py",
        text="        self._missing.clear()\n        self._forget_ahead()\n",
        fault="        self._missing.clear()\n",
        tests=(f"{MONITOR}::test_who_has_joined_again_asks_for_all",),
    ),
    Mutant(
        name="ahead: weights are asked for beside pushes that are on their way",
        file="ps_worker/exchange/exchange.py",
        text="        if pushed and self.in_flight.wait_acked(pushed, limit_s=0.0):\n",
        fault="        if pushed:\n",
        tests=(f"{AHEAD}::test_nothing_is_asked_ahead_while_pushes_are_on_their_way",),
    ),
    Mutant(
        name="ahead: weights come into those that backward reads",
        file="ps_worker/exchange/exchange.py",
        text="            self.memory.part(self.in_flight.versions[0])\n",
        fault="",
        tests=(f"{AHEAD}::test_weights_of_layers_that_backward_is_done_with_come_before_it_is_over",),
    ),
    Mutant(
        name="ahead: who joins again in the same step asks for what it has not pushed",
        file="ps_worker/exchange/exchange.py",
        text="        self._pushed = []  # by the incarnation before, which may have been in this very step\n",
        fault="",
        tests=(
            f"{EARLY}::test_who_joins_again_in_the_same_step_asks_for_nothing_that_the_incarnation_before_has_pushed",
        ),
    ),
    Mutant(
        name="ahead: a rank asks for nothing while backward is running",
        file="ps_worker/exchange/exchange.py",
        text="                self._ask_ahead(it.partitions, step + 1)\n",
        fault="                pass\n",
        tests=(OF_RANKS,),
    ),
    Mutant(
        name="ahead: a group's weights are shown when those of one rank are here",
        file="ps_worker/exchange/exchange.py",
        text="            show=self.memory.show if alone else lambda _: None,",
        fault="            show=self.memory.show,",
        tests=(OF_RANKS,),
    ),
    Mutant(
        name="ahead: a group's weights are never shown",
        file="ps_worker/exchange/rank_weights.py",
        text="        self._memory.show(max(self._in_flight.versions, default=0))\n",
        fault="",
        tests=(OF_RANKS,),
    ),
    Mutant(
        name="ahead: those of other ranks are written over what backward reads",
        file="ps_worker/exchange/rank_weights.py",
        text="                lambda version: self._memory.of(version).tensors,\n",
        fault="                lambda _: self._memory.weights.tensors,\n",
        tests=("tests/unit/ps_worker/exchange/test_rank_weights.py",),
    ),
    Mutant(
        name="ahead: ranks write weights where those of an older version lie",
        file="ps_worker/group/gradient_reduce.py",
        text="        flat = weights(max(versions, default=0))\n",
        fault="        flat = weights(0)\n",
        tests=("tests/unit/ps_worker/group/test_gradient_reduce.py",),
    ),
    Mutant(
        name="ahead: stages write weights where those of an older version lie",
        file="ps_worker/group/stage_traffic.py",
        text="weights(max(self._versions, default=0))",
        fault="weights(0)",
        tests=("tests/unit/ps_worker/group/test_stage_traffic.py",),
    ),
    Mutant(
        name="ahead: versions lie apart, and those that are here where the next ones come",
        file="ps_worker/memory/table_memory.py",
        text="        self._flats = flats if version % 2 == 0 else flats[::-1]\n",
        fault="        self._flats = flats[::-1]\n",
        tests=(f"{AHEAD}::test_weights_of_layers_that_backward_is_done_with_come_before_it_is_over",),
    ),
    Mutant(
        name="ahead: where versions lie apart what is looked at for a script's writes is that of before",
        file="ps_worker/optimizer/shown_weights.py",
        text="        if not self._expecting or self._memory.apart:\n",
        fault="        if not self._expecting:\n",
        tests=(f"{AHEAD}::test_weights_of_layers_that_backward_is_done_with_come_before_it_is_over",),
    ),
    Mutant(
        name="ahead: over shared memory weights are asked for ahead",
        file="ps_worker/job/table_start.py",
        text="ahead=sharing is Sharing.PRIVATE and on_host",
        fault="ahead=on_host",
        tests=(f"{AHEAD}::test_on_one_host_weights_have_one_place_or_are_mapped",),
    ),
    Mutant(
        name="the kernel's ETIMEDOUT is taken for our own limit",
        file="ps_wire/sockets/frame_socket.py",
        text="        if ran_out(error):\n",
        fault="        if isinstance(error, TimeoutError):\n",
        tests=(
            f"{SOCKET}::test_a_peer_that_only_fell_silent_is_a_lost_connection",
            f"{CONNECTION}::test_where_packets_vanish_the_connection_is_made_again",
        ),
    ),
    Mutant(
        name="our own limit is taken for a lost connection",
        file="ps_wire/sockets/frame_socket.py",
        text="        if ran_out(error):\n            raise\n",
        fault="",
        tests=(f"{SOCKET}::test_a_limit_of_ours_that_is_over_leaves_the_connection",),
    ),
    Mutant(
        name="of a pair whose receiving half was given up the other half stays",
        file="ps_wire/sockets/tls_socket.py",
        text="            if not ran_out(error):\n",
        fault="            if not isinstance(error, TimeoutError):\n",
        tests=(f"{TLS}::test_where_the_half_that_receives_is_given_up_sending_is_cut",),
    ),
    Mutant(
        name="a limit that is over cuts both halves",
        file="ps_wire/sockets/tls_socket.py",
        text="            if not ran_out(error):\n",
        fault="            if error:\n",
        tests=(f"{TLS}::test_waiting_for_bytes_has_a_limit",),
    ),
    Mutant(
        name="a shard that hangs is waited for",
        file="ps_worker/transport/connection.py",
        text="                call.cancel()  # where it has been closed since then, nothing\n",
        fault="",
        tests=(
            f"{LIVENESS}::test_the_connection_to_a_shard_that_does_not_answer_is_made_again",
            f"{HUNG}::test_where_a_shard_that_hung_runs_on_training_goes_on",
        ),
    ),
    Mutant(
        name="a shard that is silent is taken for hung, though it answers",
        file="ps_worker/transport/liveness.py",
        text="        hangs = False\n",
        fault="        hangs = True\n",
        tests=(f"{LIVENESS}::test_a_shard_that_waits_for_another_worker_is_not_taken_for_hung",),
    ),
    Mutant(
        name="a refusal is taken for silence",
        file="ps_worker/transport/liveness.py",
        text="        except ServerUnreachable:\n",
        fault="        except PsError:\n",
        tests=(f"{LIVENESS}::test_a_refusal_is_an_answer",),
    ),
    Mutant(
        name="a frame that comes while a shard is asked is no sign of life",
        file="ps_worker/transport/liveness.py",
        text="hangs = self._heard_s == before_s and self._silent()",
        fault="hangs = self._silent()",
        tests=(f"{LIVENESS}::test_a_frame_that_comes_meanwhile_is_an_answer",),
    ),
    Mutant(
        name="a port that refuses, or a host that has none left, is taken for silence",
        file="ps_worker/transport/liveness.py",
        text="    except OSError:  # refused, or this host cannot make one\n        return False\n",
        fault="    except OSError:\n        return True\n",
        tests=(
            f"{LIVENESS}::test_a_connection_that_is_taken_or_not_answered_is_silence_and_what_fails_is_none",
        ),
    ),
    Mutant(
        name="frames are not heard",
        file="ps_worker/transport/connection.py",
        text="                    self._liveness.hear()\n",
        fault="",
        tests=(f"{LIVENESS}::test_a_shard_whose_frames_come_is_not_asked",),
    ),
    Mutant(
        name="pings to a peer that hangs have gRPC's own limit",
        file="ps_wire/access/channel.py",
        text='    ("grpc.http2.ping_timeout_ms", 5000),\n',
        fault="",
        tests=(f"{HUNG}::test_the_coordinator_says_that_a_shard_hangs_and_goes_on_with_it",),
    ),
    Mutant(
        name="the coordinator does not ping",
        file="ps_wire/access/channel.py",
        text="SERVER: list[tuple[str, int]] = [\n    *_BOTH,\n",
        fault="SERVER: list[tuple[str, int]] = [\n    *_BOTH[:3],\n",
        tests=(f"{HUNG}::test_the_coordinator_says_that_a_shard_hangs_and_goes_on_with_it",),
    ),
    Mutant(
        name="a shard takes a push that is further ahead than ssp allows",
        file="ps_server/shard/partition/machine.py",
        text="        if not self.gate.opens(contribution.step, self.version, self._slowest):\n",
        fault="        if False:\n",
        tests=(f"{PARTITION}::test_ssp_takes_no_push_that_is_further_ahead_than_a_pull_could_be",),
    ),
    Mutant(
        name="a push under ssp does not wait",
        file="ps_worker/table.py",
        text="            elif self._opens():\n",
        fault="            else:\n",
        tests=(
            f"{BOUNDED}::test_law_5_the_gap_of_who_only_pushes_is_bounded_and_no_weights_travel",
            f"{BOUNDED}::test_an_abstention_waits_too",
        ),
    ),
    Mutant(
        name="a push that waits fetches weights",
        file="ps_worker/exchange/exchange.py",
        text="step, nothing=True)",
        fault="step)",
        tests=(f"{BOUNDED}::test_law_5_the_gap_of_who_only_pushes_is_bounded_and_no_weights_travel",),
    ),
    Mutant(
        name="who has the weights of a clock asks the gate again",
        file="ps_worker/exchange/in_flight.py",
        text="                self.opened = frame.step\n                self.missed",
        fault="                self.missed",
        tests=(f"{BOUNDED}::test_who_pulls_at_each_step_asks_once",),
    ),
    Mutant(
        name="lists: pushes of different steps are in one list",
        file=LISTS,
        text='"rank", "step", "version"',
        fault='"rank", "version"',
        tests=(f"{LISTED}::test_what_differs_in_more_is_in_no_list",),
    ),
    Mutant(
        name="lists: what has no gradient of some pieces is in one, and has all",
        file=LISTS,
        text="            return bool(frame.flags & SHARED) and not frame.meta\n",
        fault="            return bool(frame.flags & SHARED)\n",
        tests=(f"{LISTED}::test_what_has_something_of_its_own_is_in_no_list",),
    ),
    Mutant(
        name="lists: what is about a partition overtakes what was there before",
        file=LISTS,
        text="        if any(self._last.get((frame.table, at), 0) > place for at in named):\n",
        fault="        if False:\n",
        tests=(f"{LISTED}::test_lists_keep_the_order_of_what_is_about_one_partition",),
    ),
    Mutant(
        name="lists: what was sent again is listed twice, which is refused",
        file=LISTS,
        text="    indices = list(dict.fromkeys(it.partition for it in group))\n",
        fault="    indices = [it.partition for it in group]\n",
        tests=(f"{LISTED}::test_weights_are_asked_for_behind_all_pushes_that_leave_with_it",),
    ),
    Mutant(
        name="lists: clocks of members are read from its list",
        file=LISTS,
        text="    return frame.meta[4 * frame.hyper :] if frame.flags & LISTED else frame.meta\n",
        fault="    return frame.meta\n",
        tests=(f"{LISTED}::test_frames_that_differ_in_their_partition_alone_leave_as_one",),
    ),
    Mutant(
        name="lists: who is refused one partition of a list loses the others",
        file="ps_server/shard/transport/session.py",
        text="        except PsError as error:  # of this partition, whatever else the frame lists\n",
        fault="        except MemoryError as error:\n",
        tests=(f"{SESSION}::test_of_a_list_only_the_partition_is_refused_that_cannot_be_taken",),
    ),
    Mutant(
        name="lists: pushes are listed where nothing is shared",
        file="ps_server/shard/table/table.py",
        text="        if frame.flags & wire.LISTED:\n",
        fault="        if False:\n",
        tests=(f"{SESSION}::test_a_list_of_pushes_needs_shared_memory",),
    ),
    Mutant(
        name="lists: an acknowledgement is of the first partition alone",
        file="ps_worker/exchange/pushes.py",
        text="for partition in partitions(answer)]",
        fault="for partition in partitions(answer)[:1]]",
        tests=(f"{MONITOR}::test_a_list_answers_each_of_its_partitions_and_no_other",),
    ),
    Mutant(
        name="shared memory: gradients are read where an earlier SHARE had them",
        file="ps_server/shard/transport/shared_regions.py",
        text="        self._tables[frame.table] = _Regions(\n",
        fault="        self._tables[frame.table] = self._tables.get(frame.table) or _Regions(\n",
        tests=(f"{SESSION}::test_gradients_are_read_from_the_memory_that_was_shared_last",),
    ),
    Mutant(
        name="buffer: a tensor over shared memory is of the first dtype for ever",
        file="ps_wire/frames/shared_place.py",
        text="        seen: Seen | None = self._seen.get(kind)\n",
        fault="        seen: Seen | None = next(iter(self._seen.values()), None)\n",
        tests=("tests/unit/ps_wire/frames/test_lists.py::test_a_place_has_one_tensor_of_each_dtype",),
    ),
    Mutant(
        name="asking: weights of a version that has gone are said to be there",
        file="ps_server/shard/transport/shared_regions.py",
        text="            if regions.written.pop(frame.partition, None) != frame.version:\n",
        fault="            if regions.written.pop(frame.partition, None) is None:\n",
        tests=(f"{SESSION}::test_weights_that_change_while_they_wait_at_the_gate_are_written_again",),
    ),
    Mutant(
        name="asking: weights that were written once are never copied again",
        file="ps_server/shard/transport/shared_regions.py",
        text="            if regions.written.pop(frame.partition, None) != frame.version:\n",
        fault="            if regions.written.get(frame.partition) != frame.version:\n",
        tests=(
            f"{SESSION}::test_a_push_that_comes_again_is_not_applied_again_and_what_asks_gets_the_weights",
        ),
    ),
    Mutant(
        name="asking: weights are written where nobody has asked for them",
        file="ps_server/shard/transport/shared_regions.py",
        text="self._tables.get(table) if self._asking == (table, partition) else None\n",
        fault="self._tables.get(table)\n",
        tests=(f"{SESSION}::test_what_asks_for_other_weights_is_taken_behind_all_pushes",),
    ),
    Mutant(
        name="asking: what asks at another clock counts as what asks behind the push",
        file="ps_server/shard/transport/behind.py",
        text="        and pull.step == push.step + 1\n",
        fault="",
        tests=(f"{SESSION}::test_what_asks_for_other_weights_is_taken_behind_all_pushes",),
    ),
    Mutant(
        name="asking: what is asked for beyond the pushes is lost",
        file="ps_server/shard/transport/behind.py",
        text="        return meta.part(self.frame, tuple(self._left)) if self._left else None\n",
        fault="        return None\n",
        tests=(f"{SESSION}::test_what_is_asked_for_beyond_the_pushes_is_answered_behind_them",),
    ),
    Mutant(
        name="asking: another worker's push comes between a push and what asks behind it",
        file="ps_server/shard/transport/session.py",
        text="        with table.together(push.partition):\n            with copies",
        fault="        if True:\n            with copies",
        tests=(f"{SESSION}::test_no_other_workers_push_comes_between_a_push_and_what_asks_behind_it",),
    ),
    Mutant(
        name="asking: a push of a partition that is not here ends its connection",
        file="ps_server/shard/table/table.py",
        text="        return nullcontext() if cell is None else cell.lock\n",
        fault="        return self._cells[partition].lock\n",
        tests=(
            f"{SESSION}::test_a_push_of_a_partition_that_is_not_here_is_refused_with_what_asks_behind_it",
        ),
    ),
    Mutant(
        name="asking: under bsp each push is followed by what asks",
        file="ps_server/shard/transport/session.py",
        text="if table.applies_at_once and frame.kind is wire.Kind.PUSH else None\n",
        fault="if frame.kind is wire.Kind.PUSH else None\n",
        tests=(f"{SESSION}::test_under_bsp_what_asks_comes_behind_all_pushes",),
    ),
    Mutant(
        name="asking: nothing is looked for behind a push",
        file="ps_server/shard/transport/socket_connection.py",
        text="                    goes_on = self._session.receive(frame, behind)\n",
        fault="                    goes_on = self._session.receive(frame)\n",
        tests=(
            f"{SHARED}::test_weights_are_written_as_they_are_made_where_a_push_comes_with_what_asks_for_them",
        ),
    ),
    Mutant(
        name="asking: what is no frame ends what came before it",
        file="ps_server/shard/transport/behind.py",
        text="                self._error = error\n                return\n",
        fault="                raise\n",
        tests=(f"{BEHIND}::test_what_is_no_frame_is_said_behind_the_frames_before_it",),
    ),
    Mutant(
        name="asking: descriptors of what is not taken stay open",
        file="ps_server/shard/transport/behind.py",
        text="            close_all(it.frame.descriptors)\n",
        fault="            pass\n",
        tests=(f"{BEHIND}::test_descriptors_of_what_is_not_taken_are_closed",),
    ),
    Mutant(
        name="asking: only what came with the push is looked at",
        file="ps_wire/sockets/frame_socket.py",
        text="        if reads and self._end",
        fault="        if False and self._end",
        tests=(f"{SOCKET}::test_what_has_come_since_is_looked_for_and_not_waited_for",),
    ),
    Mutant(
        name="asking: a push that is too stale writes weights that nobody has",
        file="ps_server/shard/partition/machine.py",
        text="return next_one and opens and not self._too_late(contribution)",
        fault="return next_one and opens",
        tests=(f"{MACHINE}::test_whether_a_push_is_applied_at_once_is_known_before",),
    ),
    Mutant(
        name="weights: a version ahead is written over what a reply leaves from",
        file="ps_server/shard/optimizer/versioned_weights.py",
        text="        if held:\n            self._left.append((memory, held))\n        else:\n",
        fault="        if True:\n",
        tests=(f"{VERSIONED}::test_memory_that_a_reply_leaves_from_is_no_room_for_a_version_ahead",),
    ),
    Mutant(
        name="weights: memory that replies have left from is not used for a version ahead",
        file="ps_server/shard/optimizer/versioned_weights.py",
        text="            self._look_at_left()\n",
        fault="",
        tests=(f"{VERSIONED}::test_memory_that_replies_left_from_is_used_for_versions_ahead",),
    ),
    Mutant(
        name="weights: what is carried shows what was written ahead",
        file="ps_server/shard/optimizer/versioned_weights.py",
        text="        elif self.ahead:\n            self.wrote_ahead(False)\n",
        fault="",
        tests=(
            f"{VERSIONED}::test_weights_that_are_carried_after_a_version_was_written_ahead_are_those_of_before",
        ),
    ),
    Mutant(
        name="spares: all that was ever held by replies is kept",
        file="ps_server/shard/optimizer/spares.py",
        text="        if len(kept) < KEPT:\n            kept",
        fault="        if True:\n            kept",
        tests=(f"{VERSIONED}::test_more_spares_than_a_table_can_use_are_not_kept",),
    ),
    Mutant(
        name="weights: where a step along was not finite its worker keeps what it made",
        file="ps_server/shard/optimizer/steppers.py",
        text="    if not whole:\n        copy.copy_(weights.now)\n",
        fault="",
        tests=(
            f"{KERNELS}::test_a_step_along_that_is_not_finite_changes_nothing_and_its_copy_is_of_the_weights",
        ),
    ),
)
