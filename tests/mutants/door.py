"""Faults at the front door: what a run shows, and where its servers' lines go."""

from .mutant import Mutant

LOGS = "tests/unit/ps_lab/cluster/test_server_logs.py"
INTERRUPTED = "tests/integration/test_interrupted.py"
WRAP = "tests/component/wrap/test_wrap_tables.py"
MISPLACED = "tests/unit/ps_wire/process/test_misplaced.py"
JSON = "tests/unit/ps_lab/status/test_json_text.py"
DISPLAY = "tests/unit/ps_lab/cluster/test_display.py"
TABLE = "tests/unit/ps_lab/cluster/test_run_table.py"

MUTANTS = (
    Mutant(
        name="door: every line of a server stands between those of the workers",
        file="ps_lab/cluster/server_logs.py",
        text="        if not self._calm.get(process, False):\n",
        fault="        if True:\n",
        tests=(f"{LOGS}::test_what_servers_log_is_in_files_and_trouble_is_shown_too",),
    ),
    Mutant(
        name="door: a server's traceback is in its file alone",
        file="ps_lab/cluster/server_logs.py",
        text="        if not line.startswith(_TRACEBACK):\n            self._calm[process]",
        fault="        if True:\n            self._calm[process]",
        tests=(f"{LOGS}::test_what_servers_log_is_in_files_and_trouble_is_shown_too",),
    ),
    Mutant(
        name="door: the servers' files go although the run has failed",
        file="ps_lab/cluster/server_logs.py",
        text="        if well and not self._kept and",
        fault="        if not self._kept and",
        tests=(f"{LOGS}::test_a_folder_of_the_systems_goes_where_the_run_ends_well",),
    ),
    Mutant(
        name="door: the same look at a job counts as a new one",
        file="ps_lab/cluster/run_table.py",
        text="        if job is not None and job is not self._seen and job.workers:\n",
        fault="        if job is not None and job.workers:\n",
        tests=(f"{TABLE}::test_the_same_look_is_no_new_one",),
    ),
    Mutant(
        name="door: SIGTERM shows a traceback while a script that failed ends",
        file="ps_worker/cli.py",
        text="        stopping.script_ended()\n        script_errors.show(",
        fault="        script_errors.show(",
        tests=(f"{INTERRUPTED}::test_sigterm_while_a_script_that_failed_ends_shows_no_traceback_of_ours",),
    ),
    Mutant(
        name="door: who wraps twice is told of code that servers do not run",
        file="ps_worker/worker.py",
        text="        if isinstance(optimizer, WrappedOptimizer):\n            raise",
        fault="        if False:\n            raise",
        tests=(f"{WRAP}::test_what_is_no_model_is_refused",),
    ),
    Mutant(
        name="door: who gives wrap the model first is told that an optimizer is no model",
        file="ps_worker/worker.py",
        text="        if isinstance(optimizer, torch.nn.Module) and isinstance(model, torch.optim.Optimizer):\n",
        fault="        if False:\n",
        tests=(f"{WRAP}::test_what_is_no_model_is_refused",),
    ),
    Mutant(
        name="door: a worker's name stands twice before each of its lines",
        file="ps_lab/cluster/display.py",
        text='text.removeprefix(f"{name}: ")',
        fault="text",
        tests=(f"{DISPLAY}::test_the_name_of_a_process_stands_once_before_each_of_its_lines",),
    ),
    Mutant(
        name="door: options behind the script are taken for the script's own, without a word",
        file="ps_wire/process/misplaced.py",
        text="    if not strange:\n",
        fault="    if True:\n",
        tests=(f"{MISPLACED}::test_options_of_the_command_behind_the_script_are_named",),
    ),
    Mutant(
        name="door: figures with NaN are no JSON",
        file="ps_lab/status/json_text.py",
        text="json.dumps(_finite(value), indent=indent, separators=separators, allow_nan=False)",
        fault="json.dumps(value, indent=indent, separators=separators)",
        tests=(f"{JSON}::test_a_status_with_nan_is_json",),
    ),
)
