"""Faults in how processes are started by forking, and the tests that see them."""

from tests.mutants.mutant import Mutant

FILE = "ps_lab/cluster/fork_server.py"
TESTS = "tests/unit/ps_lab/cluster/test_fork_server.py"
LATE = "tests/unit/ps_wire/process/test_late_dynamo.py"

MUTANTS = (
    Mutant(
        name="fork server: a module sees its name among its arguments",
        file=FILE,
        text="        module = sys.argv.pop(1)\n",
        fault="        module = sys.argv[1]\n",
        tests=(f"{TESTS}::test_it_runs_a_module_of_this_python_as_python_does",),
    ),
    Mutant(
        name="fork server: a module is not found from the folder where it begins",
        file=FILE,
        text='        sys.path[0] = request["cwd"]\n',
        fault="        pass\n",
        tests=(f"{TESTS}::test_it_runs_a_module_of_this_python_as_python_does",),
    ),
    Mutant(
        name="fork server: a child is reaped before its number is let go",
        file=FILE,
        text="        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n",
        fault="        ended = os.waitid(os.P_PID, pid, os.WEXITED)\n",
        tests=(f"{TESTS}::test_its_number_is_nobodys_before_it_is_let_go",),
    ),
    Mutant(
        name="fork server: processes outlive those above them",
        file=FILE,
        text="            die_with(me)\n",
        fault="            pass\n",
        tests=(TESTS,),
    ),
    Mutant(
        name="fork server: arithmetic has used its threads before the fork",
        file="ps_wire/process/forking.py",
        text="    torch.set_num_threads(1)\n",
        fault="    pass\n",
        tests=(f"{TESTS}::test_a_child_of_a_command_is_forked_and_read_as_any",),
    ),
    Mutant(
        name="late dynamo: what was not disabled before it came stays so",
        file="ps_wire/process/late_dynamo.py",
        text="                    vars(function).pop(_CACHE, None)\n",
        fault="                    pass\n",
        tests=(LATE,),
    ),
    Mutant(
        name="late dynamo: a module of it is imported beside the stand-in",
        file="ps_wire/process/late_dynamo.py",
        text="        sys.meta_path.insert(0, _Finder())\n",
        fault="        pass\n",
        tests=(LATE,),
    ),
    Mutant(
        name="late dynamo: a module of it runs twice",
        file="ps_wire/process/late_dynamo.py",
        text='        vars(module)["__spec__"] = None  # else',
        fault="        pass  # else",
        tests=(LATE,),
    ),
    Mutant(
        name="late dynamo: a process group brings it",
        file="ps_wire/process/late_dynamo.py",
        text="        if not is_late():\n",
        fault="        if True:\n",
        tests=(LATE,),
    ),
    Mutant(
        name="late dynamo: a worker imports pipelines, and so the compiler",
        file="ps_worker/pipeline/pipeline.py",
        text="from torch import nn\n",
        fault="from torch import nn\nfrom torch.distributed.pipelining import PipelineStage\n",
        tests=(LATE,),
    ),
    Mutant(
        name="fork server: a child holds the descriptors of others",
        file=FILE,
        text="    os.closerange(3, 256)\n",
        fault="    pass\n",
        tests=(f"{TESTS}::test_children_hold_nothing_of_each_other",),
    ),
    Mutant(
        name="fork server: what is left for the exit is not done",
        file=FILE,
        text="        atexit._run_exitfuncs()\n",
        fault="        pass\n",
        tests=(f"{TESTS}::test_what_is_left_for_the_end_is_done_there",),
    ),
)
