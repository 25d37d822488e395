"""Faults of what a partition does with tensors: means, steps, replies, memory that is lent, clipping."""

from .mutant import Mutant

CELL = "ps_server/shard/partition/cell.py"
LOANS = "ps_server/shard/partition/lent_pushes.py"
OWED = "ps_server/shard/partition/owed_errors.py"
SCREENING = "ps_server/shard/partition/screening.py"
VALUES = "ps_server/shard/optimizer/partition_tensors.py"
WEIGHTS = "ps_server/shard/optimizer/versioned_weights.py"
AVERAGE = "ps_server/shard/optimizer/mean.py"
STEPPERS = "ps_server/shard/optimizer/steppers.py"
OPTIMIZERS = "ps_server/shard/optimizer/piece_optimizer.py"
ADAM = "ps_server/shard/optimizer/adam.py"
KERNELS = "ps_wire/process/kernels.c"
CLIPPING = "ps_server/agreement/clipping.py"
BALLOTS = "ps_server/coordinator/fleet/ballots.py"
LAW_1 = "tests/unit/ps_server/shard/test_law_1_in_process.py"
CLIPS = "tests/unit/ps_server/agreement/test_clipping.py"
EVICTION = "tests/unit/ps_server/shard/table/test_eviction.py"
NONFINITE = "tests/unit/ps_server/shard/partition/test_nonfinite.py"
STATE = "tests/unit/ps_server/shard/state/test_optimizer_state.py"
TABLE = "tests/unit/ps_server/shard/table/test_table.py"

