"""Faults of the runtime of pipelines."""

from .mutant import Mutant

CUT = "tests/unit/ps_worker/pipeline/test_pipeline.py"
TRAFFIC = "tests/unit/ps_worker/group/test_stage_traffic.py"
PIPELINES = "tests/integration/test_pipeline.py"
OWN, OF_OWN = "ps_worker/pipeline/own_parameters.py", "tests/unit/ps_worker/pipeline/test_own_parameters.py"
HELD = "tests/unit/ps_worker/memory/test_held_buckets.py"
SPARE = f"{PIPELINES}::test_a_stage_has_memory_for_its_own_parameters_alone_and_for_no_others_when_it_leaves"
STAGE, OF_STAGE = "ps_worker/pipeline/stage_module.py", "tests/unit/ps_worker/pipeline/test_stage_module.py"
HALF = f"{PIPELINES}::test_each_stage_runs_where_its_example_is"
AGAIN = f"{PIPELINES}::test_a_job_goes_on_in_one_process_and_in_another_number_of_stages"
TIED = f"{PIPELINES}::test_tied_weights_and_several_stages_on_a_rank_are_close_to_a_step_in_one_process"
ODD = f"{PIPELINES}::test_odd_models_come_to_the_bits_of_one_process"

CAPTURE = "tests/unit/ps_worker/job/test_group_capture.py"
LATER = f"{CAPTURE}::test_all_stages_capture_at_one_step_though_they_hear_of_a_cut_a_step_later"

