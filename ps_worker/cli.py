"""`ps-worker`: runs a training script as one worker of a job."""

from __future__ import annotations

import gc
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from ps_wire.errors import PsError, UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.metrics.options import MetricsHost, MetricsPort
from ps_wire.process import late_dynamo, misplaced, trace
from ps_wire.process import log_level as log_levels
from ps_wire.process.command import run as run_command
from ps_wire.process.cores import available_cores
from ps_wire.process.log_level import LogLevel
from ps_wire.process.log_option import LogLevelOption
from ps_wire.process.rank_options import Fresh, GroupSize, PipelineStages
from ps_wire.process.ranks import OWN
from ps_wire.snapshot.snapshot_options import KEEP
from ps_wire.spec import consistency as models
from ps_wire.spec import nonfinite as choices
from ps_wire.spec import wire_dtype as wire_dtypes
from ps_wire.spec.address import check_job_name, parse_servers
from ps_wire.text import one_line
from ps_worker.job import own_servers
from ps_worker.pipeline.schedules import PIPELINING
from ps_worker.process import open_files, rank_processes, script_errors, stopping
from ps_worker.process.rank_processes import CAN_FORK
from ps_worker.settings import ALONE, LEASE_S, METRICS_HOST, REDUCES, STORE, parse_size

GROUP_RANK, LOCAL_RANK = OWN
LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
# This command, as another process: its folder is not where modules are looked for, as it is not here.
AGAIN = [sys.executable, "-c", "import sys; del sys.path[0]; from ps_worker.cli import main; main()"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
    }
)
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The training script; what follows is its arguments.")],
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, which is run as python -m does it.")
    ] = False,
    servers: Annotated[
        str,
        typer.Option(
            envvar="PS_SERVERS",
            help="All shards, in shard order: HOST:PORT,HOST:PORT or ps-{0..3}:50051; or none, to run alone.",
        ),
    ] = "127.0.0.1:50051",
    job: Annotated[
        str, typer.Option(envvar="PS_JOB", help="Workers of one name train together.")
    ] = "default",
    consistency: Annotated[
        str, typer.Option(envvar="PS_CONSISTENCY", help=f"One of {models.VALID}.")
    ] = "bsp",
    num_workers: Annotated[
        str | None,
        typer.Option(
            envvar="PS_NUM_WORKERS",
            metavar="N|MIN:MAX",
            help="Workers that the job waits for; 2:8 starts with two, and up to eight come and go.",
            show_default="1",
        ),
    ] = None,
    worker: Annotated[
        int | None, typer.Option(envvar="PS_WORKER", min=0, help="This one's number. Default: given.")
    ] = None,
    nonfinite: Annotated[
        str,
        typer.Option(
            envvar="PS_NONFINITE", help=f"Of gradients with NaN or infinity, one of {choices.VALID}."
        ),
    ] = "error",
    carrier: Annotated[
        str, typer.Option(envvar="PS_CARRIER", help=f"Of gradients and weights, one of {carriers.VALID}.")
    ] = carriers.AUTO,
    wire_dtype: Annotated[
        str,
        typer.Option(
            envvar="PS_WIRE_DTYPE",
            help=f"In which float32 gradients and weights travel, one of {wire_dtypes.VALID}.",
        ),
    ] = wire_dtypes.WireDtype.FP32,
    lease: Annotated[
        float,
        typer.Option(
            envvar="PS_LEASE",
            help="Seconds without a sign of life from this worker after which the others go on without it.",
        ),
    ] = LEASE_S,
    drain_limit: Annotated[
        float,
        typer.Option(
            envvar="PS_DRAIN_LIMIT",
            help="Seconds that a step may take to end when SIGTERM has come.",
        ),
    ] = stopping.LIMIT_S,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = METRICS_HOST,
    token_file: Annotated[
        Path | None, typer.Option(envvar="PS_TOKEN_FILE", help="Holds the service's token, or the job's.")
    ] = None,
    tls_dir: Annotated[
        Path | None,
        typer.Option(envvar="PS_TLS_DIR", help="Folder with ca.crt, tls.crt and tls.key: TLS both ways."),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PS_LOG_DIR",
            help="Folder for TensorBoard: what the first worker logs is a run there, named for the job.",
        ),
    ] = None,
    nproc: Annotated[
        int,
        typer.Option(envvar="PS_NPROC", min=1, help="Processes to start here: ranks of groups, or workers."),
    ] = 1,
    group_size: GroupSize = 1,
    group_reduce: Annotated[
        str,
        typer.Option(
            envvar="PS_GROUP_REDUCE",
            help=f"How ranks of a group reduce their gradients, one of {', '.join(REDUCES)}.",
        ),
    ] = REDUCES[0],
    insecure_group: Annotated[
        bool,
        typer.Option(
            envvar="PS_INSECURE_GROUP",
            help="With --tls-dir, ranks may be on several hosts: what they send each other is not encrypted.",
        ),
    ] = False,
    snapshot_dir: Annotated[
        str | None,
        typer.Option(
            envvar="PS_SNAPSHOT_DIR",
            help="A folder for the job's snapshots, with --servers none and --nproc: it goes on from them.",
        ),
    ] = None,
    snapshot_every: Annotated[
        str | None,
        typer.Option(envvar="PS_SNAPSHOT_EVERY", metavar="500steps|5m", help="How often they are taken."),
    ] = None,
    snapshot_keep: Annotated[
        int, typer.Option(envvar="PS_SNAPSHOT_KEEP", min=1, help="The last ones that are kept.")
    ] = KEEP,
    pipeline_stages: PipelineStages = 1,
    stage: Annotated[
        int | None,
        typer.Option(
            envvar="PS_STAGE", min=0, help="Which stage this process is, where --nproc does not start all."
        ),
    ] = None,
    fresh: Fresh = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Runs SCRIPT with PS_* set, so that `ps_worker.connect()` in it joins the job."""
    if servers != ALONE:
        parse_servers(servers)
    check_job_name(job)
    models.parse(consistency)
    choices.parse(nonfinite)
    carriers.parse(carrier)
    wire_dtypes.parse(wire_dtype)
    group_size = _group_size(group_size, pipeline_stages, stage, nproc)
    if servers == ALONE and nproc > 1 and group_size == 1:
        group_size = nproc
    option = "--pipeline-stages" if pipeline_stages > 1 else "--group-size"
    num_workers = _count(servers, num_workers, nproc, group_size, option)
    _, most = parse_size(num_workers or "1", "--num-workers")
    if not module and not script.is_file():
        raise UsageError(f"{script} is not a file")
    os.environ |= {
        "PS_SERVERS": servers,
        "PS_JOB": job,
        "PS_CONSISTENCY": consistency,
        "PS_GROUP_SIZE": str(group_size),
        "PS_PIPELINE_STAGES": str(pipeline_stages),
        **({} if stage is None else {"PS_STAGE": str(stage)}),
        **({} if num_workers is None else {"PS_NUM_WORKERS": num_workers}),
        "PS_GROUP_REDUCE": group_reduce,
        **({"PS_INSECURE_GROUP": "1"} if insecure_group else {}),
        "PS_LEASE": str(lease),
        "PS_NONFINITE": nonfinite,
        "PS_CARRIER": carrier,
        "PS_WIRE_DTYPE": wire_dtype,
        "PS_METRICS_HOST": metrics_host,
        log_levels.VARIABLE: log_level,
    }
    if metrics_port is not None:
        os.environ["PS_METRICS_PORT"] = str(metrics_port)
    for name, path in (("PS_TOKEN_FILE", token_file), ("PS_TLS_DIR", tls_dir), ("PS_LOG_DIR", log_dir)):
        if path is not None:
            os.environ[name] = str(path.absolute())  # the script may go to another folder
    _set_snapshots(context, servers, snapshot_dir, snapshot_every, snapshot_keep)
    modules = (PIPELINING,) if pipeline_stages > 1 else ()
    worker = _number(worker, nproc, group_size, modules, fresh=fresh, alone=servers == ALONE)
    if worker is not None:
        os.environ["PS_WORKER"] = str(worker)
    _share_cores(servers, most * group_size, nproc)
    if drain_limit < 0:
        raise UsageError(f"--drain-limit must be >= 0 seconds, got {drain_limit:g}")
    stopping.install(drain_limit)
    trace.start(_process_name(worker, group_size))
    sys.argv = [str(script), *context.args]
    late_dynamo.install()
    if module:
        sys.path.insert(0, str(Path.cwd()))
        _check_module(str(script))
        _run(partial(runpy.run_module, str(script), run_name="__main__", alter_sys=True))
    else:
        sys.path.insert(0, str(script.resolve().parent))
        _hint(context, script)
        _run(partial(runpy.run_path, str(script), run_name="__main__"))
    stopping.script_ended()


def _hint(context: typer.Context, script: Path) -> None:
    """Says which options of ours the script gets that does not know them."""
    own = {name for parameter in context.command.params for name in parameter.opts}
    if said := misplaced.hint("ps-worker", own, script, context.args):
        sys.stderr.write(f"{one_line(said)}\n")


def _run(script: Callable[[], object]) -> None:
    """Runs the script; what it raises of its own is shown here, and ends the process with 1."""
    left, interrupted = None, False
    try:
        left = script()
    except KeyboardInterrupt:
        interrupted = True
        stopping.interrupt()
        raise
    except PsError as error:
        stopping.script_ended()
        if line := script_errors.line_through(error, __file__):
            sys.stderr.write(f"{line}\n")
        raise
    except Exception as error:  # noqa: BLE001 - the script's own
        stopping.script_ended()
        script_errors.show(error, __file__)
        sys.exit(1)
    finally:
        open_files.write_out()
        del left  # the names of the script, and so its files, were there until now
        if interrupted:  # somebody waits: a last look through all that the script has imported takes 1 s
            gc.freeze()


def _check_module(name: str) -> None:
    """Raises UsageError where there is no such module to run; an error of a package it is in passes."""
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            name += ".__main__"
            found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        found = None
    except ValueError:  # a relative name
        found = None
    if found is None:
        raise UsageError(f"no module {name} here, in {Path.cwd()}, nor among those that are installed")


def _group_size(group_size: int, stages: int, stage: int | None, nproc: int) -> int:
    """Processes that are one worker: a pipeline has one for each stage."""
    if stage is not None and (stages == 1 or nproc > 1):
        raise UsageError(
            f"--stage {stage} says which of --pipeline-stages this one process is: "
            + (
                "give --pipeline-stages"
                if stages == 1
                else f"with --nproc {nproc}, which starts several, leave it out"
            )
        )
    if stages > 1 and group_size not in (1, stages):
        raise UsageError(f"--group-size {group_size} with --pipeline-stages {stages}: leave --group-size out")
    return max(group_size, stages)


def _set_snapshots(
    context: typer.Context, servers: str, place: str | None, every: str | None, keep: int
) -> None:
    """Of a job without servers, for the processes that have its shards."""
    typed = getattr(context.get_parameter_source("snapshot_dir"), "name", "")
    if servers != ALONE and typed == "COMMANDLINE":  # PS_SNAPSHOT_DIR may be that of servers
        raise UsageError(
            f"--snapshot-dir is for --servers {ALONE}: servers are told theirs (ps-server --snapshot-dir)"
        )
    os.environ["PS_SNAPSHOT_KEEP"] = str(keep)
    if every is not None:
        os.environ["PS_SNAPSHOT_EVERY"] = every
    if place is not None:
        os.environ["PS_SNAPSHOT_DIR"] = place if "://" in place else str(Path(place).absolute())


def _count(servers: str, num_workers: str | None, nproc: int, group_size: int, option: str) -> str | None:
    """Workers that the job waits for; None: the launcher of a group's ranks says it.

    `option` is the one that says how many processes a worker has.
    """
    if servers == ALONE and nproc not in (1, group_size):
        raise UsageError(
            f"--nproc {nproc} with {option} {group_size} and --servers {ALONE}: without servers all "
            f"processes are one worker; leave {option} out"
        )
    if nproc > 1 and nproc % group_size:
        raise UsageError(f"--nproc {nproc} is no multiple of {option} {group_size}")
    if num_workers is None and (nproc > 1 or group_size == 1):
        return str(nproc // group_size)
    return num_workers


def _number(
    worker: int | None, nproc: int, group_size: int, modules: Sequence[str], *, fresh: bool, alone: bool
) -> int | None:
    """This worker's number. Where several processes are to run, this one starts them and ends; they go on."""
    if nproc == 1:
        return worker
    if LOCAL_RANK not in os.environ:
        ranks = [{GROUP_RANK: str(it % group_size), LOCAL_RANK: str(it)} for it in range(nproc)]
        command = AGAIN + sys.argv[1:] if fresh or not CAN_FORK else ()
        code = _run_ranks(ranks, command, modules, alone=alone)
        if code is not None:
            sys.exit(code)
    return (worker or 0) + int(os.environ[LOCAL_RANK]) // group_size


