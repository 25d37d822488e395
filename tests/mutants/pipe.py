"""Faults of the runtime of pipelines."""

from .mutant import Mutant

TRAFFIC = "tests/unit/ps_worker/group/test_stage_traffic.py"

MUTANTS = (
    Mutant(
        name="a bucket may hold parameters of two stages",
        file="ps_wire/spec/plan.py",
        text="key = (stages[index], parameter.group,",
        fault="key = (0, parameter.group,",
        tests=("tests/unit/ps_wire/spec/test_plan.py",),
    ),
    Mutant(
        name="a step is pushed by those stages that have a gradient",
        file="ps_worker/group/stage_traffic.py",
        text="return len(self._header.there) == self._size and self._header.weight > 0",
        fault="return self._header.weight > 0",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="first values of tied weights are those of the other stage",
        file="ps_worker/group/stage_traffic.py",
        text="for of in self._loans for loan in of if not loan.adds]",
        fault="for of in self._loans for loan in of]",
        tests=(TRAFFIC,),
    ),
    Mutant(
        name="a stage without anything to train holds up every step",
        file="ps_worker/group/stage_traffic.py",
        text="there=not self._trains(), weight=0.0",
        fault="there=False, weight=0.0",
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
        file="ps_worker/pipeline/own_parameters.py",
        text="torch.utils.swap_tensors(parameter, made)",
        fault="torch.utils.swap_tensors(parameter.clone(), made)",
        tests=("tests/unit/ps_worker/pipeline/test_own_parameters.py",),
    ),
)
