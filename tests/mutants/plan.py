"""Faults of the cut of a model into pipeline stages: blocks, what crosses, costs, the split, what is shown of it."""

from .mutant import Mutant

UNIT = "tests/unit/ps_worker/pipeline"
BLOCKS, PARTITION, TRACING = (f"ps_worker/pipeline/{name}.py" for name in ("blocks", "partition", "tracing"))
OF_BLOCKS, OF_PARTITION = f"{UNIT}/test_blocks.py", f"{UNIT}/test_partition.py"
COST, TIMETABLE = "ps_worker/pipeline/cost.py", "ps_worker/pipeline/timetable.py"
OF_COST, OF_TIMETABLE = f"{UNIT}/test_cost.py", f"{UNIT}/test_timetable.py"
OF_PLAN = "tests/unit/ps_lab/pipeline/test_pipeline_plan.py"

MUTANTS = (
    Mutant(
        name="stages: of equal splits any is taken",
        file=PARTITION,
        text="lambda one, rest: one * one + rest, largest)[1]\n",
        fault="max, largest)[1]\n",
        tests=(f"{OF_PARTITION}::test_of_equal_splits_the_evenest_is_taken_and_of_those_the_first",),
    ),
    Mutant(
        name="stages: the even split has a larger stage",
        file=PARTITION,
        text="            if of == stage and end in behind and cost <= limit:\n",
        fault="            if of == stage and end in behind:\n",
        tests=(f"{OF_PARTITION}::test_no_split_has_a_cheaper_largest_stage",),
    ),
    Mutant(
        name="stages: what a value is needed for behind the next stage does not cross",
        file=BLOCKS,
        text="            node: max((self._at.get(user, len(self.body)) for user in node.users), default=-1)\n",
        fault="            node: min((self._at.get(user, len(self.body)) for user in node.users), default=-1)\n",
        tests=(f"{OF_BLOCKS}::test_stages_composed_are_the_model_to_the_bit",),
    ),
    Mutant(
        name="stages: a cut is made before what writes into its input",
        file=BLOCKS,
        text='            return bool(getattr(self._model.get_submodule(str(user.target)), "inplace", False))\n',
        fault="            return False\n",
        tests=(f"{OF_BLOCKS}::test_no_cut_is_before_what_writes_into_its_input",),
    ),
    Mutant(
        name="stages: a size crosses a cut",
        file=BLOCKS,
        text="        return node in self._numbers or any(\n",
        fault="        return any(\n",
        tests=(f"{OF_BLOCKS}::test_what_cannot_be_cut_is_refused_by_name_with_the_reason",),
    ),
    Mutant(
        name="stages: residual blocks are cut inside",
        file=BLOCKS,
        text="        if not wide:\n",
        fault="        if True:\n",
        tests=(f"{OF_BLOCKS}::test_an_element_with_a_way_around_its_modules_is_one_block",),
    ),
    Mutant(
        name="stages: buffers of a stage are kept that the model does not keep",
        file=BLOCKS,
        text="                    holder.register_buffer(name, self._attribute(node), persistent=False)\n",
        fault="                    holder.register_buffer(name, self._attribute(node))\n",
        tests=(f"{OF_BLOCKS}::test_the_state_of_a_stage_is_the_models",),
    ),
    Mutant(
        name="stages: a forward is followed in training alone",
        file=TRACING,
        text="        evaluation = _trace(model, closed, training=False)\n",
        fault="        evaluation = training\n",
        tests=(f"{OF_BLOCKS}::test_what_cannot_be_cut_is_refused_by_name_with_the_reason",),
    ),
    Mutant(
        name="stages: random draws of a forward are taken once",
        file=TRACING,
        text="        if _random_state() != drawn:\n",
        fault="        if False:\n",
        tests=(f"{OF_BLOCKS}::test_what_cannot_be_cut_is_refused_by_name_with_the_reason",),
    ),
    Mutant(
        name="stages: what a forward keeps stays on the model",
        file=TRACING,
        text="            now.update(values)\n",
        fault="            pass\n",
        tests=(f"{OF_BLOCKS}::test_what_cannot_be_cut_is_refused_by_name_with_the_reason",),
    ),
    Mutant(
        name="stages: modules of other threads become part of the graph",
        file=TRACING,
        text="        if threading.get_ident() != self._thread:\n            return forward(*args, **kwargs)\n",
        fault="        if False:\n            return forward(*args, **kwargs)\n",
        tests=(f"{OF_BLOCKS}::test_another_thread_may_use_models_meanwhile",),
    ),
    Mutant(
        name="stages: a block's time is its largest",
        file=COST,
        text="        forward_s=median(forwards),\n",
        fault="        forward_s=max(forwards),\n",
        tests=(f"{OF_COST}::test_a_block_takes_the_median_of_its_forwards_and_backwards",),
    ),
    Mutant(
        name="stages: the model is measured itself",
        file=COST,
        text="    mine = copy.deepcopy(block)\n",
        fault="    mine = block\n",
        tests=(f"{OF_COST}::test_measuring_leaves_the_model_and_the_generators_alone",),
    ),
    Mutant(
        name="stages: all stages hold as many activations",
        file=COST,
        text="in_flight[stage], optimizer_states),\n",
        fault="in_flight[0], optimizer_states),\n",
        tests=(f"{OF_COST}::test_cuts_are_by_time_memory_or_parameters",),
    ),
    Mutant(
        name="stages: an example's whole batch counts as kept",
        file=COST,
        text="tuple(it.clone() for it in example)",
        fault="tuple(example)",
        tests=(f"{OF_PLAN}::test_memory_counts_the_activations_of_microbatches_in_flight",),
    ),
    Mutant(
        name="stages: 1f1b begins with one forward less",
        file=TIMETABLE,
        text="        first = min(microbatches, stages - stage)\n",
        fault="        first = min(microbatches, max(1, stages - stage - 1))\n",
        tests=(f"{OF_TIMETABLE}::test_the_order_is_that_in_which_torch_runs",),
    ),
    Mutant(
        name="stages: a backward waits for no stage behind",
        file=TIMETABLE,
        text="    return None if behind is None else max(own, behind)\n",
        fault="    return own\n",
        tests=(f"{OF_TIMETABLE}::test_the_bubble_of_even_stages_is_the_formula",),
    ),
    Mutant(
        name="stages: a plan's names may go backwards",
        file=COST,
        text="        if behind <= before:\n",
        fault="        if False:\n",
        tests=(f"{OF_PLAN}::test_what_makes_no_sense_is_refused_by_name",),
    ),
    Mutant(
        name="stages: a cut by memory counts no schedule",
        file="ps_worker/pipeline/cuts.py",
        text="        held = timetable.in_flight(order)\n",
        fault="        held = (1,) * stages\n",
        tests=(f"{UNIT}/test_cuts.py::test_by_memory_a_stage_counts_what_its_schedule_holds",),
    ),
    Mutant(
        name="stages: a cut by parameters runs blocks",
        file="ps_worker/pipeline/cuts.py",
        text='    if by in {"memory", "time"}:\n',
        fault="    if True:\n",
        tests=(f"{UNIT}/test_cuts.py::test_by_parameters_nothing_is_run",),
    ),
    Mutant(
        name="stages: the demo takes a pipeline that has not learned",
        file="ps_lab/demo.py",
        text="    if not losses or float(losses[-1]) > PIPELINE_LOSS:\n",
        fault="    if not losses:\n",
        tests=("tests/unit/ps_lab/test_demo.py::test_the_pipeline_has_a_row_and_has_to_learn",),
    ),
    Mutant(
        name="stages: torch's encoder is one block",
        file=TRACING,
        text="    if type(module) is nn.TransformerEncoder:\n        return True\n",
        fault="    if type(module) is nn.TransformerEncoder:\n        return False\n",
        tests=(f"{OF_BLOCKS}::test_torchs_encoder_is_opened_if_it_need_not_look_at_masks",),
    ),
)
