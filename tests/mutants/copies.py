"""Faults in what is done for parameters that weights are copied to, and for hooks of modules and of steps."""

from .mutant import Mutant

WRITTEN = "ps_worker/optimizer/written_copies.py"
SHOWN = "ps_worker/optimizer/shown_weights.py"
HOOKS = "ps_worker/optimizer/module_hooks.py"
UNIT = "tests/unit/ps_worker/optimizer/test_written_copies.py"
WRAPPED = "tests/unit/ps_worker/optimizer/test_wrapped.py"
WEIGHTS = "tests/component/wrap/test_weights.py"
FOUND = (
    f"{WEIGHTS}::test_what_is_written_past_autograd_where_weights_are_copied_is_found_within_some_steps"
    "[{}-True-smaller dtype]"
)
BEFORE, AFTER = FOUND.format("before step"), FOUND.format("after step")
ORDER = (
    "tests/unit/ps_worker/optimizer/test_module_hooks.py::"
    "test_ours_are_first_in_both_orders_and_hooks_of_the_script_stay_as_they_are"
)

MUTANTS = (
    Mutant(
        name="step: hooks are called twice where two threads make their first optimizers at one time",
        file="ps_worker/optimizer/wrapped.py",
        text="    @_calls_hooks\n",
        fault="",
        tests=(f"{WRAPPED}::test_the_step_calls_hooks_before_there_is_an_optimizer_and_torch_leaves_it_so",),
    ),
    Mutant(
        name="step: nothing calls hooks",
        file="ps_worker/optimizer/wrapped.py",
        text="    calling = torch.optim.Optimizer.profile_hook_step(step)\n",
        fault="    calling = step\n",
        tests=("tests/component/wrap/test_wrap_schedulers.py::test_step_hooks_of_torch_fire_once_a_step",),
    ),
    Mutant(
        name="copies: what a script has written where weights are copied is not looked for",
        file=SHOWN,
        text="        self._copies.look()\n",
        fault="",
        tests=(BEFORE,),
    ),
    Mutant(
        name="copies: what was found written is not said",
        file=SHOWN,
        text="        if (index := self._copies.found()) is not None:\n",
        fault="        if (index := self._copies.found()) is not None and index < 0:\n",
        tests=(BEFORE,),
    ),
    Mutant(
        name="copies: what is written before weights have come is not found",
        file=SHOWN,
        text="        if self._copies.forget(indices):\n            self._memory.stagings.reads_end()\n",
        fault="        self._copies._kept = None\n",
        tests=(AFTER,),
    ),
    Mutant(
        name="copies: weights come while they are compared for the last time",
        file=SHOWN,
        text="        if self._copies.forget(indices):\n            self._memory.stagings.reads_end()\n",
        fault="        self._copies.forget(indices)\n",
        tests=(f"{WEIGHTS}::test_weights_wait_until_they_were_compared_for_the_last_time",),
    ),
    Mutant(
        name="copies: the error leaves what was written",
        file=SHOWN,
        text="            self._undo()\n",
        fault="",
        tests=(f"{WEIGHTS}::test_the_error_undoes_what_was_written_where_weights_are_copied",),
    ),
    Mutant(
        name="copies: parts go round with parameters",
        file=WRITTEN,
        text="        part, place = divmod(self._turn, len(self._order))\n",
        fault="        part, place = self._turn, self._turn % len(self._order)\n",
        tests=(f"{UNIT}::test_every_element_comes_round",),
    ),
    Mutant(
        name="copies: parameters that weights are copied to later have no turn",
        file=WRITTEN,
        text="        if len(self._order) != len(copied):\n",
        fault="        if not self._order:\n",
        tests=(f"{UNIT}::test_parameters_take_turns",),
    ),
    Mutant(
        name="copies: weights of other parameters end a look",
        file=WRITTEN,
        text="        if self._kept is not None and self._kept.index in filled:\n",
        fault="        if self._kept is not None:\n",
        tests=(f"{UNIT}::test_weights_of_other_parameters_do_not_end_a_look",),
    ),
    Mutant(
        name="copies: what was kept of weights outlives them",
        file=WRITTEN,
        text="        if self._kept is not None and self._kept.index in filled:\n            self._kept = None\n",
        fault="",
        tests=(f"{UNIT}::test_new_weights_are_nothing_that_was_written",),
    ),
    Mutant(
        name="copies: it is the same parameter's turn for ever",
        file=WRITTEN,
        text="        self._turn += 1\n",
        fault="",
        tests=(f"{UNIT}::test_parameters_take_turns",),
    ),
    Mutant(
        name="copies: of a parameter the same part is looked at for ever",
        file=WRITTEN,
        text="    start = turn % -(-size // width) * width\n",
        fault="    start = 0\n",
        tests=(f"{UNIT}::test_every_element_comes_round",),
    ),
    Mutant(
        name="copies: the last part of a parameter has no turn",
        file=WRITTEN,
        text="    start = turn % -(-size // width) * width\n",
        fault="    start = turn % (size // width) * width\n",
        tests=(f"{UNIT}::test_every_element_comes_round",),
    ),
    Mutant(
        name="copies: a parameter that has moved is taken for written",
        file=WRITTEN,
        text="        if place != (kept.address, kept.shape, kept.values.device):\n",
        fault="        if place[1:] != (kept.shape, kept.values.device):\n",
        tests=(f"{UNIT}::test_a_parameter_that_has_moved_is_not_compared",),
    ),
    Mutant(
        name="copies: a NaN is taken for written",
        file=WRITTEN,
        text="        written = (_bits(_part(parameter, kept.part)) != _bits(kept.values)).any()\n",
        fault="        written = (_part(parameter, kept.part) != kept.values).any()\n",
        tests=(f"{UNIT}::test_what_nobody_writes_is_not_found",),
    ),
    Mutant(
        name="copies: an answer is given again and again",
        file=WRITTEN,
        text="        asked, self._asked = self._asked, []\n",
        fault="        asked = self._asked\n",
        tests=(f"{UNIT}::test_an_answer_is_given_once",),
    ),
    Mutant(
        name="hooks: ours come behind those of the script",
        file=HOOKS,
        text="        if others:\n            hooks.update(zip(others, map(hooks.pop, others), strict=True))\n",
        fault="",
        tests=(ORDER,),
    ),
    Mutant(
        name="hooks: ours are first in one order of two",
        file=HOOKS,
        text="        if others:\n            hooks.update(zip(others, map(hooks.pop, others), strict=True))\n",
        fault="        hooks.move_to_end(self._number, last=False)\n",
        tests=(ORDER,),
    ),
)