def _process_name(worker: int | None, group_size: int) -> str:
    """In a trace, where each rank of a group has a row of its own."""
    name = "worker" if worker is None else f"worker {worker}"
    return f"{name} rank {os.environ[GROUP_RANK]}" if group_size > 1 and GROUP_RANK in os.environ else name


def _run_ranks(
    ranks: Sequence[Mapping[str, str]], command: Sequence[str], modules: Sequence[str], *, alone: bool
) -> int | None:
    """See `rank_processes.run`; ranks without servers meet at a store that this process keeps."""
    if not alone or STORE in os.environ:
        return rank_processes.run(ranks, command, modules=modules)
    listening, os.environ[STORE] = own_servers.listen()
    with listening:
        keep = partial(own_servers.keep_store, listening)
        return rank_processes.run(ranks, command, modules=modules, started=keep)


def _share_cores(servers: str, processes: int, here: int = 1) -> None:
    """Has torch use as many threads as this worker has cores. OMP_NUM_THREADS, if set, stays as it is.

    Where the servers are on this host, so are the other workers: each takes its part of the cores. Two
    workers with two threads each on two cores took 178 ms for a step that takes 6 ms with one thread each,
    for OpenMP's threads spin while they wait. In a container torch takes a thread for each core of the host.
    Elsewhere the processes that this command has started (`here`) share the cores.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    threads = available_cores()
    if servers != ALONE and {it.rpartition(":")[0] for it in parse_servers(servers)} <= LOOPBACK:
        threads = max(1, threads // processes)
    elif here > 1:
        threads = max(1, threads // here)
    elif threads >= torch.get_num_threads():
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def main() -> None:
    """Runs the command; a named error becomes one line on stderr and its exit code."""
    run_command(app, "ps-worker")
