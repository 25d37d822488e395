"""Faults in what is done about peers that mean harm: at the log, the control plane and the ports."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="a line of the log is written as peers have said it",
        file="ps_server/log.py",
        text="return one_line(super().formatMessage(record))",
        fault="return str(super().formatMessage(record))",
        tests=("tests/unit/ps_server/test_log.py",),
    ),
    Mutant(
        name="a traceback is written as it is",
        file="ps_server/log.py",
        text='f"  | {one_line(line)}"',
        fault="line",
        tests=("tests/unit/ps_server/test_log.py",),
    ),
    Mutant(
        name="an error of a peer keeps its control characters",
        file="ps_wire/errors.py",
        text='    line = one_line(message if cls is not None else f"{name}: {message}")',
        fault='    line = message if cls is not None else f"{name}: {message}"',
        tests=("tests/unit/ps_server/test_log.py",),
    ),
    Mutant(
        name="status shows what peers say as it is",
        file="ps_lab/report.py",
        text="    table.add_row(*map(one_line, cells))",
        fault="    table.add_row(*cells)",
        tests=("tests/unit/ps_lab/test_report.py",),
    ),
    Mutant(
        name="the worker's terminal shows what peers say as it is",
        file="ps_worker/terminal.py",
        text="{one_line(record.getMessage())}",
        fault="{record.getMessage()}",
        tests=("tests/unit/ps_worker/test_terminal.py",),
    ),
    Mutant(
        name="every refused frame is a line",
        file="ps_server/complaints.py",
        text="says = window.lines < MAX_LINES",
        fault="says = True",
        tests=("tests/unit/ps_server/test_complaints.py", "tests/unit/ps_server/test_session.py"),
    ),
    Mutant(
        name="the count of refusals is not said at the end of a connection",
        file="ps_server/session.py",
        text="            self._shard.complaints.end(self._peer)\n",
        fault="",
        tests=("tests/unit/ps_server/test_session.py",),
    ),
    Mutant(
        name="who connects again has lines again",
        file="ps_server/complaints.py",
        text="                window.left_out = 0\n",
        fault="                del self._windows[peer]\n",
        tests=("tests/unit/ps_server/test_complaints.py",),
    ),
    Mutant(
        name="HELLO without a token of this job says whether the job is here",
        file="ps_server/shard.py",
        text="if not hmac.compare_digest(token, self._sign(token[:NONCE_BYTES], job, worker, incarnation)):",
        fault="if not token:",
        tests=("tests/unit/ps_server/test_shard.py",),
    ),
    Mutant(
        name="a refusal over memory names what others hold",
        file="ps_server/shard.py",
        text="the job holds {held[job.name]}, the server's",
        fault="jobs hold {held}, the server's",
        tests=("tests/unit/ps_server/test_shard.py",),
    ),
    Mutant(
        name="partitions are not counted as memory",
        file="ps_server/shard.py",
        text="total = CELL_BYTES * plan.count_of_shard(self.index)",
        fault="total = 0",
        tests=("tests/unit/ps_server/test_shard.py",),
    ),
    Mutant(
        name="a table has as many partitions as it likes",
        file="ps_server/shard.py",
        text="    if count > MAX_PARTITIONS:",
        fault="    if count > MAX_PARTITIONS * 1000:",
        tests=("tests/unit/ps_server/test_shard.py",),
    ),
    Mutant(
        name="memory that the system did not give stays counted",
        file="ps_server/shard.py",
        text="                entry.memory_bytes -= need\n",
        fault="                pass\n",
        tests=("tests/unit/ps_server/test_shard.py",),
    ),
)
