"""Faults of what is recorded of steps, and of what servers tell for it."""

from tests.mutants.mutant import Mutant

MACHINE = "ps_server/shard/partition/machine.py"
OUTCOMES = "tests/unit/ps_server/shard/partition/test_push_outcomes.py"

MUTANTS = (
    Mutant(
        name="record: an ACK says the version after its push was applied",
        file=MACHINE,
        text="gap=gap, version=version if applies",
        fault="gap=gap, version=self.version if applies",
        tests=(f"{OUTCOMES}::test_the_version_is_that_before_the_push_was_applied",),
    ),
    Mutant(
        name="record: with backup workers an ACK says that its push will be applied",
        file=MACHINE,
        text="not (late or abstains or self.gate.backup)",
        fault="not (late or abstains)",
        tests=(f"{OUTCOMES}::test_with_backup_workers_nothing_is_said_before_somebody_has_chosen",),
    ),
    Mutant(
        name="record: a shard says how long a pull waited only where weights are copied",
        file="ps_wire/frames/carrier.py",
        text="                    hyper=frame.hyper,\n",
        fault="",
        tests=(f"{OUTCOMES}::test_a_wait_is_told_in_microseconds_to_who_asks_only",),
    ),
)
