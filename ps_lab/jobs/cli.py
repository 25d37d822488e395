"""`ps-lab job`: what a person types about jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ps_lab.options import SERVERS, Servers, TlsDir
from ps_wire.access.access import TOKEN_FILE, read
from ps_wire.errors import UsageError
from ps_wire.spec.address import check_job_name, parse_servers
from ps_wire.text import one_line

JobName = Annotated[str, typer.Argument(envvar="PS_JOB", help="The job.", show_default=False)]
TokenFile = Annotated[
    Path | None,
    typer.Option(envvar=TOKEN_FILE, help="Holds the token of the service, or the job's.", show_default=False),
]

app = typer.Typer(name="job", help="List, stop or drop jobs.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """List, stop or drop jobs."""


@app.command("list")
def list_jobs(servers: Servers = SERVERS, token_file: TokenFile = None, tls_dir: TlsDir = None) -> None:
    """List the jobs that the servers have, with their states.

    Exit codes: 0, 69 a server does not answer, 78 it wants other certificates or the service's token.
    """
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.status.observer import ask  # noqa: PLC0415
    from ps_lab.status.report import jobs  # noqa: PLC0415

    access = read(token_file=token_file, tls_dir=tls_dir, complain=typer.echo)
    make_console().print(jobs(ask(parse_servers(servers), access)))


@app.command()
def drop(
    job: JobName,
    servers: Servers = SERVERS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also a job that has live workers: they end with JobDropped.")
    ] = False,
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
) -> None:
    """Have the servers forget JOB: weights, optimizer state, and who was in it. Its name then begins anew.

    Its snapshots stay where they are, and the job does not go on from them by itself; ps-lab snapshot restore
    has it do so.

    Exit codes: 0, 1 there is no such job, 69 a server does not answer, 78 the job has live workers (--force
    ends them), 130 you said no.
    """
    from ps_lab.jobs.calls import drop as drop_one  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.jobs.display import dropped_lines, held_text  # noqa: PLC0415
    from ps_lab.status.observer import ask  # noqa: PLC0415

    access = read(token_file=token_file, tls_dir=tls_dir, job=check_job_name(job), complain=typer.echo)
    addresses = parse_servers(servers)
    found = ask(addresses, access).job(job)
    what = "" if found is None else held_text(found)
    if found is not None and (force or not found.has_live_workers) and not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"job {job} ({what}) would be dropped: say --yes where nobody can be asked")
        typer.confirm(f"Drop job {job} ({what})? It cannot be undone.", abort=True)
    for line in dropped_lines(job, what, drop_one(addresses[0], job, access, force=force)):
        print(line)


@app.command()
def stop(
    job: JobName,
    servers: Servers = SERVERS,
    reason: Annotated[str, typer.Option(help="Which all workers are told.")] = "ps-lab job stop",
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
) -> None:
    """Ask the workers of JOB to end after the epoch that the furthest of them has begun, and to finish.

    As if a worker had called stop_job: loops over worker.epochs end, and loaders hand out nothing of a later
    epoch. A script with loops of its own over data of its own goes on.

    Exit codes: 0 they were told, or the job was stopped before; 1 there is no such job, 69 a server does not
    answer, 78 the job has ended already.
    """
    from ps_lab.jobs.calls import stop as stop_one  # noqa: PLC0415 - heavy: not for --help

    access = read(token_file=token_file, tls_dir=tls_dir, job=check_job_name(job), complain=typer.echo)
    print(one_line(stop_one(parse_servers(servers)[0], job, access, reason=reason).why))
