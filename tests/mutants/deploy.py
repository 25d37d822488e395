"""Faults of servers and workers in containers: places, probes, threads, manifests."""

from .mutant import Mutant

SERVING = "tests/integration/test_serving.py"
FOLLOWER = "ps_server/shard/follower.py"
BATCH = "deploy/slurm/train.sbatch"
OF_BATCH = "tests/deploy/test_slurm.py"
LOST = f"{OF_BATCH}::test_where_servers_end_first_workers_are_stopped"
STOPPED = f"{OF_BATCH}::test_workers_are_stopped_before_servers_and_what_they_have_started_is_left_to_them"
PLACE = f"{OF_BATCH}::test_each_task_gets_its_place_from_slurms_variables"
PORTS = "ps_lab/cluster/ports.py"
OF_PORTS = ("tests/unit/ps_lab/cluster/test_ports.py",)

MUTANTS = (
    Mutant(
        name="deploy: each process of a group takes all processors of its container",
        file="deploy/kubernetes/components/groups/worker.yaml",
        text="              $patch: delete\n",
        fault='              value: "4"\n',
        tests=(
            (
                "tests/deploy/test_manifests.py"
                "::test_an_index_of_the_job_is_a_group_that_shares_its_containers_processors"
            ),
        ),
    ),
    Mutant(
        name="compose: a worker is stopped together with the servers",
        file="deploy/compose/compose.yaml",
        text="    depends_on: [server-0, server-1]\n",
        fault="",
        tests=("tests/deploy/test_compose.py::test_it_has_no_fault_and_all_are_there",),
    ),
    Mutant(
        name="compose: a server advertises another name than others find it by",
        file="deploy/compose/compose.yaml",
        text="PS_ADVERTISE: server-1",
        fault="PS_ADVERTISE: server-0",
        tests=(
            (
                "tests/deploy/test_command_lines.py"
                "::test_a_command_takes_what_its_service_of_the_compose_file_says"
            ),
        ),
    ),
    Mutant(
        name="compose: both servers write to one volume",
        file="deploy/compose/compose.yaml",
        text='volumes: ["state-1:/var/lib/ps"]',
        fault='volumes: ["state-0:/var/lib/ps"]',
        tests=("tests/deploy/test_compose.py::test_it_has_no_fault_and_all_are_there",),
    ),
    Mutant(
        name="a shard with another count waits for ever",
        file=FOLLOWER,
        text="                self._on_misplaced(named)\n",
        fault="                pass\n",
        tests=("tests/unit/ps_server/shard/test_follower.py",),
    ),
    Mutant(
        name="a shard of another protocol waits for ever",
        file=FOLLOWER,
        text="MISPLACED = (ShardMismatch, ProtocolMismatch)",
        fault="MISPLACED = (ShardMismatch,)",
        tests=("tests/unit/ps_server/shard/test_follower.py",),
    ),
    Mutant(
        name="a shard without a place throws away what it holds",
        file="ps_server/process/server.py",
        text="isinstance(failure, Fenced):",
        fault="failure is not None:",
        tests=(f"{SERVING}::test_a_shard_with_no_place_hands_on_what_it_holds",),
    ),
    Mutant(
        name="probes are answered when the hand-off is read, not before",
        file="ps_server/process/server.py",
        text="        await server.start()\n        return server\n",
        fault="        return server\n",
        tests=(SERVING,),
    ),
    Mutant(
        name="a server is ready while it reads a hand-off",
        file="ps_server/process/server.py",
        text="            self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)\n",
        fault="            pass\n",
        tests=(SERVING,),
    ),
    Mutant(
        name="threads follow the node's cores",
        file="ps_wire/process/cores.py",
        text="[float(may_use), *_limits(proc, cgroups)]",
        fault="[float(may_use)]",
        tests=("tests/unit/ps_wire/process/test_cores.py",),
    ),
    Mutant(
        name="a part of a core is none",
        file="ps_wire/process/cores.py",
        text="math.ceil(",
        fault="math.floor(",
        tests=("tests/unit/ps_wire/process/test_cores.py",),
    ),
    Mutant(
        name="a worker in a container takes a thread for each core of the node",
        file="ps_worker/cli.py",
        text="    elif threads >= torch.get_num_threads():\n",
        fault="    else:\n",
        tests=("tests/unit/ps_worker/test_threads.py",),
    ),
    Mutant(
        name="a list of servers of another length is taken",
        file="ps_server/cli.py",
        text="        if len(listed) != num_shards:\n",
        fault="        if False:\n",
        tests=("tests/unit/ps_server/test_cli.py",),
    ),
    Mutant(
        name="a certificate without the server's name is an unknown error",
        file="ps_wire/access/status.py",
        text="    if code is grpc.StatusCode.UNAUTHENTICATED:",
        fault="    if False:",
        tests=("tests/unit/ps_wire/test_errors.py",),
    ),
    Mutant(
        name="a worker that was refused is started again and again",
        file="deploy/kubernetes/base/worker-job.yaml",
        text="values: [64, 65, 78]",
        fault="values: [64, 65]",
        tests=("tests/deploy/test_rules.py::test_every_overlay_keeps_every_rule",),
    ),
    Mutant(
        name="a shard's number of servers is not that of the list",
        file="deploy/kubernetes/base/server-statefulset.yaml",
        text="value: $(POD_INDEX)/2",
        fault="value: $(POD_INDEX)/3",
        tests=("tests/deploy/test_rules.py::test_every_overlay_keeps_every_rule",),
    ),
    Mutant(
        name="a job begins anew beside snapshots of which another number of servers has the parts",
        file="ps_server/coordinator/recovery.py",
        text="            await self._refuse(name, elsewhere)\n",
        fault="            await self._give_up(name)\n",
        tests=("tests/deploy/test_executed.py",),
    ),
    Mutant(
        name="that a state directory is read-only is said when all is lost",
        file="ps_server/shard/hand_off.py",
        text="        if error.errno not in FULL:\n",
        fault="        if False:\n",
        tests=("tests/unit/ps_server/shard/test_hand_off.py",),
    ),
    Mutant(
        name="a server on a full disk does not serve",
        file="ps_server/shard/hand_off.py",
        text="FULL = (errno.ENOSPC, errno.EDQUOT)",
        fault="FULL = ()",
        tests=("tests/unit/ps_server/shard/test_hand_off.py",),
    ),
    Mutant(
        name="a server that is not ready is healthy",
        file="ps_lab/status/observer.py",
        text="    if reply.status != health_pb2.HealthCheckResponse.SERVING:\n",
        fault="    if False:\n",
        tests=("tests/integration/test_health.py",),
    ),
    Mutant(
        name="slurm: workers wait for servers that have ended",
        file=BATCH,
        text='    if [ -z "$lost" ] && ! runs "$serving"; then\n',
        fault="    if false; then\n",
        tests=(LOST,),
    ),
    Mutant(
        name="slurm: what a server refuses is tried again",
        file=BATCH,
        text="    case $served in 64|78) code=$served ;; esac",
        fault="    :",
        tests=(LOST,),
    ),
    Mutant(
        name="slurm: a server that is lost ends the job for good",
        file=BATCH,
        text="    code=69\n",
        fault="    code=$served\n",
        tests=(LOST,),
    ),
    Mutant(
        name="slurm: the port of data is always the one after the other",
        file=BATCH,
        text="${PS_DATA_PORT:-$((port + 1))}",
        fault="$((port + 1))",
        tests=(f"{OF_BATCH}::test_a_server_whose_port_is_taken_keeps_no_worker_waiting",),
    ),
    Mutant(
        name="slurm: workers are stopped by what makes srun kill them",
        file=BATCH,
        text='    kill -USR1 "$1" 2> /dev/null\n',
        fault='    kill -TERM "$1" 2> /dev/null\n',
        tests=(STOPPED,),
    ),
    Mutant(
        name="slurm: what a worker has started hears of what its shell is told",
        file=BATCH,
        text='    trap "" USR1 # what it starts never hears of it\n',
        fault="",
        tests=(STOPPED,),
    ),
    Mutant(
        name="slurm: a worker is told twice to stop, and ends at once",
        file=BATCH,
        text='trap "trap : USR1; kill -TERM $child; exit" USR1',
        fault='trap "kill -TERM $child" USR1',
        tests=(STOPPED,),
    ),
    Mutant(
        name="slurm: a worker that is being told to stop is told again",
        file=BATCH,
        text='trap "trap : USR1; kill -TERM',
        fault='trap "kill -TERM',
        tests=(f"{OF_BATCH}::test_a_task_is_told_once_though_it_is_to_be_told_again_just_then",),
    ),
    Mutant(
        name="slurm: what breaks off a task's wait is how it ended",
        file=BATCH,
        text='    wait "$child"\n    code=$?\n',
        fault='    trap : USR1\n    wait "$child"\n    code=$?\n',
        tests=(f"{OF_BATCH}::test_a_signal_that_comes_just_as_a_task_has_ended_is_not_how_it_ended",),
    ),
    Mutant(
        name="slurm: what breaks off the batch script's wait is how the workers ended",
        file=BATCH,
        text='while came=; wait "$1"; wait "$1"; code=$?; [ -n "$came" ]; do :; done',
        fault='wait "$1"; code=$?',
        tests=(f"{OF_BATCH}::test_what_a_batch_script_waits_for_has_its_code_whatever_comes_meanwhile",),
    ),
    Mutant(
        name="slurm: bash is asked for a code while what it waits for may end",
        file=BATCH,
        text='    while runs "$1"; do moment; done\n',
        fault="",
        tests=(f"{OF_BATCH}::test_what_a_batch_script_waits_for_has_its_code_whatever_comes_meanwhile",),
    ),
    Mutant(
        name="slurm: a job that was cancelled begins again",
        file=BATCH,
        text=' && [ -z "$cancelled" ] && ',
        fault=" && ",
        tests=(STOPPED,),
    ),
    Mutant(
        name="slurm: what did not stop in time is not tried again",
        file=BATCH,
        text='if [ -n "$over" ] && [ "$code" -gt 128 ]; then again=1; fi\n',
        fault="",
        tests=(STOPPED,),
    ),
    Mutant(
        name="slurm: what is stopped as its time is over was cancelled",
        file=BATCH,
        text="""trap 'came=1; [ -n "$over" ] || cancelled=1' TERM""",
        fault="trap 'came=1; cancelled=1' TERM",
        tests=(STOPPED,),
    ),
    Mutant(
        name="slurm: tasks get one processor each",
        file=BATCH,
        text="export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
        fault="export NOBODY=1",
        tests=(PLACE,),
    ),
    Mutant(
        name="serving: a server that is stopped always ends with 0",
        file="ps_server/process/server.py",
        text="stop, signal.SIGTERM, self._options.stopped_code)",
        fault="stop, signal.SIGTERM, 0)",
        tests=(
            f"{SERVING}::test_while_a_hand_off_is_read_probes_hear_that_the_server_lives_and_is_not_ready",
        ),
    ),
    Mutant(
        name="serving: a server with a code of its own hands nothing over",
        file="ps_server/process/server.py",
        text="stopped.result() != self._options.stopped_code:",
        fault="stopped.result() != 0:",
        tests=(
            f"{SERVING}::test_while_a_hand_off_is_read_probes_hear_that_the_server_lives_and_is_not_ready",
        ),
    ),
    Mutant(
        name="deploy: a server of a JobSet is done when it is drained",
        file="deploy/kubernetes/examples/jobset.yaml",
        text='                      value: "75"\n',
        fault='                      value: "0"\n',
        tests=("tests/deploy/test_rules.py::test_every_example_keeps_the_rules",),
    ),
    Mutant(
        name="ports: two that choose at once have the same",
        file=PORTS,
        text="            except (BlockingIOError, PermissionError):\n                return False\n",
        fault="            except (BlockingIOError, PermissionError):\n                pass\n",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: one process has the same twice",
        file=PORTS,
        text="port in self._chosen or ",
        fault="",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: they end with the range",
        file=PORTS,
        text="                self._forget(keep=found)\n",
        fault="",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: what is given out anew stays locked",
        file=PORTS,
        text="            self._release(port)\n        self._chosen",
        fault="            pass\n        self._chosen",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: whose it is, is looked at while it is bound",
        file=PORTS,
        text="""            if port in self._chosen or not self._claim(port):
                continue
            if self._is_free(port):
""",
        fault="""            if port in self._chosen:
                continue
            if self._is_free(port) and self._claim(port):
""",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: one that somebody listens on stays locked",
        file=PORTS,
        text="                self._release(port)\n        return",
        fault="                pass\n        return",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: one call has the same twice, where all have been chosen",
        file=PORTS,
        text="        self._chosen = set(keep)\n",
        fault="        self._chosen = set()\n",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: no file, no port",
        file=PORTS,
        text="            with contextlib.suppress(OSError):  # no folder",
        fault="            with contextlib.suppress(KeyError):  # no folder",
        tests=OF_PORTS,
    ),
    Mutant(
        name="ports: a link of somebody else is followed",
        file=PORTS,
        text=" | os.O_NOFOLLOW",
        fault="",
        tests=OF_PORTS,
    ),
)