MUTANTS = (
    Mutant(
        name="a stage runs outside of the script's autocast",
        file=STAGE,
        text="        with self._autocast.forward():\n            if again",
        fault="        with self._autocast.backward():\n            if again",
        tests=(HALF,),
    ),
    Mutant(
        name="shapes are those without autocast",
        file=STAGE,
        text="        if autocast.dtype is not None:\n",
        fault="        if False:\n",
        tests=(HALF,),
    ),
    Mutant(
        name="backward runs under the script's autocast",
        file="ps_worker/pipeline/pipeline.py",
        text="            with self._autocast.backward():  #",
        fault="            with self._autocast.forward():  #",
        tests=(HALF,),
    ),
    Mutant(
        name="a loss is computed outside of the script's autocast",
        file="ps_worker/pipeline/pipeline.py",
        text="        with self._autocast.forward():\n            return _one_number(",
        fault="        with self._autocast.backward():\n            return _one_number(",
        tests=(HALF,),
    ),
    Mutant(
        name="stages may differ in autocast",
        file="ps_worker/pipeline/pipeline.py",
        text='            "autocast": self._autocast,\n',
        fault="",
        tests=("tests/unit/ps_worker/pipeline/test_pipeline.py",),
    ),
    Mutant(
        name="a stage sends another dtype than the next one has memory for",
        file=STAGE,
        text="        if gives != self._gives:\n",
        fault="        if False:\n",
        tests=(OF_STAGE,),
    ),
    Mutant(
        name="a pipeline is called under another autocast than it was made under",
        file=STAGE,
        text="        if now != self:\n",
        fault="        if False:\n",
        tests=(OF_STAGE,),
    ),
    Mutant(
        name="nobody looks under which autocast a pipeline is called",
        file="ps_worker/pipeline/pipeline.py",
        text="        self._autocast.check(Autocast.of_script(self._device.type))\n",
        fault="",
        tests=(TIED,),
    ),
    Mutant(
        name="a gradient of zeros is there twice while a schedule runs",
        file="ps_worker/pipeline/pipeline.py",
        text="    return gradient.is_cpu and not gradient.any()\n",
        fault="    return False\n",
        tests=(AGAIN,),
    ),
    Mutant(
        name="rank 0 gets a buffer for which it has no room",
        file="ps_worker/pipeline/pipeline.py",
        text="                self._check_kind(index)\n",
        fault="",
        tests=(TIED,),
    ),
    Mutant(
        name="a stage whose end no gradient comes back over is trained",
        file="ps_worker/pipeline/pipeline.py",
        text="        self._check_untrained()\n",
        fault="",
        tests=(TIED,),
    ),
    Mutant(
        name="stages with buffers of other sizes are taken for alike",
        file="ps_worker/pipeline/pipeline.py",
        text='            "the buffers of the model": [\n',
        fault='            "the buffers of the model": [] and [\n',
        tests=(CUT,),
    ),
    Mutant(
        name="of stages with other models the checksums are said, and no parameter",
        file="ps_worker/pipeline/pipeline.py",
        text="                if what in lists:  #",
        fault="                if not facts:  #",
        tests=("tests/unit/ps_worker/pipeline/test_pipeline.py",),
    ),
    Mutant(
        name="one stage alone finds that a module has no first values, and the others wait for it",
        file="ps_worker/pipeline/pipeline.py",
        text="        own_parameters.check_first_values(model)\n",
        fault="",
        tests=("tests/unit/ps_worker/pipeline/test_pipeline.py",),
    ),
    Mutant(
        name="stages are promised a step that one may have begun before it hears of the cut",
        file="ps_worker/job/group_capture.py",
        text="FORETELLS, FORETELLS_STAGES = 1, 2 ",
        fault="FORETELLS, FORETELLS_STAGES = 1, 1 ",
        tests=(LATER,),
    ),
    Mutant(
        name="a stage that hears of a cut again captures a second time",
        file="ps_worker/membership/snapshot_promise.py",
        text="            elif cut.number != self.captured:\n",
        fault="            else:\n",
        tests=(LATER,),
    ),
    Mutant(
        name="a snapshot of a pipeline has what stage 0 draws from alone",
        file="ps_worker/job/job_link.py",
        text="        if group is not None:\n            promises =",
        fault="        if group is not None and not settings.pipeline:\n            promises =",
        tests=(
            f"{PIPELINES}::test_a_job_goes_on_from_a_snapshot_in_another_number_of_stages_to_the_same_bits",
        ),
    ),
    Mutant(
        name="stages say nothing of a cut with their weights",
        file="ps_worker/group/stage_traffic.py",
        text="            mine |= self._rider.say(self._table, step - 1)\n",
        fault="            self._rider.say(self._table, step - 1)\n",
        tests=(LATER,),
    ),
    Mutant(
        name="a stage packs its buffers, and takes them where blocks have moved to it",
        file="ps_worker/job/side_state.py",
        text="self.of_tables() if self._with_buffers else {}",
        fault="self.of_tables()",
        tests=(
            f"{CAPTURE}::test_a_stage_takes_the_buffers_that_rank_0_has_of_all_stages_and_its_own_generators",
        ),
    ),
    Mutant(
        name="a bucket may hold parameters of two stages",
        file="ps_wire/spec/plan.py",
        text="key = (stages[index], parameter.group,",
        fault="key = (0, parameter.group,",
        tests=("tests/unit/ps_wire/spec/test_plan.py",),
    ),
    Mutant(
        name="the state of a stage has tied weights by one name",
        file="ps_worker/pipeline/pipeline.py",
        text="        whole = self.model.state_dict(keep_vars=True)\n",
        fault="        whole = dict([*self.model.named_parameters(), *self.model.named_buffers()])\n",
        tests=(TIED,),
    ),
    Mutant(
        name="a GradScaler steps a stage",
        file="ps_worker/optimizer/wrapped.py",
        text="        if scaled and not self._scales:\n",
        fault="        if False:\n",
        tests=(TIED,),
    ),
    Mutant(
        name="an example of another dtype is found out by the first batch",
        file="ps_worker/pipeline/stage_module.py",
        text="            with torch.enable_grad(), _OneDtype():",
        fault="            with torch.enable_grad():",
        tests=("tests/unit/ps_worker/pipeline/test_pipeline.py",),
    ),
    Mutant(
        name="stages that name other cuts follow those of stage 0",
        file="ps_worker/pipeline/pipeline.py",
        text="wanted = names if asked_cuts is None else",
        fault="wanted = names if True else",
        tests=("tests/unit/ps_worker/pipeline/test_pipeline.py",),
    ),
    Mutant(
        name="a stage waits for the schedules of all others before it pushes",
        file="ps_worker/group/stage_traffic.py",
        text="        if step != self._step:\n",
        fault="        if step != self._step:\n            self._channel.share('a step')\n",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="a stage waits for the weights of all others before it goes on",
        file="ps_worker/group/stage_traffic.py",
        text="if step and not self._at_once:",
        fault="if not self._partitions:",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="stages train on with weights of two steps under bsp",
        file="ps_worker/group/stage_traffic.py",
        text="if self._spread and self._one_version:",
        fault="if self._spread and not self._owners:",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="what other stages hold of a partition counts for nothing where its owner has no gradient",
        file="ps_worker/group/stage_traffic.py",
        text="weight = max([weight, *self._add(bucket, there, weight)])",
        fault="self._add(bucket, there, weight)",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="stages on several hosts meet on loopback",
        file="ps_worker/group/rendezvous.py",
        text="host, _, port = (far if apart else near)",
        fault="host, _, port = (near)",
        tests=(
            "tests/integration/test_pipeline.py::test_stages_on_two_hosts_find_each_other_and_send_over_the_link",
        ),
    ),
    Mutant(
        name="an evaluation compares all micro-batches with the first one's target",
        file="ps_worker/pipeline/pipeline.py",
        text="float(loss_fn(made, targets[number]))",
        fault="float(loss_fn(made, targets[0]))",
        tests=(TIED,),
    ),
    Mutant(
        name="rank 0 does not get the buffers of other stages",
        file="ps_worker/pipeline/pipeline.py",
        text="buffer.copy_(received.view(buffer.shape))",
        fault="received.view(buffer.shape)",
        tests=(TIED,),
    ),
    Mutant(
        name="stages above the first do not hear that their job went back to a snapshot",
        file="ps_worker/job/rank_presence.py",
        text="return self.joined.resumed or self.joined.rolled_back",
        fault="return self.joined.resumed",
        tests=(
            f"{PIPELINES}::test_a_job_goes_on_from_a_snapshot_in_another_number_of_stages_to_the_same_bits",
        ),
    ),
    Mutant(
        name="first values of tied weights are those of the other stage",
        file="ps_worker/group/stage_traffic.py",
        text="for of in self._loans for loan in of if not loan.adds]",
        fault="for of in self._loans for loan in of]",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="a schedule waits for a stage that says nothing, whatever becomes of the group",
        file="ps_worker/group/bounded_group.py",
        text="self._channel.end(self._rank, self._work)",
        fault="self._work.wait()",
        tests=("tests/unit/ps_worker/group/test_bounded_group.py",),
    ),
    Mutant(
        name="parameters that go are others than the optimizer's",
        file=OWN,
        text="torch.utils.swap_tensors(tensor, values)",
        fault="torch.utils.swap_tensors(tensor.detach().clone(), values.detach())",
        tests=(OF_OWN,),
    ),
    Mutant(
        name="a stage that leaves copies the weights of all stages",
        file="ps_worker/job/table_start.py",
        text="held=None if stage is None else",
        fault="held=None if True else",
        tests=(SPARE,),
    ),
    Mutant(
        name="each stage imports the compiler by itself",
        file="ps_worker/cli.py",
        text="modules = (PIPELINING,) if pipeline_stages > 1 else ()",
        fault="modules = ()",
        tests=(SPARE,),
    ),
    Mutant(
        name="weights of other stages are laid over a stage's",
        file="ps_worker/memory/table_memory.py",
        text="        layout = SliceLayout(self._plan, shard, self._held)\n",
        fault="        layout = SliceLayout(self._plan, shard)\n",
        tests=(HELD,),
    ),
    Mutant(
        name="a stage makes weights of others its own as it leaves",
        file="ps_worker/memory/table_memory.py",
        text="for at, _, count in SliceLayout(self._plan, shard, self._held).spans]",
        fault="for at, _, count in SliceLayout(self._plan, shard).spans]",
        tests=(HELD,),
    ),
    Mutant(
        name="weights of other stages that travel have memory in a stage",
        file="ps_worker/memory/table_memory.py",
        text="FlatBuckets(plan, memory=weights, held=held)",
        fault="FlatBuckets(plan, memory=weights)",
        tests=(HELD,),
    ),
    Mutant(
        name="the memory of parameters that go is kept",
        file=OWN,
        text="        give_back_freed_blocks()\n",
        fault="        give_back_freed_blocks\n",
        tests=(OF_OWN,),
    ),
    Mutant(
        name="stages have buffers without values beside the model's",
        file=OWN,
        text="            _become(buffer, torch.empty_like(buffer, device=device))\n",
        fault="            module.register_buffer(key, torch.empty_like(buffer, device=device))\n",
        tests=(OF_OWN,),
    ),
    Mutant(
        name="what a forward makes stays on the host when its stage moves",
        file=OWN,
        text="for tensor in (*stage.parameters(), *stage.buffers()):",
        fault="for tensor in stage.parameters():",
        tests=(OF_OWN,),
    ),
    Mutant(
        name="what is received for memory in another order is received in that order",
        file="ps_worker/group/bounded_group.py",
        text='else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")',
        fault='else torch.empty_like(tensor, device="cpu")',
        tests=("tests/unit/ps_worker/group/test_bounded_group.py",),
    ),
    Mutant(
        name="pipeline: a block that comes to another stage begins with fresh values",
        file="ps_worker/pipeline/pipeline.py",
        text="        self._check_values(kept)\n",
        fault="",
        tests=(f"{CUT}::test_a_model_that_a_pipeline_before_has_cut_otherwise_is_refused",),
    ),
    Mutant(
        name="late words are heard by whoever waits first, of whichever table they are",
        file="ps_worker/group/channel.py",
        text="        if not saying.late:\n            return self._hear_all(saying.mine, {}, late=False)\n",
        fault="        if True:\n            return self._hear_all(saying.mine, {}, late=saying.late)\n",
        tests=(f"{TRAFFIC}::test_a_second_table_is_trained_behind_a_first_one_and_in_turn_with_it",),
    ),
    Mutant(
        name="rank 0 gets the buffers of other stages once",
        file="ps_worker/pipeline/pipeline.py",
        text="        if seen is not None and alike and torch.equal(seen, buffer):\n",
        fault="        if seen is not None and alike:\n",
        tests=(ODD,),
    ),
    Mutant(
        name="what torch refuses of a schedule is said by torch, with a traceback",
        file="ps_worker/pipeline/pipeline.py",
        text="    timetable.order_of(found, name, ",
        fault="    dict(found=found, name=name, ",
        tests=(CUT,),
    ),
    Mutant(
        name="pipeline: a division by no micro-batches",
        file="ps_worker/pipeline/pipeline.py",
        text="    if microbatches < 1:\n",
        fault="    if microbatches < 0:\n",
        tests=(CUT,),
    ),
    Mutant(
        name="pipeline: an example of nothing",
        file="ps_worker/pipeline/pipeline.py",
        text="    if not inputs:\n",
        fault="    if False:\n",
        tests=(CUT,),
    ),
)
