"""Faults of what people type and see: settings, exit codes, tokens, certificates, launched processes."""

from .mutant import Mutant

WIRE = "tests/unit/ps_wire/"
SERVER = "tests/unit/ps_server/"
LAB = "tests/unit/ps_lab/"
REFUSALS = "tests/integration/test_refusals.py"

PROGRAM = "ps_wire/process/program.py"
STARTS = f"{WIRE}process/test_program.py"

MUTANTS = (
    Mutant(
        name="program: Ctrl-C in an import is raised there",
        file=PROGRAM,
        text="        signal.signal(signal.SIGINT, signal.SIG_DFL)\n",
        fault="        pass\n",
        tests=(f"{STARTS}::test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word",),
    ),
    Mutant(
        name="program: a command in the background heeds Ctrl-C",
        file=PROGRAM,
        text="    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler\n",
        fault="    heeded = True\n",
        tests=(f"{STARTS}::test_one_in_the_background_that_ignores_ctrl_c_goes_on_ignoring_it",),
    ),
    Mutant(
        name="program: a command that runs dies of Ctrl-C",
        file=PROGRAM,
        text="            signal.signal(signal.SIGINT, signal.default_int_handler)\n",
        fault="            pass\n",
        tests=(f"{STARTS}::test_a_command_heeds_ctrl_c_again_once_it_runs",),
    ),
    Mutant(
        name="errors: a configuration that is refused ends with 1",
        file="ps_wire/errors.py",
        text="    exit_code = 78\n",
        fault="    exit_code = 1\n",
        tests=(f"{WIRE}test_errors.py",),
    ),
    Mutant(
        name="errors: an eviction looks like an error of the script",
        file="ps_wire/errors.py",
        text='went on without it."""\n\n    exit_code = 75\n',
        fault='went on without it."""\n\n    exit_code = 1\n',
        tests=(f"{WIRE}test_errors.py",),
    ),
    Mutant(
        name="errors: facts that are no object are taken",
        file="ps_wire/errors.py",
        text="    known = parsed if isinstance(parsed, dict) else {}\n",
        fault="    known = parsed\n",
        tests=(f"{WIRE}test_errors.py",),
    ),
    Mutant(
        name="command: what a person typed wrong ends with click's 2",
        file="ps_wire/process/command.py",
        text="        sys.exit(UsageError.exit_code)\n    if isinstance",
        fault="        sys.exit(CLICK_USAGE)\n    if isinstance",
        tests=(f"{REFUSALS}::test_what_makes_no_sense_ends_the_worker_with_64",),
    ),
    Mutant(
        name="command: a named error ends with 1",
        file="ps_wire/process/command.py",
        text="sys.exit(exit_code(error) if exit_code is not None else error.exit_code)",
        fault="sys.exit(exit_code(error) if exit_code is not None else 1)",
        tests=(f"{REFUSALS}::test_what_makes_no_sense_ends_the_worker_with_64",),
    ),
    Mutant(
        name="ps-server: a shard's number may be the count of shards",
        file="ps_server/cli.py",
        text="not int(match[1]) < int(match[2]) <= 4096:",
        fault="not int(match[1]) <= int(match[2]) <= 4096:",
        tests=(f"{SERVER}test_cli.py",),
    ),
    Mutant(
        name="ps-server: anybody on the network may join, and nobody is told",
        file="ps_server/cli.py",
        text="    if guarded or insecure or is_loopback(host):\n",
        fault="    if guarded or not insecure or is_loopback(host):\n",
        tests=(f"{SERVER}test_cli.py",),
    ),
    Mutant(
        name="ps-server: a megabyte is a million",
        file="ps_server/cli.py",
        text='"M": 1 << 20,',
        fault='"M": 10**6,',
        tests=(f"{SERVER}test_cli.py",),
    ),
    Mutant(
        name="ps-server: durability without a place is taken",
        file="ps_server/cli.py",
        text="    if durability is Durability.SNAPSHOT and snapshot_dir is None:\n",
        fault="    if durability is Durability.NONE and snapshot_dir is None:\n",
        tests=(f"{SERVER}test_cli.py",),
    ),
    Mutant(
        name="settings: the environment wins over what is given",
        file="ps_worker/settings.py",
        text='return values.get(name) or source.get(f"PS_{name.upper()}") or default',
        fault='return source.get(f"PS_{name.upper()}") or values.get(name) or default',
        tests=("tests/component/connections/test_settings.py",),
    ),
    Mutant(
        name="settings: a range may end before it begins",
        file="ps_worker/settings.py",
        text="    if most < least:\n",
        fault="    if most < 1:\n",
        tests=("tests/component/connections/test_settings.py",),
    ),
    Mutant(
        name="settings: no seconds are seconds",
        file="ps_worker/settings.py",
        text="    if not 0.0 < number < 1e9 and",
        fault="    if not 0.0 <= number < 1e9 and",
        tests=("tests/component/connections/test_settings.py",),
    ),
    Mutant(
        name="settings: two workers train alone",
        file="ps_worker/settings.py",
        text='(("num_workers", made.num_workers - 1), ("worker", made.worker or 0))',
        fault='(("num_workers", made.num_workers - 2), ("worker", made.worker or 0))',
        tests=("tests/component/connections/test_settings.py",),
    ),
    Mutant(
        name="settings: rounded numbers over shared memory",
        file="ps_worker/settings.py",
        text="made.carrier is carrier.Carrier.SHM and not made.shares:",
        fault="made.carrier is carrier.Carrier.UDS and not made.shares:",
        tests=("tests/component/connections/test_settings.py", "tests/component/tables/test_wire_dtype.py"),
    ),
    Mutant(
        name="token: the token of one job opens another",
        file="ps_wire/access/token.py",
        text='    name = f"job {check_job_name(job)}".encode()\n',
        fault='    name = f"job {check_job_name(job)[:0]}".encode()\n',
        tests=("tests/unit/ps_wire/access/test_token.py",),
    ),
    Mutant(
        name="token: a caller of one job sees all",
        file="ps_wire/access/token.py",
        text="        return self.job is None or self.job == job\n",
        fault="        return True\n",
        tests=("tests/unit/ps_wire/access/test_token.py",),
    ),
    Mutant(
        name="token: a job's token may do what is the service's",
        file="ps_wire/access/token.py",
        text='        if self.job is not None:\n            raise TokenRefused(f"the token of job {self.job} does not',
        fault="        if self.job == '':\n            raise TokenRefused(f\"the token of job {self.job} does not",
        tests=("tests/unit/ps_wire/access/test_token.py",),
    ),
    Mutant(
        name="token: only the first of a file is taken",
        file="ps_wire/access/token.py",
        text="        if _is_one_of(token, services):\n",
        fault="        if _is_one_of(token, services[:1]):\n",
        tests=("tests/unit/ps_wire/access/test_token.py",),
    ),
    Mutant(
        name="token: a short one will do",
        file="ps_wire/access/token.py",
        text="MIN_CHARACTERS, MAX_CHARACTERS = 16, 512",
        fault="MIN_CHARACTERS, MAX_CHARACTERS = 1, 512",
        tests=("tests/unit/ps_wire/access/test_token.py",),
    ),
    Mutant(
        name="certificates: a peer needs none",
        file="ps_wire/access/certificates.py",
        text="        context.verify_mode = ssl.CERT_REQUIRED\n",
        fault="        context.verify_mode = ssl.CERT_REQUIRED if protocol is ssl.PROTOCOL_TLS_CLIENT"
        " else ssl.CERT_OPTIONAL\n",
        tests=("tests/unit/ps_wire/access/test_certificates.py",),
    ),
    Mutant(
        name="certificates: TLS 1.2 will do",
        file="ps_wire/access/certificates.py",
        text="ssl.TLSVersion.TLSv1_3",
        fault="ssl.TLSVersion.TLSv1_2",
        tests=("tests/unit/ps_wire/access/test_certificates.py",),
    ),
    Mutant(
        name="certificates: changed files are read once, at the start",
        file="ps_wire/access/certificates.py",
        text="            if self._look() != self._seen:\n",
        fault="            if not self._seen:\n",
        tests=(
            "tests/unit/ps_wire/access/test_certificates.py",
            "tests/component/connections/test_new_credentials.py",
        ),
    ),
    Mutant(
        name="certificates: bad ones take the place of good ones",
        file="ps_wire/access/certificates.py",
        text="        probing = self._context(ssl.PROTOCOL_TLS_CLIENT)\n",
        fault="        self._identity = None  # type: ignore[assignment]\n"
        "        probing = self._context(ssl.PROTOCOL_TLS_CLIENT)\n",
        tests=("tests/unit/ps_wire/access/test_certificates.py",),
    ),
    Mutant(
        name="gatekeeper: no call needs a token",
        file="ps_server/rpc/auth.py",
        text="        except TokenRefused as error:\n            return self._refusing(error)\n",
        fault="        except TokenRefused:\n            pass\n",
        tests=("tests/component/connections/test_access.py",),
    ),
    Mutant(
        name="staleness: the 99th percentile is the rank below",
        file="ps_wire/spec/staleness.py",
        text="    rank = -(-pushes * 99 // 100)\n",
        fault="    rank = pushes * 99 // 100\n",
        tests=("tests/unit/ps_wire/spec/test_staleness.py",),
    ),
    Mutant(
        name="staleness: the mean is over the values, not the pushes",
        file="ps_wire/spec/staleness.py",
        text="    mean = sum(tau * count for tau, count in counts.items()) / pushes\n",
        fault="    mean = sum(counts) / len(counts)\n",
        tests=("tests/unit/ps_wire/spec/test_staleness.py",),
    ),
    Mutant(
        name="staleness: shards count over each other",
        file="ps_wire/spec/staleness.py",
        text="        total.update(histogram)\n",
        fault="        total = Counter(total | Counter(histogram))\n",
        tests=("tests/unit/ps_wire/spec/test_staleness.py",),
    ),
    Mutant(
        name="stats: the wait at the gate is added up over shards",
        file="ps_worker/job/stats.py",
        text="gate_wait_s=max([entry.gate_wait_s for entry in mine], default=0.0),",
        fault="gate_wait_s=sum([entry.gate_wait_s for entry in mine]),",
        tests=("tests/component/training/test_stats.py",),
    ),
    Mutant(
        name="stats: what others have dropped is this worker's",
        file="ps_worker/job/stats.py",
        text="for table in tables for entry in table.workers if entry.worker == worker]",
        fault="for table in tables for entry in table.workers]",
        tests=("tests/component/training/test_stats.py",),
    ),
    Mutant(
        name="keeper: a group that has ended is killed, whoever has its number",
        file="ps_lab/cluster/group_killer.py",
        text="            groups.pop(group).close()\n",
        fault="            pass\n",
        tests=("tests/unit/ps_lab/cluster/test_child.py", "tests/unit/ps_lab/cluster/test_group_killer.py"),
    ),
    Mutant(
        name="keeper: nothing is ended where the command was killed",
        file="ps_lab/cluster/group_killer.py",
        text="            handle.send_group(signal.SIGKILL)\n",
        fault="            handle.send_group(0)\n",
        tests=("tests/unit/ps_lab/cluster/test_child.py", "tests/unit/ps_lab/cluster/test_group_killer.py"),
    ),
    Mutant(
        name="child: what it has started lives on",
        file="ps_lab/cluster/child.py",
        text="        # Not yet reaped, so the group is still ours: what the process left behind ends with it.\n"
        "        self._handle.send_group(signal.SIGKILL)\n",
        fault="",
        tests=("tests/unit/ps_lab/cluster/test_child.py",),
    ),
    Mutant(
        name="child: a line of any length is kept whole",
        file="ps_lab/cluster/child.py",
        text="output.readline(LINE_BYTES):",
        fault="output.readline():",
        tests=("tests/unit/ps_lab/cluster/test_child.py",),
    ),
    Mutant(
        name="tether: a child outlives who started it",
        file="ps_wire/process/die_with_parent.py",
        text="        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)\n",
        fault="        pass\n",
        tests=("tests/unit/ps_lab/cluster/test_child.py",),
    ),
)
