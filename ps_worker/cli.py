"""`ps-worker`: runs a training script as one worker of a job."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from ps_wire.errors import PsError, UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.metrics.options import MetricsHost, MetricsPort
from ps_wire.process import trace
from ps_wire.process.command import run as run_command
from ps_wire.process.cores import available_cores
from ps_wire.process.ranks import OWN
from ps_wire.spec import consistency as models
from ps_wire.spec import nonfinite as choices
from ps_wire.spec import wire_dtype as wire_dtypes
from ps_wire.spec.address import check_job_name, parse_servers
from ps_worker.process import open_files, rank_processes, script_errors, stopping
from ps_worker.settings import ALONE, LEASE_S, METRICS_HOST, REDUCES, parse_size

GROUP_RANK, LOCAL_RANK = OWN
LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}

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
    nproc: Annotated[
        int,
        typer.Option(envvar="PS_NPROC", min=1, help="Processes to start here: ranks of groups, or workers."),
    ] = 1,
    group_size: Annotated[
        int,
        typer.Option(envvar="PS_GROUP_SIZE", min=1, help="Processes (ranks) that are one worker together."),
    ] = 1,
    group_reduce: Annotated[
        str,
        typer.Option(
            envvar="PS_GROUP_REDUCE",
            help=f"How ranks of a group reduce their gradients, one of {', '.join(REDUCES)}.",
        ),
    ] = REDUCES[0],
) -> None:
    """Runs SCRIPT with PS_* set, so that `ps_worker.connect()` in it joins the job."""
    if servers != ALONE:
        parse_servers(servers)
    check_job_name(job)
    models.parse(consistency)
    choices.parse(nonfinite)
    carriers.parse(carrier)
    wire_dtypes.parse(wire_dtype)
    num_workers = _count(num_workers, nproc, group_size)
    _, most = parse_size(num_workers or "1", "--num-workers")
    if not module and not script.is_file():
        raise UsageError(f"{script} is not a file")
    os.environ |= {
        "PS_SERVERS": servers,
        "PS_JOB": job,
        "PS_CONSISTENCY": consistency,
        "PS_GROUP_SIZE": str(group_size),
        **({} if num_workers is None else {"PS_NUM_WORKERS": num_workers}),
        "PS_GROUP_REDUCE": group_reduce,
        "PS_LEASE": str(lease),
        "PS_NONFINITE": nonfinite,
        "PS_CARRIER": carrier,
        "PS_WIRE_DTYPE": wire_dtype,
        "PS_METRICS_HOST": metrics_host,
    }
    if metrics_port is not None:
        os.environ["PS_METRICS_PORT"] = str(metrics_port)
    for name, path in (("PS_TOKEN_FILE", token_file), ("PS_TLS_DIR", tls_dir)):
        if path is not None:
            os.environ[name] = str(path.absolute())  # the script may go to another folder
    worker = _number(worker, nproc, group_size)
    if worker is not None:
        os.environ["PS_WORKER"] = str(worker)
    _share_cores(servers, most * group_size, nproc)
    if drain_limit < 0:
        raise UsageError(f"--drain-limit must be >= 0 seconds, got {drain_limit:g}")
    stopping.install(drain_limit)
    trace.start("worker" if worker is None else f"worker {worker}")
    sys.argv = [str(script), *context.args]
    if module:
        sys.path.insert(0, str(Path.cwd()))
        _check_module(str(script))
        _run(partial(runpy.run_module, str(script), run_name="__main__", alter_sys=True))
    else:
        sys.path.insert(0, str(script.resolve().parent))
        _run(partial(runpy.run_path, str(script), run_name="__main__"))
    stopping.script_ended()


def _run(script: Callable[[], object]) -> None:
    """Runs the script; what it raises of its own is shown here, and ends the process with 1."""
    left = None
    try:
        left = script()
    except PsError as error:
        if line := script_errors.line_through(error, __file__):
            sys.stderr.write(f"{line}\n")
        raise
    except Exception as error:  # noqa: BLE001 - the script's own
        script_errors.show(error, __file__)
        sys.exit(1)
    finally:
        open_files.write_out()
        del left  # the names of the script, and so its files, were there until now


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


def _count(num_workers: str | None, nproc: int, group_size: int) -> str | None:
    """Workers that the job waits for; None: the launcher of a group's ranks says it."""
    if nproc > 1 and nproc % group_size:
        raise UsageError(f"--nproc {nproc} is no multiple of --group-size {group_size}")
    if num_workers is None and (nproc > 1 or group_size == 1):
        return str(nproc // group_size)
    return num_workers


def _number(worker: int | None, nproc: int, group_size: int) -> int | None:
    """This worker's number; where several processes are to run, it runs them, and ends."""
    if nproc == 1:
        return worker
    if LOCAL_RANK not in os.environ:
        sys.exit(_run_ranks(nproc, group_size))
    return (worker or 0) + int(os.environ[LOCAL_RANK]) // group_size


def _run_ranks(nproc: int, group_size: int) -> int:
    """This command again in so many processes; its exit code."""
    command = [sys.executable, "-c", "from ps_worker.cli import main; main()", *sys.argv[1:]]
    ranks = [{GROUP_RANK: str(it % group_size), LOCAL_RANK: str(it)} for it in range(nproc)]
    return rank_processes.run(command, ranks)


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
