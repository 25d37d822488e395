"""The command `ps-lab`. Reads what a person typed; what is heavy is imported by the command that needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ps_lab.bench import cli as bench
from ps_lab.cluster.team import OnFailure
from ps_lab.errors import LibraryMissing, exit_code_of
from ps_lab.jobs import cli as job_cli
from ps_lab.options import SERVERS, Servers, TlsDir, TokenFile
from ps_lab.outputs import check_file
from ps_lab.pipeline import cli as pipeline_cli
from ps_lab.simulate import cli as simulate_cli
from ps_lab.snapshots import cli as snapshot_cli
from ps_lab.top import cli as top_cli
from ps_wire.access import token as tokens
from ps_wire.access.access import TLS_DIR, TOKEN_FILE, read
from ps_wire.errors import JobUnknown, UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.process import log_level as log_levels
from ps_wire.process import misplaced
from ps_wire.process.command import run as run_command
from ps_wire.process.log_level import LogLevel
from ps_wire.process.log_option import LogLevelOption
from ps_wire.process.rank_options import Fresh, GroupSize, PipelineStages
from ps_wire.spec import wire_dtype as wire_dtypes
from ps_wire.spec.address import parse_address, parse_servers
from ps_wire.text import one_line

if TYPE_CHECKING:
    from ps_lab.compare.comparing import Choice
    from ps_lab.compare.folder import Folder
    from ps_lab.status.status import Status

app = typer.Typer(
    name="ps-lab",
    help="Local clusters of the PyTorch parameter server: run a script on one, look at one, try one out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app)
app.add_typer(snapshot_cli.app)
app.add_typer(job_cli.app)
app.add_typer(pipeline_cli.app)
app.command()(simulate_cli.simulate)
app.command()(top_cli.top)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Training script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to the script.", show_default=False)
    ] = None,
    num_servers: Annotated[int, typer.Option(min=1, help="Servers (shards) to start.")] = 2,
    num_workers: Annotated[int, typer.Option(min=1, help="Workers to start.")] = 4,
    consistency: Annotated[str, typer.Option(help="bsp, bsp:backup=B, ssp:S or asp.")] = "bsp",
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
    wire_dtype: Annotated[
        str | None,
        typer.Option(
            envvar="PS_WIRE_DTYPE",
            help=f"In which float32 gradients and weights travel, one of {wire_dtypes.VALID}.",
            show_default=wire_dtypes.WireDtype.FP32,
        ),
    ] = None,
    group_size: GroupSize = 1,
    pipeline_stages: PipelineStages = 1,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Processes of each worker.", show_default="ranks, or stages, of one"),
    ] = None,
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            help="Of a worker. stop: everything ends. continue: the others go on. restart: it starts again, "
            "up to 3 times."
        ),
    ] = OnFailure.STOP,
    logs: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|show",
            help="Where what the servers log goes: a file for each. show: between the lines of the workers. "
            "Warnings and errors are shown in any case.",
            show_default="a new folder, which goes when the run ends well",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PS_LOG_DIR",
            help="Folder for TensorBoard: what the first worker logs is a run there, named for the job.",
            show_default=False,
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.INFO,
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
    fresh: Fresh = False,
) -> None:
    """Start servers and workers on this machine, run SCRIPT in each worker, and end everything.

    Options of ps-lab come before SCRIPT, the script's own after it:

        ps-lab launch --consistency ssp:3 examples/digits.py --epochs 5

    Exit codes: 0 all workers have finished, 130 Ctrl-C, 75 SIGTERM, 64 a value that makes no sense, else that
    of the process that failed first and did not start again.
    """
    from ps_lab.cluster.display import Display, make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.cluster.launch import check_job, run  # noqa: PLC0415

    checked = check_job(
        name=job,
        consistency=consistency,
        num_workers=num_workers,
        script=script,
        arguments=tuple(arguments or ()),
        nonfinite=nonfinite,
        carrier=carrier,
        wire_dtype=wire_dtype,
        group_size=group_size,
        pipeline_stages=pipeline_stages,
        nproc=nproc,
    )
    named = {TOKEN_FILE: token_file, TLS_DIR: tls_dir, "PS_LOG_DIR": log_dir}
    environment = os.environ | {name: str(path.absolute()) for name, path in named.items() if path}
    environment[log_levels.VARIABLE] = log_level
    own = {name for parameter in context.command.params for name in parameter.opts}
    with Display(make_console()) as display:
        if said := misplaced.hint("ps-lab", own, script, checked.arguments):
            display.note(said)
        run(
            checked,
            num_servers=num_servers,
            display=display,
            environment=environment,
            fresh=fresh,
            on_failure=on_failure,
            logs=logs,
        )


@app.command()
def status(
    servers: Servers = SERVERS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Draw it again each second, until Ctrl-C.")] = False,
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
    job: Annotated[
        str | None,
        typer.Option(envvar="PS_JOB", help="Shows this one alone; the token may be this job's."),
    ] = None,
) -> None:
    """Show jobs, workers, tables and servers: states, clocks, gaps, waits, versions, bytes, staleness.

    Exit codes: 0, 1 there is no such job, 69 a server does not answer, 78 the list has the wrong length or
    order, or a server wants other certificates or another token; 130 Ctrl-C. With --json a job that is not
    there is an empty list.
    """
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.status.json_text import json_text  # noqa: PLC0415
    from ps_lab.status.live import watch as draw_again  # noqa: PLC0415
    from ps_lab.status.observer import ANSWER_LIMIT_S, LOOK_LIMIT_S, ask  # noqa: PLC0415
    from ps_lab.status.report import tables  # noqa: PLC0415

    access = read(token_file=token_file, tls_dir=tls_dir, job=job, complain=typer.echo)
    addresses = parse_servers(servers)

    def look() -> Status:
        answer = ask(addresses, access, timeout_s=LOOK_LIMIT_S if watch else ANSWER_LIMIT_S)
        return answer if job is None else answer.only(job)

    if as_json and watch:
        raise UsageError("--json is one object, --watch draws for people: take one of them")
    console = make_console()
    if watch:
        draw_again(console, look)
    answer = look()
    if as_json:
        print(json_text(answer.to_json(), indent=2))
        return
    if job is not None and not answer.jobs:
        raise JobUnknown(f"the servers know no job {job!r}: ps-lab job list names those that they have")
    for table in tables(answer):
        console.print(table)


@app.command()
def health(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Of a server, or of its --health-port.")
    ],
    liveness: Annotated[
        bool, typer.Option("--liveness", help="Whether the process answers, ready or not.")
    ] = False,
    limit: Annotated[float, typer.Option(min=0.1, max=600.0, help="Seconds for the answer.")] = 3.0,
    tls_dir: TlsDir = None,
) -> None:
    """Ask a server whether it is ready: for probes of containers and for scripts.

    Exit codes: 0 it serves, 69 it does not, or nobody answers; 78 it wants other certificates.
    """
    from ps_lab.status.observer import check_serving  # noqa: PLC0415 - heavy: not for --help

    access = read(token_file=None, tls_dir=tls_dir, complain=typer.echo)
    name = "liveness" if liveness else ""
    check_serving(parse_address(address), access, name=name, timeout_s=limit)
    print(f"{parse_address(address)} serves")


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder for the runs and the report.", show_default="demo-, and the time, in this folder"
        ),
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Compare bsp, ssp:3 and asp on scanned digits with workers that stumble: quick.toml, with a report.

    Each run has 2 servers and 4 workers on this machine; one more has 2 groups of 2 ranks, and one a pipeline
    of 2 stages. Exit code 1 if a run fails, or if a model stays below 97 % test accuracy in the mean over its
    runs.
    """
    from ps_lab import demo as demos  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.compare.comparing import Choice  # noqa: PLC0415

    experiment = demos.find_experiment()
    folder = demos.make_folder(experiment, out)
    _run_and_report(folder, experiment.parent, Choice(fresh=fresh))
    demos.check(folder)
    print(demos.run_groups(fresh=fresh))
    print(demos.run_pipeline(fresh=fresh))


