"""Faults in what is bounded: generations."""

from tests.mutants.mutant import Mutant

GENERATIONS = "tests/unit/ps_server/test_generations.py"
ROLLED_BACK = "tests/unit/ps_server/test_rolled_back.py"
ROLLBACK = "tests/unit/ps_worker/test_rollback.py"
PAST_16_BITS = f"{ROLLBACK}::test_a_service_goes_on_past_65535_generations"

MUTANTS = (
    Mutant(
        name="generations: they end with 16 bits",
        file="ps_wire/frame.py",
        text="MAX_GENERATION = (1 << 32) - 1  #",
        fault="MAX_GENERATION = (1 << 16) - 1  #",
        tests=(GENERATIONS, PAST_16_BITS),
    ),
    Mutant(
        name="generations: incarnations of a rollback begin as after the one before",
        file="ps_server/recovery.py",
        text="    return generation * (MAX_GENERATION + 1)\n",
        fault="    return 1 << 48\n",
        tests=(GENERATIONS, PAST_16_BITS),
    ),
    Mutant(
        name="frame: the upper half of an incarnation is lost",
        file="ps_wire/frame.py",
        text="        frame.generation,\n        frame.incarnation,\n",
        fault="        frame.generation,\n        frame.incarnation & 0xFFFFFFFF,\n",
        tests=("tests/unit/ps_wire/test_frame.py",),
    ),
    Mutant(
        name="resume: an incarnation that nobody has given is taken",
        file="ps_server/member_streams.py",
        text="        of_before = resume.incarnation <= room.job.roster.floor  #",
        fault="        of_before = True  #",
        tests=(ROLLED_BACK,),
    ),
)
