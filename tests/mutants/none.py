"""Faults of ranks that their launcher forks, and of groups without servers."""

from .mutant import Mutant

RANK_PROCESSES = "tests/unit/ps_worker/process/test_rank_processes.py"
RENDEZVOUS = "tests/unit/ps_worker/group/test_rendezvous.py"
OWN_SERVERS = "tests/unit/ps_worker/job/test_own_servers.py"
COMPARE = "tests/integration/test_compare.py"
TRACES = "tests/unit/ps_lab/test_traces.py"
TOGETHER = "tests/integration/test_own_servers.py"

MUTANTS = (
    Mutant(
        name="none: who meets at the port of another program waits without end",
        file="ps_worker/job/own_servers.py",
        text='in_time("ps-store", partial(_connect, settings), settings.start_limit_s + STORE_GRACE_S)',
        fault="_connect(settings)",
        tests=(f"{OWN_SERVERS}::test_who_takes_connections_where_ranks_meet_and_says_nothing_is_named",),
    ),
    Mutant(
        name="groups: who meets a rank 0 that was stopped waits without end",
        file="ps_worker/group/rendezvous.py",
        text='in_time("ps-store", connect, STORE_LIMIT_S + STORE_GRACE_S)',
        fault="connect()",
        tests=(f"{RENDEZVOUS}::test_a_rank_0_that_has_come_and_says_nothing_is_named",),
    ),
    Mutant(
        name="none: who begins before rank 0 is told that it is wrongly used",
        file="ps_worker/job/own_servers.py",
        text="        if isinstance(error, DistNetworkError) and not settings.ranks.leads:",
        fault="        if False:",
        tests=(f"{OWN_SERVERS}::test_where_nobody_listens_where_ranks_meet_the_place_is_named",),
    ),
    Mutant(
        name="groups: that rank 0 is not reached is said by torch, as if it were a bug",
        file="ps_worker/group/rendezvous.py",
        text="        except DistNetworkError as error:\n",
        fault="        except ZeroDivisionError as error:\n",
        tests=(f"{RENDEZVOUS}::test_a_rank_0_that_has_come_and_is_not_reached_is_named",),
    ),
    Mutant(
        name="ranks: the code of what one of them left behind is that of the worker",
        file="ps_worker/process/rank_processes.py",
        text="        if is_rank and not failed:\n",
        fault="        if not failed:\n",
        tests=(
            f"{RANK_PROCESSES}::test_what_a_rank_left_behind_is_waited_for_and_its_code_is_none_of_a_rank",
        ),
    ),
    Mutant(
        name="none: a group without servers begins anew where it has a snapshot",
        file="ps_server/process/hosted_shard.py",
        text="Durability.NONE if folder is None else Durability.SNAPSHOT",
        fault="Durability.NONE",
        tests=(
            f"{TOGETHER}::test_a_job_without_servers_that_was_killed_goes_on_from_its_snapshot_to_the_same_bits",
        ),
    ),
    Mutant(
        name="none: a forked rank keeps its launcher's signals",
        file="ps_worker/process/rank_processes.py",
        text="                    signal.signal(number, handler)\n",
        fault="                    pass\n",
        tests=(
            f"{RANK_PROCESSES}::test_a_rank_that_goes_on_from_the_fork_has_the_signals_of_before_and_numbers_of_its_own",
        ),
    ),
    Mutant(
        name="none: forked ranks draw the same random numbers",
        file="ps_wire/process/forking.py",
        text='        sys.modules["numpy"].random.seed()\n',
        fault="        pass\n",
        tests=(
            f"{RANK_PROCESSES}::test_a_rank_that_goes_on_from_the_fork_has_the_signals_of_before_and_numbers_of_its_own",
        ),
    ),
    Mutant(
        name="none: ranks on several hosts wait for a server that they cannot reach",
        file="ps_worker/job/own_servers.py",
        text='        if said["machine"] != machine():\n',
        fault="        if False:\n",
        tests=(f"{OWN_SERVERS}::test_ranks_on_several_hosts_are_refused",),
    ),
    Mutant(
        name="none: who waits for another rank's server does not hear that it cannot start",
        file="ps_worker/job/own_servers.py",
        text='    if "error" in said:\n',
        fault="    if False:\n",
        tests=(f"{OWN_SERVERS}::test_a_server_that_cannot_start_is_told_to_all_ranks",),
    ),
    Mutant(
        name="none: one rank has the optimizer's whole state",
        file="ps_server/process/hosted_shard.py",
        text="                num_shards=num_shards,\n",
        fault="                num_shards=1,\n",
        tests=(
            f"{TOGETHER}::test_ranks_without_servers_share_one_optimizer_and_each_has_its_part_of_the_state",
        ),
    ),
    Mutant(
        name="none: without servers each process of --nproc is a job of its own",
        file="ps_worker/cli.py",
        text="        group_size = nproc\n",
        fault="        pass\n",
        tests=(
            f"{TOGETHER}::test_ranks_without_servers_share_one_optimizer_and_each_has_its_part_of_the_state",
        ),
    ),
    Mutant(
        name="none: the demo is content with groups that have not learned",
        file="ps_lab/demo.py",
        text="    if found is None or float(found[1]) < GROUPS_ACCURACY:\n",
        fault="    if found is None:\n",
        tests=("tests/unit/ps_lab/test_demo.py::test_the_groups_have_a_row_and_have_to_learn",),
    ),
    Mutant(
        name="none: a reader takes the first rank's server for all",
        file="ps_worker/job/own_servers.py",
        text='        size = int(said["size"])\n',
        fault="        pass\n",
        tests=(f"{OWN_SERVERS}::test_a_reader_finds_the_servers_of_all_ranks_at_the_same_store",),
    ),
    Mutant(
        name="none: ranks of the baseline none record as one worker",
        file="ps_worker/steps.py",
        text="        return self._settings.ranks.rank if self._is_the_job else self.link.rank\n",
        fault="        return self.link.rank\n",
        tests=(f"{COMPARE}::test_the_baselines_run_the_same_script_and_ddp_has_the_same_losses_as_bsp",),
    ),
    Mutant(
        name="none: traces of processes stand in the order of their numbers",
        file="ps_lab/traces.py",
        text="sorted(found, key=_name_of)",
        fault="found",
        tests=(f"{TRACES}::test_all_processes_are_in_one_trace_by_their_names",),
    ),
)
