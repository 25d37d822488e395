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
)