MUTANTS = (
    Mutant(
        name="average: the mean is over the workers, whatever their weights",
        file=AVERAGE,
        text=(
            "        out.add_(torch.mul(gradient, weight, out=product))\n    return out.div_(sum(weights))\n"
        ),
        fault=(
            "        out.add_(torch.mul(gradient, weight, out=product))\n    return out.div_(len(weights))\n"
        ),
        tests=("tests/unit/ps_server/shard/optimizer/test_mean.py",),
    ),
    Mutant(
        name="average: product and sum are rounded at once",
        file=AVERAGE,
        text="        out.add_(torch.mul(gradient, weight, out=product))\n",
        fault="        out.add_(gradient, alpha=weight)\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_mean.py",),
    ),
    Mutant(
        name="average: the sum is made in the first gradient's memory",
        file=AVERAGE,
        text="        torch.add(first, gradients[1], out=out)\n",
        fault="        out = first.add_(gradients[1])\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_mean.py",),
    ),
    Mutant(
        name="average: one gradient of any weight is taken as it is",
        file=AVERAGE,
        text="if equal and len(terms) == 1 and first.dtype not in NARROW:",
        fault="if len(terms) == 1:",
        tests=(
            "tests/unit/ps_server/shard/optimizer/test_mean.py",
            "tests/unit/ps_server/shard/table/test_wire_dtype.py",
        ),
    ),
    Mutant(
        name="average: threads share their scratch",
        file=AVERAGE,
        text="class Scratch(threading.local):",
        fault="class Scratch:",
        tests=(
            "tests/unit/ps_server/shard/optimizer/test_mean.py::test_dtypes_and_threads_have_scratch_of_their_own",
        ),
    ),
    Mutant(
        name="cell: who has one gradient is taken for one who has all",
        file="ps_server/shard/partition/cell.py",
        text="        if all(gradient.present):\n",
        fault="        if any(gradient.present):\n",
        tests=("tests/unit/ps_server/shard/test_law_1_in_process.py",),
    ),
    Mutant(
        name="kernels.c: the mean leaves its last elements out",
        file=KERNELS,
        text="    for (; at < elements; at++) {\n        float mean = mean_scalar",
        fault="    for (; at + 1 < elements; at++) {\n        float mean = mean_scalar",
        tests=("tests/unit/ps_server/shard/optimizer/test_kernels.py",),
    ),
    Mutant(
        name="kernels.c: what is not finite is not seen in the last elements",
        file=KERNELS,
        text="        alone += 0.0f * values[at];\n",
        fault="        alone += 0.0f;\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_kernels.py", NONFINITE),
    ),
    Mutant(
        name="kernels.c: three is taken for a power of two",
        file=KERNELS,
        text="return (count & (count - 1)) == 0;",
        fault="return (count & (count - 1)) == 0 || count == 3;",
        tests=("tests/unit/ps_server/shard/optimizer/test_kernels.py",),
    ),
    Mutant(
        name="kernels.c: Adam adds nothing of the weights to the gradient",
        file=KERNELS,
        text="            g = _mm256_fmadd_ps(w, l2s, g);",
        fault="            g = _mm256_fmadd_ps(w, l2s, w);",
        tests=("tests/unit/ps_server/shard/optimizer/test_adam.py",),
    ),
    Mutant(
        name="adam: the bias of the second moment is corrected by its square",
        file=ADAM,
        text="            root=math.sqrt(1 - beta2**count),",
        fault="            root=1 - beta2**count,",
        tests=("tests/unit/ps_server/shard/optimizer/test_adam.py",),
    ),
    Mutant(
        name="adam: a piece without a gradient keeps what the other half held",
        file=ADAM,
        text="                after[places[piece]] = before[places[piece]]\n",
        fault="                pass\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_adam.py", LAW_1),
    ),
    Mutant(
        name="adam: a piece without a gradient counts a step",
        file=ADAM,
        text="            if there and state:\n",
        fault="            if not there and state:\n                state['step'].add_(1)\n"
        "            if there and state:\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_adam.py", LAW_1),
    ),
    Mutant(
        name="adam: pieces that came later take the correction of the first one's steps",
        file=ADAM,
        text='                by_count.setdefault(_counted(state["step"]), []).append(piece)\n',
        fault='                count = _counted(state["step"])\n'
        "                by_count.setdefault(next(iter(by_count), count), []).append(piece)\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_adam.py", LAW_1),
    ),
    Mutant(
        name="optimizers: hyper-parameters of the start hold for ever",
        file=OPTIMIZERS,
        text="                own.update(group)\n            self._group = group",
        fault="                pass\n            self._group = group",
        tests=(f"{TABLE}::test_hyper_parameters_belong_to_the_pushes_that_name_them", LAW_1),
    ),
    Mutant(
        name="optimizers: sgd with weight decay is taken for plain",
        file=STEPPERS,
        text='for key in ("momentum", "weight_decay", "nesterov", "maximize")',
        fault='for key in ("momentum", "nesterov", "maximize")',
        tests=(
            LAW_1,
            "tests/unit/ps_server/shard/optimizer/test_plain_step.py",
            "tests/unit/ps_server/shard/optimizer/test_piece_optimizer.py",
        ),
    ),
    Mutant(
        name="optimizers: gradients stay on the pieces after a step",
        file=OPTIMIZERS,
        text="            for piece, _ in batch:\n                piece.grad = None\n",
        fault="",
        tests=(
            "tests/unit/ps_server/shard/optimizer/test_piece_optimizer.py",
            f"{TABLE}::test_parameters_without_a_gradient_are_left_alone",
        ),
    ),
    Mutant(
        name="optimizers: a state is handed out, not copied",
        file=OPTIMIZERS,
        text="{key: value.detach().clone() for key, value in state.items()}",
        fault="{key: value.detach() for key, value in state.items()}",
        tests=(
            "tests/unit/ps_server/shard/optimizer/test_piece_optimizer.py::test_a_state_that_was_taken_stays_as_it_was_while_steps_follow",
        ),
    ),
    Mutant(
        name="optimizers: a state that is set is the caller's memory",
        file=OPTIMIZERS,
        text="value.detach().to(torch.float32, copy=True) if counts else value.detach().clone()",
        fault="value.detach().to(torch.float32) if counts else value.detach()",
        tests=(
            "tests/unit/ps_server/shard/optimizer/test_piece_optimizer.py::test_a_state_that_was_taken_stays_as_it_was_while_steps_follow",
        ),
    ),
    Mutant(
        name="cell: weights are written while a reply leaves from them",
        file=WEIGHTS,
        text="        return [reply for reply in replies if reply is not None and reply.held]",
        fault="        return []",
        tests=("tests/unit/ps_server/shard/optimizer/test_versioned_weights.py",),
    ),
    Mutant(
        name="cell: memory that was left is used again while it is read",
        file=WEIGHTS,
        text="[reply for reply in replies if reply.held])\n",
        fault="[])\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_versioned_weights.py",),
    ),
    Mutant(
        name="cell: only the last reply is remembered",
        file=WEIGHTS,
        text="self._replies = [weakref.ref(other) for other in self._held()] + [weakref.ref(reply)]",
        fault="self._replies = [weakref.ref(reply)]",
        tests=("tests/unit/ps_server/shard/optimizer/test_versioned_weights.py",),
    ),
    Mutant(
        name="cell: weights move without their values",
        file=WEIGHTS,
        text="        self._move(held)\n        self.now.copy_(before)\n",
        fault="        self._move(held)\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_versioned_weights.py",),
    ),
    Mutant(
        name="cell: another partition writes into what the next version is made of, once its reply has left",
        file=WEIGHTS,
        text="        self._leave(before, held)\n",
        fault="        self._leave(before, self._held())\n",
        tests=(
            "tests/unit/ps_server/shard/optimizer/test_versioned_weights.py::test_what_the_next_version_is_made_of_is_no_other_partitions_memory_yet",
        ),
    ),
    Mutant(
        name="cell: halves begin with the other one",
        file=WEIGHTS,
        text="halves[version & 1], halves[~version & 1]",
        fault="halves[~version & 1], halves[version & 1]",
        tests=("tests/contracts/test_mapped_halves.py", "tests/component/memory/test_mapped_weights.py"),
    ),
    Mutant(
        name="cell: a version in which nothing is applied stays in the half before",
        file=WEIGHTS,
        text="            before = self.now\n            self.next().copy_(before)\n",
        fault="            pass\n",
        tests=("tests/contracts/test_mapped_halves.py",),
    ),
    Mutant(
        name="cell: the optimizer steps memory that the weights have left",
        file=STEPPERS,
        text="    if bound.elsewhere:\n        bound.rebind()\n    bound.optimizer.step",
        fault="    bound.optimizer.step",
        tests=("tests/unit/ps_server/shard/optimizer/test_versioned_weights.py",),
    ),
    Mutant(
        name="steppers: a plain step goes over pieces without a gradient",
        file=STEPPERS,
        text="    if not all(flags):\n        return False\n",
        fault="",
        tests=("tests/unit/ps_server/shard/optimizer/test_plain_step.py",),
    ),
    Mutant(
        name="steppers: what fits is not looked at again when hyper-parameters change",
        file=VALUES,
        text="        if group is not self._group:\n",
        fault="        if self._group is None:\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_plain_step.py",),
    ),
    Mutant(
        name="steppers: what fits is not looked at again when weights lie in two halves",
        file=VALUES,
        text="            self._use(self._bound, self.parts)\n            self._bound.rebind()\n",
        fault="            self._bound.rebind()\n",
        tests=("tests/unit/ps_server/shard/optimizer/test_plain_step.py",),
    ),
    Mutant(
        name="steppers: a step that was made ahead is taken again",
        file=STEPPERS,
        text="    if weights.ahead:\n        weights.next()\n        return True\n    assert average",
        fault="    assert average",
        tests=("tests/unit/ps_server/shard/optimizer/test_kernels.py",),
    ),
    Mutant(
        name="steppers: a way past the device is taken",
        file=STEPPERS,
        text='    if optimizer.name != "SGD" or not optimizer.on_weights:\n',
        fault='    if optimizer.name != "SGD":\n',
        tests=("tests/unit/ps_server/shard/optimizer/test_device_optimizer.py",),
    ),
    Mutant(
        name="cell: rounded weights are those of the version before",
        file=VALUES,
        text="if made is None or made[0] != version:",
        fault="if made is None:",
        tests=("tests/unit/ps_server/shard/table/test_wire_dtype.py",),
    ),
    Mutant(
        name="cell: weights that are kept for who is late go on changing",
        file=VALUES,
        text="        self._kept[version] = self.now.clone()\n",
        fault="        self._kept[version] = self.now\n",
        tests=("tests/unit/ps_server/shard/table/test_backup_tables.py",),
    ),
    Mutant(
        name="cell: loaded weights keep the optimizer's state",
        file=VALUES,
        text="        if self.optimizer_bytes():\n",
        fault="        if self._bound is None:\n",
        tests=(f"{TABLE}::test_weights_that_are_loaded_have_no_history",),
    ),
    Mutant(
        name="cell: weights that are brought again take away the optimizer's state that came meanwhile",
        file=CELL,
        text="            if self._bringer == bringer:\n                return\n",
        fault="",
        tests=(f"{STATE}::test_weights_that_are_brought_again_leave_the_state_that_came_meanwhile",),
    ),
    Mutant(
        name="table: weights that are brought again once it has started end the worker",
        file="ps_server/shard/table/table.py",
        text="        if self.started and not cell.has_weights_of(bringer):\n",
        fault="        if self.started:\n",
        tests=(f"{TABLE}::test_weights_that_come_again_once_the_table_has_started_are_acknowledged",),
    ),
    Mutant(
        name="cell: a duplicate of a push that is lent says that the memory is free",
        file=CELL,
        text="                if gradient.borrowed and self.machine.holds",
        fault=(
            "                self.loans.release(contribution.worker, contribution.incarnation)\n"
            "                if gradient.borrowed and self.machine.holds"
        ),
        tests=("tests/unit/ps_server/shard/partition/test_lent_pushes.py",),
    ),
    Mutant(
        name="cell: memory that is lent is not given back",
        file=CELL,
        text="                self._send(lent.worker, self.replies.free(lent.worker, lent.step))\n",
        fault="                pass\n",
        tests=("tests/unit/ps_server/shard/partition/test_lent_pushes.py",),
    ),
    Mutant(
        name="cell: memory that is lent is given back before its step has closed",
        file=LOANS,
        text="if lent.step < version]",
        fault="if lent.step <= version]",
        survives="A push of the next step is taken only when this one has closed (R1): none is lent yet.",
        tests=(
            "tests/unit/ps_server/shard/partition/test_lent_pushes.py",
            "tests/contracts/test_shared_memory.py",
        ),
    ),
    Mutant(
        name="cell: what an evicted worker has pushed is read where it lies",
        file=CELL,
        text="        self.machine.keep(worker, owned)\n",
        fault="        pass\n",
        tests=(f"{EVICTION}::test_what_counts_of_an_evicted_worker_is_no_longer_read_in_its_memory",),
    ),
    Mutant(
        name="cell: a clipped step that an eviction has left waits for a norm that never comes",
        file=CELL,
        text="            self._closing.look_again()\n            self._carry_out(self.machine.evict(",
        fault="            self._carry_out(self.machine.evict(",
        tests=(f"{EVICTION}::test_the_step_that_a_worker_dies_in_is_that_of_the_others_alone", CLIPS),
    ),
    Mutant(
        name="cell: a step closes while the verdict over one of its workers is awaited",
        file=CELL,
        text="                if closing is not None and self.machine.complete:  # else one has joined",
        fault="                if closing is not None:  # else one has joined",
        tests=("tests/unit/ps_server/shard/table/test_closing.py",),
    ),
    Mutant(
        name="cell: who reads at the end misses a step that no thread has closed yet",
        file=CELL,
        text="            if self._closing.announced:  # else the last step",
        fault="            if False:  # else the last step",
        tests=("tests/unit/ps_server/shard/table/test_closing.py",),
    ),
    Mutant(
        name="cell: hyper-parameters are those of who came first",
        file=CELL,
        text="        hyper = gradients[0].hyper\n",
        fault="        hyper = gradients[-1].hyper\n",
        tests=(f"{TABLE}::test_hyper_parameters_that_differ_in_a_step_are_counted_and_named_once", TABLE),
    ),
    Mutant(
        name="cell: the scale of a clipped step is forgotten",
        file=CELL,
        text="        if average is not None and action.scale != 1.0:\n",
        fault="        if average is not None and action.scale > 1.0:\n",
        tests=(CLIPS,),
    ),
    Mutant(
        name="cell: a lost connection gets weights",
        file=CELL,
        text="                del self.outlets[worker]\n            self.cut.forget(outlet)",
        fault="                pass\n            self.cut.forget(outlet)",
        tests=(f"{TABLE}::test_what_a_lost_connection_has_asked_for_is_not_sent_there",),
    ),
    Mutant(
        name="screening: what is not finite is applied where it is one of several",
        file=SCREENING,
        text="            bad = [(item, piece) for item, piece in looked if piece is not None]\n",
        fault="            bad = [(item, piece) for item, piece in looked[:1] if piece is not None]\n",
        tests=(NONFINITE,),
    ),
    Mutant(
        name="screening: what is left of a step is not looked at again",
        file=SCREENING,
        text="            for item, piece in bad:\n                self.withheld(item, piece)\n",
        fault=(
            "            for item, piece in bad:\n                self.withheld(item, piece)\n"
            "            left = [item for item in machine.staged if not item.abstains]\n"
            "            return mean_of(left, self._scratch) if left else None\n"
        ),
        tests=(NONFINITE,),
    ),
    Mutant(
        name="screening: an error of an incarnation before is raised",
        file=OWED,
        text="        return error if failed == incarnation else None",
        fault="        return error",
        tests=(NONFINITE,),
    ),
    Mutant(
        name="clipping: squares are added in order of arrival",
        file=CLIPPING,
        text="sum(squares[index] for index in sorted(squares))",
        fault="sum(squares.values())",
        tests=(f"{CLIPS}::test_squares_are_added_in_partition_order",),
    ),
    Mutant(
        name="clipping: a step is reported before all cells have it",
        file=CLIPPING,
        text="            if len(squares) == self._num_cells:\n",
        fault="            if len(squares) >= self._num_cells - 1:\n",
        tests=(CLIPS,),
    ),
    Mutant(
        name="clipping: a norm that an evicted worker is in stays after its eviction",
        file=CLIPPING,
        text="            self._squares.clear()\n",
        fault="",
        tests=(f"{CLIPS}::test_a_shard_reports_the_norm_of_those_who_are_left",),
    ),
    Mutant(
        name="clipping: norms say no epoch",
        file=CLIPPING,
        text="            self._membership_epoch = membership_epoch\n            for step",
        fault="            for step",
        tests=(f"{CLIPS}::test_a_shard_reports_the_norm_of_those_who_are_left",),
    ),
    Mutant(
        name="clipping: a shard reports a step once, whoever has gone since",
        file=CLIPPING,
        text="                self._reported = min(self._reported, step - 1)\n",
        fault="                pass\n",
        tests=(CLIPS, EVICTION),
    ),
    Mutant(
        name="clipping: a norm that is not finite clips nothing",
        file=CLIPPING,
        text="    return min(scale, 1.0)  # in",
        fault="    return min(1.0, scale)  # in",
        tests=(f"{CLIPS}::test_the_coefficient_is_torchs",),
    ),
    Mutant(
        name="ballots: scales that were decided are not handed on",
        file=BALLOTS,
        text="            scale.remember(decided)\n",
        fault="",
        tests=("tests/unit/ps_server/coordinator/test_hand_off.py",),
    ),
    Mutant(
        name="ballots: a scale waits for orders of the job",
        file=BALLOTS,
        text="        return [Decision(pb.Order(decide=self.decided), self.holders, beside=True)]\n",
        fault="        return [Decision(pb.Order(decide=self.decided), self.holders, beside=False)]\n",
        tests=(CLIPS,),
    ),
    Mutant(
        name="ballots: a norm of an evicted worker enters the scale",
        file=BALLOTS,
        text="            self._membership_epoch = norm.membership_epoch\n            self._squares.clear()\n",
        fault="            self._membership_epoch = norm.membership_epoch\n",
        tests=(CLIPS, EVICTION),
    ),
    Mutant(
        name="ballots: a norm of before an eviction is taken after it",
        file=BALLOTS,
        text="        if norm.step != open_step or norm.membership_epoch < self._membership_epoch:\n",
        fault="        if norm.step != open_step:\n",
        tests=(CLIPS, EVICTION),
    ),
    Mutant(
        name="ballots: a table that is made again takes norms of the one before",
        file=BALLOTS,
        text="        if self.of.opening != report.opening or shard not in self.holders:\n",
        fault="        if shard not in self.holders:\n",
        tests=(CLIPS,),
    ),
    Mutant(
        name="ballots: shards add up their squares in order of arrival",
        file=BALLOTS,
        text="        squares = sum(self._squares[holder] for holder in self.holders)\n",
        fault="        squares = sum(self._squares.values())\n",
        tests=(CLIPS, "tests/unit/ps_server/coordinator/fleet/test_fleet.py"),
    ),
)
