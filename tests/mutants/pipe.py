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
        name="a stage waits for the schedules of all others before it pushes",
        file="ps_worker/group/stage_traffic.py",
        text="            if self._together:\n",
        fault="            if True:\n",
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
        name="with backup workers a step may close between the pushes of two stages",
        file="ps_worker/group/stage_traffic.py",
        text="consistency.aggregates and not consistency.lockstep  #",
        fault="False  #",
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
        file="ps_worker/pipeline/own_parameters.py",
        text="torch.utils.swap_tensors(parameter, made)",
        fault="torch.utils.swap_tensors(parameter.clone(), made)",
        tests=("tests/unit/ps_worker/pipeline/test_own_parameters.py",),
    ),
)