@app.command()
def compare(
    experiment: Annotated[
        Path, typer.Argument(help="What is compared, in TOML: docs/compare.md.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the runs and the report; it is made.", show_default=False)
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in a folder that has runs; those that have ended stay.")
    ] = False,
    only: Annotated[str, typer.Option(metavar="MODEL", help="Runs of this model alone: ssp:3.")] = "",
    budget: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds after which no further run begins. Default: the experiment's."),
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Run an experiment: consistency models, learning rates, stragglers and seeds, one run after the other.

    Each run is a job on servers of this machine. What has ended is never repeated: after Ctrl-C or a crash,
    --resume goes on with the runs that are missing.

    Exit codes: 0 all runs are done, or the budget is over; 1 some runs failed, and the others are done, or a
    file cannot be written; 64 the experiment makes no sense, or the folder belongs to another; 130 Ctrl-C.
    """
    from ps_lab.compare.comparing import Choice  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.compare.folder import Folder  # noqa: PLC0415
    from ps_lab.experiments.experiment import read as read_experiment  # noqa: PLC0415

    found, text = read_experiment(experiment)
    folder = Folder.make(out, found, text)
    done = len(folder.runs) - len(folder.missing())
    if done and not resume:
        raise UsageError(f"{out} has {done} of {len(folder.runs)} runs: --resume goes on with the others")
    limit_s = found.budget_s if budget is None else budget
    _run_and_report(folder, experiment.parent, Choice(only=only, budget_s=limit_s, fresh=fresh))


def _run_and_report(folder: Folder, scripts: Path, choice: Choice) -> None:
    """Does the runs that are missing; then a report of what there is, also where some failed."""
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.compare.comparing import compare as run_all  # noqa: PLC0415

    try:
        run_all(folder, scripts, choice, make_console())
    finally:
        if any(one.outcome() is not None for one in folder.runs):
            try:
                _report(folder.path)
            except LibraryMissing as error:  # the runs are done all the same
                print(one_line(f"no report: {error.message}"))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Of a comparison.", show_default=False)],
    against: Annotated[
        Path | None,
        typer.Option(help="Folder of an older comparison: each model is compared with itself there."),
    ] = None,
) -> None:
    """Make the report of a comparison from what FOLDER has by now, as FOLDER/report/report.html.

    Exit codes: 0, 1 a run is missing or failed, or a law did not hold; 64 FOLDER is none of a comparison.
    """
    if not _report(folder, against):
        raise typer.Exit(1)


def _report(folder: Path, against: Path | None = None) -> bool:
    """Makes a report and says what is in it and where it is; whether nothing is missing and all laws hold."""
    from ps_lab.compare.report import headlines, make  # noqa: PLC0415 - heavy, and an extra

    made = make(folder, against)
    for sentence in made.short:
        print(one_line(sentence))
    for finding in headlines(made.findings):
        print(one_line(str(finding)))
    for law in made.violated:
        print(one_line(f"violated: {law}"))
    print(made.page)
    return made.complete and not made.violated


@app.command()
def trace(
    folder: Annotated[Path, typer.Argument(help="That PS_TRACE named.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File for the trace of all processes.", show_default=False)],
) -> None:
    """Put the traces of all processes of a run into one file, which ui.perfetto.dev opens: a row for each.

    Servers, workers and ranks of groups stand under their names, on one clock: all of one machine.
    """
    import json  # noqa: PLC0415 - not for --help

    from ps_lab import traces  # noqa: PLC0415

    text = json.dumps(traces.put_together(folder))
    check_file(out, "--out")
    out.write_text(text, encoding="utf-8")
    print(f"{out}: open it at https://ui.perfetto.dev or in chrome://tracing")


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Where they go; it is made.", show_default=False)],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address of a server, or *.NAME; may be given again. "
            "Always: localhost, 127.0.0.1, ::1 and this host's name.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For which they are valid.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Make certificates to try TLS with: a CA of your own, and with it one for servers and one for workers.

    Give FOLDER/server to ps-server and FOLDER/worker to ps-worker as --tls-dir (PS_TLS_DIR).
    """
    from ps_lab.cluster.certificate_authority import make_certificates  # noqa: PLC0415 - an extra

    for path in make_certificates(folder, hosts=tuple(host or ()), days=days, force=force):
        print(path)


@app.command()
def token(
    job: Annotated[str, typer.Option(envvar="PS_JOB", help="The job that it opens.", show_default=False)],
    token_file: Annotated[
        Path,
        typer.Option(envvar=TOKEN_FILE, help="Holds the token of the service.", show_default=False),
    ],
) -> None:
    """Print the token that opens one job and no other, made from the service's."""
    print(tokens.of_job(tokens.read(token_file), job))


def main() -> None:
    """Runs the command line; exit codes as in `docs/reference.md`."""
    run_command(app, "ps-lab", exit_code_of)
