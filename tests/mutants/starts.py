"""Faults in how servers start, and in what becomes of members while shards are away."""

from tests.mutants.mutant import Mutant

FORK_SERVER = "tests/unit/ps_lab/cluster/test_fork_server.py"
STARTS = "tests/faults/test_starts.py"
LONG_ORDERS = "tests/component/members/test_long_orders.py"
RESTARTS = "tests/faults/test_restarts.py"
HAND_OFF = "tests/unit/ps_server/shard/test_hand_off.py"

LATE = (
    "tests/unit/ps_wire/process/test_late_dynamo.py::test_optimizers_do_without_it_until_it_is_asked_for",
)

CALLS = "tests/component/connections/test_interrupted_calls.py"

MUTANTS = (
    Mutant(
        name="starts: a fork server that is late is an error of the system's",
        file="ps_lab/cluster/fork_server.py",
        text="    except TimeoutError:\n        raise StartLimitExceeded(",
        fault="    except ZeroDivisionError:\n        raise StartLimitExceeded(",
        tests=(f"{FORK_SERVER}::test_a_fork_server_that_does_not_start_in_time_is_named",),
    ),
    Mutant(
        name="starts: the service in a worker's process ends while a call is on its way",
        file="ps_server/process/in_process.py",
        text="""        with self._lock:
            self._servicer = None
""",
        fault="        self._servicer = None\n",
        tests=("tests/unit/ps_server/process/test_in_process.py",),
    ),
    Mutant(
        name="starts: hooks on modules import the compiler in the first step of every worker",
        file="ps_wire/process/late_dynamo.py",
        text="        self.eval_frame = _LateEvalFrame(lambda: self.itself().eval_frame, self._lock)\n",
        fault="",
        tests=LATE,
    ),
    Mutant(
        name="starts: code that was to be skipped is traced once the compiler is there",
        file="ps_wire/process/late_dynamo.py",
        text="                self.eval_frame.hand_on()\n",
        fault="",
        tests=LATE,
    ),
    Mutant(
        name="starts: a table's start waits on where a shard is gone for good",
        file="ps_worker/membership/membership.py",
        text="            return self._error or (None if limit_s is None else self._lost)\n",
        fault="            return self._error\n",
        tests=(
            "tests/component/wrap/test_wrap_tables.py::test_a_start_ends_when_a_shard_is_gone_for_good_and_names_it",
        ),
    ),
    Mutant(
        name="a hand-off is used up when it is read",
        file="ps_server/shard/hand_off.py",
        text="    return FoundHandOff(path=path, written=written, inherited=inherited)\n",
        fault=(
            "    found = FoundHandOff(path=path, written=written, inherited=inherited)\n"
            "    found.use_up()\n"
            "    return found\n"
        ),
        tests=(STARTS, HAND_OFF),
    ),
    Mutant(
        name="a coordinator that looks for snapshots hands nothing off",
        file="ps_server/coordinator/recovery.py",
        text="        return not self._going\n",
        fault="        return not self._going and self._listed\n",
        tests=(STARTS,),
    ),
    Mutant(
        name="a hand-off that another process has used up is served from",
        file="ps_server/shard/hand_off.py",
        text="            raise FileNotFoundError(self.path)\n",
        fault="            pass\n",
        tests=(HAND_OFF,),
    ),
    Mutant(
        name="the rename of a hand-off is not synced",
        file="ps_server/shard/hand_off.py",
        text="                sync_folder(self.path.parent)\n",
        fault="                pass\n",
        tests=(HAND_OFF,),
    ),
    Mutant(
        name="a param-group is added to what servers clip by one norm",
        file="ps_worker/optimizer/wrapped.py",
        text="        if self._one_norm:\n",
        fault="        if False:\n",
        tests=("tests/component/training/test_clip.py",),
    ),
    Mutant(
        name="a lease that ends while its worker leaves deals again what it has used",
        file="ps_server/coordinator/jobs/job.py",
        text="        if member.state in (MemberState.LEAVING, MemberState.FINISHING):\n",
        fault="        if False:\n",
        tests=("tests/unit/ps_server/coordinator/epochs/test_epoch_book.py",),
    ),
    Mutant(
        name="who was let in on some shards only stays in their gates",
        file="ps_server/coordinator/jobs/job.py",
        text="        undone = [removal(self.name, member)] if sent else self._check_end()\n",
        fault="        undone = self._check_end()\n",
        tests=(LONG_ORDERS, "tests/search/test_deadlock_servers.py"),
    ),
    Mutant(
        name="all jobs' orders wait in one queue on shard 0",
        file="ps_server/coordinator/fleet/fleet.py",
        text="carried_out = self._lanes.submit(job_of(order), partial",
        fault='carried_out = self._lanes.submit("", partial',
        tests=(LONG_ORDERS,),
    ),
    Mutant(
        name="all jobs' orders wait in one queue on a follower",
        file="ps_server/shard/follower.py",
        text="self._lanes.submit(job_of(order), partial(self._execute, order))",
        fault='self._lanes.submit("", partial(self._execute, order))',
        tests=(LONG_ORDERS,),
    ),
    Mutant(
        name="work of a job is done side by side",
        file="ps_server/lanes.py",
        text="            if behind is not None:\n",
        fault="            if False:\n",
        tests=("tests/unit/ps_server/test_lanes.py",),
    ),
    Mutant(
        name="an order that nobody waits for any more is not carried out",
        file="ps_server/lanes.py",
        text="        future.set_running_or_notify_cancel()\n",
        fault="",
        tests=("tests/unit/ps_server/test_lanes.py",),
    ),
    Mutant(
        name="a second process of a shard is let in though the holder lives",
        file="ps_server/coordinator/fleet/fleet.py",
        text="            if alive:\n",
        fault="            if False:\n",
        tests=(f"{RESTARTS}::test_a_second_process_of_a_shard_whose_holder_lives_is_refused",),
    ),
    Mutant(
        name="a holder that hangs keeps its shard",
        file="ps_server/coordinator/fleet/fleet.py",
        text="            alive = False\n",
        fault="            alive = True\n",
        tests=("tests/unit/ps_server/coordinator/fleet/test_fleet.py",),
    ),
    Mutant(
        name="hand-off: what does not fit into memory is thrown away",
        file="ps_server/shard/hand_off.py",
        text="    except MemoryLimitExceeded as error:  # the same file fits where there is more\n",
        fault="    except AssertionError as error:\n",
        tests=(
            f"{HAND_OFF}::test_what_does_not_fit_into_the_memory_limit_is_kept_for_a_start_with_a_larger_one",
        ),
    ),
    Mutant(
        name="calls: one that comes after the channel was closed is made on it",
        file="ps_worker/transport/grpc_service.py",
        text="            if self.closed:\n                raise self.closed_here()\n",
        fault="",
        tests=(
            "tests/unit/ps_worker/transport/test_grpc_service.py::test_a_call_after_the_service_was_closed_is_a_named_error",
        ),
    ),
    Mutant(
        name="connect: who is interrupted twice leaves heartbeats",
        file="ps_worker/worker.py",
        text="            self._link.presence.abandon()\n            raise\n",
        fault="            raise\n",
        tests=(f"{CALLS}::test_ctrl_c_once_more_while_an_interrupted_connect_leaves_ends_its_heartbeats",),
    ),
    Mutant(
        name="connect: who is interrupted after the join stays in the job",
        file="ps_worker/worker.py",
        text="            self.give_up(error)\n            raise\n",
        fault="            raise\n",
        tests=(f"{CALLS}::test_a_connect_that_is_interrupted_once_it_has_joined_leaves",),
    ),
)
