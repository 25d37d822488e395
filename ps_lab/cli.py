"""The command `ps-lab`. Reads what a person typed; what is heavy is imported by the command that needs it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ps_lab.bench import cli as bench
from ps_lab.errors import exit_code_of
from ps_wire import carrier as carriers
from ps_wire.address import parse_servers
from ps_wire.command import run as run_command

app = typer.Typer(
    name="ps-lab",
    help="Local clusters of the PyTorch parameter server: run a script on one, look at one, try one out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app)


class OnFailure(StrEnum):
    """What happens to the others when a process crashes."""

    STOP = "stop"


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def launch(
    script: Annotated[Path, typer.Argument(help="Training script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to the script.", show_default=False)
    ] = None,
    num_servers: Annotated[int, typer.Option(min=1, help="Servers (shards) to start.")] = 2,
    num_workers: Annotated[int, typer.Option(min=1, help="Workers to start.")] = 4,
    consistency: Annotated[str, typer.Option(help="bsp, ssp:S or asp.")] = "bsp",
    job: Annotated[str, typer.Option(help="Name of the job on the servers.")] = "local",
    nonfinite: Annotated[
        str, typer.Option(help="Of gradients with NaN or infinity: error, skip or apply.")
    ] = "error",
    carrier: Annotated[
        str | None,
        typer.Option(
            envvar="PS_CARRIER",
            help=f"Of gradients and weights, one of {carriers.VALID}.",
            show_default=carriers.AUTO,
        ),
    ] = None,
    on_failure: Annotated[
        OnFailure, typer.Option(help="stop: end everything at the first crash, with its exit code.")
    ] = OnFailure.STOP,
) -> None:
    """Start servers and workers on this machine, run SCRIPT in each worker, and end everything.

    Options of ps-lab come before SCRIPT, the script's own after it:

        ps-lab launch --consistency ssp:3 examples/digits.py --epochs 5

    Exit codes: 0 all workers have finished, 130 Ctrl-C, 75 SIGTERM, 64 a value that makes no sense, else that
    of the process that failed first.
    """
    from ps_lab.display import Display, make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.launch import check_job, run  # noqa: PLC0415

    assert on_failure is OnFailure.STOP

    checked = check_job(
        name=job,
        consistency=consistency,
        num_workers=num_workers,
        script=script,
        arguments=tuple(arguments or ()),
        nonfinite=nonfinite,
        carrier=carrier,
    )
    with Display(make_console()) as display:
        run(checked, num_servers=num_servers, display=display)


@app.command()
def status(
    servers: Annotated[
        str,
        typer.Option(envvar="PS_SERVERS", help="HOST:PORT,HOST:PORT in shard order.", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show jobs, workers, tables and servers: states, clocks, gaps, waits, versions, bytes, staleness.

    Exit codes: 0, 69 a server does not answer, 78 the list has the wrong length or order.
    """
    from ps_lab.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.observer import ask  # noqa: PLC0415
    from ps_lab.report import tables  # noqa: PLC0415

    answer = ask(parse_servers(servers))
    if as_json:
        print(json.dumps(answer.to_json(), indent=2))
        return
    console = make_console()
    for table in tables(answer):
        console.print(table)


@app.command()
def demo() -> None:
    """Train a small CNN on scanned digits under bsp, ssp:3 and asp, and compare the three in one table.

    Each run has 2 servers and 4 workers on this machine. Exit code 1 if a run ends below 97 % test accuracy.
    """
    from ps_lab.demo import run_demo  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.display import make_console  # noqa: PLC0415

    run_demo(make_console())


def main() -> None:
    """Runs the command line; exit codes as in the README."""
    run_command(app, "ps-lab", exit_code_of)
