"""Faults of owners: which rank pushes what, and how shards tell the ranks of one worker apart."""

from .mutant import Mutant

GROUP = "tests/unit/ps_worker/group"
REDUCE, OWNERS, CHANNEL = (
    f"{GROUP}/test_gradient_reduce.py",
    f"{GROUP}/test_owners.py",
    f"{GROUP}/test_channel.py",
)
RANK_PROCESSES = "tests/unit/ps_worker/process/test_rank_processes.py"
FAULTS = "tests/faults/test_groups.py"
TERMS = "tests/unit/ps_server/shard/partition/test_terms.py"
STREAM = "tests/unit/ps_worker/transport/test_socket_stream.py"
EXCHANGE = "tests/unit/ps_worker/exchange/test_exchange.py"
MEMORY = "tests/contracts/test_shared_memory.py"
SESSION = "tests/unit/ps_server/shard/transport/test_session.py"
TABLE = "tests/unit/ps_server/shard/table/test_table.py"
GROUPS = "tests/integration/test_groups.py"

LENT = f"{GROUP}/test_lent_gradients.py"

MUTANTS = (
    Mutant(
        name="owners: a status has the ranks of one shard alone",
        file="ps_lab/status/status.py",
        text="        ranks=_merge_ranks([it for part in parts for it in part.ranks]),\n",
        fault="        ranks=parts[0].ranks,\n",
        tests=(
            "tests/unit/ps_lab/status/test_status.py::test_what_the_ranks_of_a_worker_have_pushed_is_summed_over_shards",
        ),
    ),
    Mutant(
        name="owners: ranks outlive the command that has started them",
        file="ps_worker/process/rank_processes.py",
        text="                die_with(me)\n",
        fault="",
        tests=(f"{FAULTS}::test_ranks_end_with_the_command_that_has_started_them_also_where_it_is_killed",),
    ),
    Mutant(
        name="owners: ranks that were started stay where another one cannot be",
        file="ps_worker/process/rank_processes.py",
        text="        _end(running)\n",
        fault="        pass\n",
        tests=(
            f"{RANK_PROCESSES}::test_where_the_system_starts_no_more_processes_those_that_were_started_end",
        ),
    ),
    Mutant(
        name="owners: memory of another process with that number is mapped",
        file="ps_worker/group/lent_gradients.py",
        text='        if [kernel(), found.st_dev, found.st_ino] != offer.get("memory"):\n',
        fault="        if False:\n",
        tests=(f"{LENT}::test_a_descriptor_that_means_other_memory_is_not_mapped",),
    ),
    Mutant(
        name="owners: each rank decides by itself whether gradients are lent",
        file="ps_worker/group/lent_gradients.py",
        text='    return lent if all(one.fields.get("mapped") is True for one in agreed) else None\n',
        fault="    return lent if agreed and all(found) else None\n",
        tests=(f"{LENT}::test_where_one_rank_has_nothing_to_lend_none_borrows",),
    ),
    Mutant(
        name="owners: the mean of lent gradients is written to the first rank's",
        file="ps_wire/process/rank_mean.py",
        text="        kernels.KERNELS.mean(parts, out)\n",
        fault="        out.copy_(parts[0].add_(parts[1]).div_(2))\n",
        tests=(f"{REDUCE}::test_who_reads_gradients_where_they_lie_writes_its_own_alone",),
    ),
    Mutant(
        name="owners: what some ranks have not said yet is never pushed",
        file="ps_worker/group/gradient_reduce.py",
        text='those of the others. See `push`."""\n        return self._heard(waits=True)\n',
        fault='those of the others. See `push`."""\n        return self._heard(waits=False)\n',
        tests=(f"{REDUCE}::test_the_mean_is_that_of_the_servers_to_the_bit",),
    ),
    Mutant(
        name="owners: a bucket leaves when one other rank has said that it is there",
        file="ps_worker/group/channel.py",
        text="            return all(self._here(rank, 1) for rank in self._all_others)\n",
        fault="            return any(self._here(rank, 1) for rank in self._all_others)\n",
        tests=(
            f"{CHANNEL}::test_what_is_said_ahead_is_there_when_all_have_said_it_and_is_heard_before_anything_else",
        ),
    ),
    Mutant(
        name="owners: an exchange does not push what its ranks have kept back",
        file="ps_worker/exchange/exchange.py",
        text="            self._push_reduced(self._ranks.rest(), step)\n",
        fault="            self._ranks.rest()\n",
        tests=(
            f"{EXCHANGE}::test_a_shard_that_maps_the_weights_gets_the_memory_of_all_ranks_and_adds_up_what_they_have",
        ),
    ),
    Mutant(
        name="terms: one that has a rank without a gradient is added up by the shard",
        file="ps_worker/group/gradient_reduce.py",
        text="        return everyone and bool(self.descriptors)",
        fault="        return bool(self.descriptors)",
        tests=(f"{REDUCE}::test_what_no_shard_can_add_up_the_owner_does",),
    ),
    Mutant(
        name="terms: those of 16 bits are added up as if they were float32",
        file="ps_worker/group/gradient_reduce.py",
        text=" and self._gradients[bucket].dtype is torch.float32\n",
        fault="\n",
        tests=(f"{REDUCE}::test_what_no_shard_can_add_up_the_owner_does",),
    ),
    Mutant(
        name="terms: the owner's comes first",
        file="ps_worker/group/gradient_reduce.py",
        text="            flats = [flat or self._gradients for flat in self._lent.tensors]\n",
        fault="            flats = [self._gradients, *(flat for flat in self._lent.tensors if flat)]\n",
        tests=(f"{REDUCE}::test_what_a_shard_can_read_stays_apart_in_rank_order_and_nobody_writes",),
    ),
    Mutant(
        name="terms: over a connection that shares nothing the first one travels",
        file="ps_worker/transport/socket_stream.py",
        text="                    frames = [whole(frame) for frame in frames if",
        fault='                    frames = [frame.but(terms=(), payload=frame.payload or b"".join(frame.terms[:1])) for frame in frames if',
        tests=(f"{STREAM}::test_of_terms_that_the_shard_does_not_map_the_mean_travels",),
    ),
    Mutant(
        name="terms: a connection that shares no memory of this table leaves terms out",
        file="ps_worker/transport/socket_stream.py",
        text="        return whole(frame)\n",
        fault="        return frame.but(terms=())\n",
        tests=(f"{STREAM}::test_of_terms_that_the_shard_does_not_map_the_mean_travels",),
    ),
    Mutant(
        name="terms: a shard is not told that it is to add up",
        file="ps_worker/transport/socket_stream.py",
        text=" | wire.RANKS * bool(frame.terms)\n",
        fault="\n",
        tests=(f"{STREAM}::test_terms_that_the_shard_maps_stay_where_they_are",),
    ),
    Mutant(
        name="terms: they are pushed though no shard gets the memory any more",
        file="ps_worker/exchange/exchange.py",
        text="            apart=bool(self._of_ranks and self.memory.descriptors),\n",
        fault="            apart=bool(self._of_ranks),\n",
        tests=(
            f"{EXCHANGE}::test_a_shard_that_maps_the_weights_gets_the_memory_of_all_ranks_and_adds_up_what_they_have",
        ),
    ),
    Mutant(
        name="terms: the shard reads the memory of the sender in place of its ranks'",
        file="ps_server/shard/transport/shared_regions.py",
        text="            regions = self.ranks if of_ranks else (self.gradients,)\n",
        fault="            regions = (self.gradients,) * (len(self.ranks) if of_ranks else 1)\n",
        tests=(
            f"{MEMORY}::test_a_gradient_of_ranks_is_the_mean_of_what_they_have_and_of_who_has_said_so_alone",
        ),
    ),
    Mutant(
        name="terms: of an evicted group they are still read",
        file="ps_server/shard/partition/gradient.py",
        text="    return replace(contribution, payload=replace(gradient, terms=(values,), borrowed=False))\n",
        fault="    return replace(contribution, payload=replace(gradient, borrowed=False))\n",
        tests=(f"{TERMS}::test_what_counts_of_an_evicted_group_is_read_of_no_rank_any_more",),
    ),
    Mutant(
        name="terms: groups of different sizes are taken for one of all ranks",
        file="ps_server/shard/partition/gradient.py",
        text="    if len(numbers) > 1:\n        return [gradient.values for gradient in gradients], 1\n",
        fault="    if len(numbers) > 1:\n        return [term for gradient in gradients for term in gradient.terms], 1\n",
        tests=(f"{TERMS}::test_a_step_is_that_of_the_mean_of_workers_means_in_rank_order_to_the_bit",),
    ),
    Mutant(
        name="terms: the weight of a single group's push is taken for that of its ranks",
        file="ps_server/shard/partition/screening.py",
        text="    if not is_plain(weights):\n",
        fault="    if False:\n",
        tests=(f"{TERMS}::test_a_step_is_that_of_the_mean_of_workers_means_in_rank_order_to_the_bit",),
    ),
    Mutant(
        name="kernels.c: a mean of means is one of all terms",
        file="ps_wire/process/kernels.c",
        text="    return ranks == 1 ? sum : divided_vector(sum, all);\n",
        fault="    return ranks == 1 || ranks == 3 ? sum : divided_vector(sum, all);\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_kernels.py",),
    ),
    Mutant(
        name="owners: weights go to ranks that map them",
        file="ps_worker/group/gradient_reduce.py",
        text="            wanting = [rank for rank in range(self._size) if partition.shard not in sees[rank]]\n",
        fault="            wanting = list(range(self._size))\n",
        tests=(f"{REDUCE}::test_weights_that_a_rank_sees_where_the_servers_have_them_are_not_sent_to_it",),
    ),
    Mutant(
        name="owners: the compiled mean in place is not tried",
        file="ps_wire/process/kernels.py",
        text="        if not same_bits(terms[-1], expected):\n",
        fault="        if False:\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_kernels.py",),
        survives="the kernel is right here: the look at the start is for other machines",
    ),
    Mutant(
        name="owners: a rank's HELLO retires the connection of another rank",
        file="ps_server/shard/sessions.py",
        text="        before, self.live[worker, rank] = self.live.get((worker, rank)), session\n",
        fault="        before, self.live[worker, 0] = self.live.get((worker, 0)), session\n",
        tests=(
            f"{SESSION}::test_ranks_of_one_worker_have_a_connection_each_and_a_new_one_retires_that_of_its_rank_alone",
        ),
    ),
    Mutant(
        name="owners: a connection of one rank takes frames of another",
        file="ps_server/shard/transport/session.py",
        text="        if frame.rank != self._rank:\n",
        fault="        if False:\n",
        tests=(
            f"{SESSION}::test_a_token_of_one_rank_opens_no_connection_of_another_and_a_frame_says_its_rank",
        ),
    ),
    Mutant(
        name="owners: there is no largest rank",
        file="ps_server/shard/shard.py",
        text="    if rank >= (1 if worker >= FIRST_READER else MAX_SIZE):\n",
        fault="    if False:\n",
        tests=(f"{SESSION}::test_a_rank_that_no_group_has_gets_no_token",),
    ),
    Mutant(
        name="owners: a fence ends the connection of rank 0 alone",
        file="ps_server/shard/sessions.py",
        text="        gone = [key for key in self.live if key[0] == worker]\n",
        fault="        gone = [key for key in self.live if key == (worker, 0)]\n",
        tests=(f"{SESSION}::test_an_eviction_ends_the_connections_of_all_ranks",),
    ),
    Mutant(
        name="protocol: the ACK of a LOAD is as that of a push",
        file="ps_server/shard/table/table.py",
        text=", flags=wire.LOADED)",
        fault=")",
        tests=("tests/unit/ps_server/shard/transport/test_session.py",),
    ),
    Mutant(
        name="owners: hyper-parameters of ranks take each other's place",
        file="ps_server/shard/table/table.py",
        text="        self._hyper.keep((frame.worker, frame.rank), frame.hyper, hyper)\n",
        fault="        self._hyper.keep((frame.worker, 0), frame.hyper, hyper)\n",
        tests=(f"{TABLE}::test_hyper_parameters_belong_to_the_rank_that_has_sent_them",),
    ),
    Mutant(
        name="owners: rank 0 owns all partitions",
        file="ps_worker/group/owners.py",
        text="        owner = min(range(ranks), key=loads_bytes.__getitem__)\n",
        fault="        owner = 0\n",
        tests=(f"{OWNERS}::test_no_rank_has_more_than_its_part_and_one_partition",),
    ),
    Mutant(
        name="owners: the bytes of an owner are not counted",
        file="ps_worker/group/owners.py",
        text="        loads_bytes[owner] += sizes_bytes[index]\n",
        fault="        loads_bytes[owner] += 1\n",
        tests=(f"{OWNERS}::test_partitions_of_one_size_go_round_and_the_small_ones_level_what_is_left",),
    ),
    Mutant(
        name="owners: each rank pulls the whole model",
        file="ps_worker/exchange/exchange.py",
        text="pulled=[it.index for it in self._own],\n",
        fault="pulled=None,\n",
        tests=(
            f"{GROUPS}::test_each_rank_pushes_and_pulls_its_part_of_the_model_itself_and_the_job_knows_workers_alone",
        ),
    ),
    Mutant(
        name="owners: an error of one owner is raised on it alone",
        file="ps_worker/group/arrived_weights.py",
        text="        for one in said:\n            failed",
        fault="        for one in said[-1:]:\n            failed",
        tests=(f"{REDUCE}::test_an_error_of_one_owner_in_place_of_its_weights_is_raised_on_all_ranks",),
    ),
    Mutant(
        name="owners: a rank takes another's statement for the leader's answer",
        file="ps_worker/group/channel.py",
        text='        self._compare(str(said.fields.get("what")), self.ranks.rank, Said({"what": what}))\n',
        fault="        pass\n",
        tests=(f"{CHANNEL}::test_what_the_leader_says_of_something_else_is_no_answer",),
    ),
    Mutant(
        name="owners: who waits for servers does not hear that the group has ended",
        file="ps_worker/group/abort.py",
        text="        for tell in told:\n",
        fault="        for tell in told[:0]:\n",
        tests=(f"{CHANNEL}::test_who_waits_for_something_else_hears_of_the_end_of_the_group_once",),
    ),
)
