"""`ps-server`: one shard of the service."""

from __future__ import annotations

import asyncio
import gc
import re
from pathlib import Path
from typing import Annotated

import typer

from ps_server.coordinator.snapshots.durability import Durability
from ps_server.coordinator.snapshots.policy import SnapshotPolicy, policy_of, state_dir_in
from ps_server.process.memory_share import default_limit_bytes
from ps_wire.access.access import read
from ps_wire.errors import ConfigurationRefused, ShardMismatch, UsageError
from ps_wire.metrics.options import MetricsHost, MetricsPort
from ps_wire.process import trace
from ps_wire.process.command import run as run_command
from ps_wire.process.log_level import LogLevel
from ps_wire.process.log_option import LogLevelOption
from ps_wire.spec.address import is_loopback, parse_address, parse_servers
from ps_wire.spec.choice import choose

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@app.command()
def serve(
    shard: Annotated[
        str, typer.Option(envvar="PS_SHARD", metavar="K/N", help="This shard's number, of how many: 0/2.")
    ] = "0/1",
    port: Annotated[
        int, typer.Option(envvar="PS_PORT", min=0, max=65535, help="Control and gRPC data; 0: any free one.")
    ] = 50051,
    data_port: Annotated[
        int, typer.Option(envvar="PS_DATA_PORT", min=0, max=65535, help="Data over TCP; 0: any free one.")
    ] = 0,
    health_port: Annotated[
        int | None,
        typer.Option(
            envvar="PS_HEALTH_PORT", min=1, max=65535, help="Health alone, without TLS, for probes."
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    host: Annotated[str, typer.Option(envvar="PS_HOST", help="Address to listen on.")] = "127.0.0.1",
    coordinator: Annotated[
        str | None,
        typer.Option(
            envvar="PS_COORDINATOR",
            metavar="HOST:PORT",
            help="Where shard 0 listens; needed by the others. Default: the first of PS_SERVERS.",
        ),
    ] = None,
    servers: Annotated[str | None, typer.Option(envvar="PS_SERVERS", hidden=True)] = None,
    advertise: Annotated[
        str | None, typer.Option(envvar="PS_ADVERTISE", help="Host under which others reach this shard.")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            envvar="PS_MEMORY_LIMIT",
            metavar="BYTES|none",
            help="For the tables of all jobs (weights, optimizer state, under bsp a slice per worker): 8G, "
            "500M, 123; 0 or none: no limit. Default: 80 % of the machine's memory, or of the cgroup's.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(envvar="PS_DEVICE", help="On which the optimizers run and have their state: cpu, cuda."),
    ] = "cpu",
    snapshot_dir: Annotated[
        str | None,
        typer.Option(
            envvar="PS_SNAPSHOT_DIR",
            metavar="URL",
            help="Where jobs' snapshots are, the same for all shards: a folder, or s3://..., gs://...",
        ),
    ] = None,
    snapshot_every: Annotated[
        str | None,
        typer.Option(
            envvar="PS_SNAPSHOT_EVERY", metavar="500steps|5m", help="How often shard 0 has them taken."
        ),
    ] = None,
    snapshot_keep: Annotated[
        int, typer.Option(envvar="PS_SNAPSHOT_KEEP", min=1, help="Of each job, the last ones.")
    ] = 3,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="PS_TOKEN_FILE", help="Holds the token that every call must carry."),
    ] = None,
    tls_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PS_TLS_DIR",
            help="Folder with ca.crt, tls.crt and tls.key: TLS, and whoever connects shows a certificate.",
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PS_STATE_DIR",
            help="Local folder of this shard alone, for generations and what it hands to the process after "
            "it when it is stopped. Default: one in --snapshot-dir, where that is local.",
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            envvar="PS_DURABILITY",
            metavar="none|snapshot",
            help="When a shard is lost: its jobs end, or all shards go back to their snapshots together, "
            "which is the default with --snapshot-dir.",
        ),
    ] = None,
    stopped_code: Annotated[
        int,
        typer.Option(
            envvar="PS_STOPPED_CODE",
            min=0,
            max=125,
            help="Exit code once SIGTERM has stopped it in order. 75 in a Job of Kubernetes, for which a pod "
            "that ends with 0 is done: the shard would stay away.",
        ),
    ] = 0,
    insecure: Annotated[
        bool,
        typer.Option(
            envvar="PS_INSECURE", help="Allow another --host than loopback with neither: anybody can join."
        ),
    ] = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Starts one shard of the parameter server; shard 0 is also the coordinator."""
    from ps_server import log  # noqa: PLC0415 - torch and grpc are slow to import: not for --help
    from ps_server.process.server import Server, ServerOptions  # noqa: PLC0415
    from ps_server.shard.optimizer import piece_optimizer  # noqa: PLC0415
    from ps_wire.process import kernels, late_dynamo  # noqa: PLC0415

    index, num_shards = parse_shard(shard)
    if snapshot_every is not None and snapshot_dir is None:
        raise UsageError("--snapshot-every needs --snapshot-dir")
    guarded = token_file is not None or tls_dir is not None
    check_host(host, guarded=guarded, insecure=insecure)
    if metrics_port is not None:
        check_metrics_host(metrics_host, guarded=guarded, insecure=insecure)
    options = ServerOptions(
        shard=index,
        num_shards=num_shards,
        host=host,
        port=port,
        coordinator=parse_coordinator(index, num_shards, coordinator, servers),
        advertise=advertise or host,
        memory_limit_bytes=parse_memory_limit(memory_limit),
        device=device,
        data_port=data_port,
        health_port=health_port,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        snapshot_dir=snapshot_dir,
        snapshots=policy_of(snapshot_every, snapshot_keep),
        state_dir=find_state_dir(state_dir, snapshot_dir, index),
        durability=parse_durability(durability, snapshot_dir),
        stopped_code=stopped_code,
        access=read(token_file=token_file, tls_dir=tls_dir, serves=True, complain=log.logger.warning),
    )
    log.set_up(index, num_shards, level=log_level.number)
    for gap in gaps(index, options.durability, options.snapshots, options.state_dir):
        log.logger.warning(gap)
    log.logger.info("arithmetic: %s", kernels.FOUND)
    if options.memory_limit_bytes is not None:
        log.logger.info(
            "tables of all jobs take at most %d bytes (--memory-limit)", options.memory_limit_bytes
        )
    trace.start(f"server {index}")
    late_dynamo.install()
    piece_optimizer.warm_up()
    gc.freeze()  # else a full collection, as a large table brings it about, looks through all of torch: 0.2 s
    raise SystemExit(asyncio.run(Server(options).run()))


def parse_shard(text: str) -> tuple[int, int]:
    """`K/N` as numbers.

    Raises:
        UsageError: it is not of that form, or K is not in 0..N-1.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not int(match[1]) < int(match[2]) <= 4096:
        raise UsageError(f"--shard {text!r}: write K/N with K in 0..N-1, such as 0/2")
    return int(match[1]), int(match[2])


def check_host(host: str, *, guarded: bool, insecure: bool) -> None:
    """Whether this shard may listen there.

    Args:
        host: as typed.
        guarded: there are certificates or a token.
        insecure: a person has said that anybody may join.

    Raises:
        ConfigurationRefused: it is no address of this host alone, and anybody could join.
    """
    if guarded or insecure or is_loopback(host):
        return
    raise ConfigurationRefused(
        f"--host {host} lets anybody on that network join, read weights and change them: set --tls-dir "
        "(certificates on both ends) or --token-file (a shared token), or add --insecure if that is meant"
    )


def check_metrics_host(host: str, *, guarded: bool, insecure: bool) -> None:
    """Whether this shard may show metrics there; as `check_host`.

    Raises:
        ConfigurationRefused: it is no address of this host alone, and anybody could read them.
    """
    if not (guarded or insecure or is_loopback(host)):
        raise ConfigurationRefused(
            f"--metrics-host {host} lets anybody on that network read names and figures of jobs: set "
            "--tls-dir or --token-file, which the scrape must then show, too, or add --insecure if that is "
            "meant"
        )


def parse_memory_limit(text: str | None) -> int | None:
    """Bytes for the tables of all jobs; None: no limit.

    Raises:
        UsageError: it is neither bytes nor `none`.
    """
    if text is None:
        return default_limit_bytes()
    return None if text.strip() in ("0", "none") else parse_bytes(text)


def parse_bytes(text: str) -> int:
    """A number of bytes, with an optional K, M, G or T (powers of 1024).

    Raises:
        UsageError: it is anything else.
    """
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--memory-limit {text!r}: write bytes, such as 500M or 8G, or none")
    return int(match[1]) * _UNITS[match[2]]


def find_state_dir(given: Path | None, snapshot_dir: str | None, shard: int) -> Path | None:
    """Where this shard keeps its own state; None: nowhere."""
    if given is not None:
        return given
    return None if snapshot_dir is None else state_dir_in(snapshot_dir, shard)


def parse_durability(text: str | None, snapshot_dir: str | None) -> Durability:
    """Parses what becomes of jobs when a shard is lost.

    Raises:
        UsageError: it is none of these, or there is nowhere to take snapshots.
    """
    if text is None:
        return Durability.NONE if snapshot_dir is None else Durability.SNAPSHOT
    durability = choose(Durability, text, "durability")
    if durability is Durability.SNAPSHOT and snapshot_dir is None:
        raise UsageError(
            "--durability snapshot needs --snapshot-dir, and --snapshot-every or snapshots on demand"
        )
    return durability


def gaps(shard: int, durability: Durability, policy: SnapshotPolicy, state_dir: Path | None) -> list[str]:
    """Names what `--durability snapshot` does not protect from, with these options; shard 0 says it."""
    if shard > 0 or durability is not Durability.SNAPSHOT:
        return []
    found = []
    if not policy.every_steps and not policy.every_s:
        found.append(
            "no snapshot is taken but on demand: a job of which nobody takes one is lost with any server, "
            "and others go back to their last one, however old; add --snapshot-every, such as 5m"
        )
    if state_dir is None:
        found.append(
            "without --state-dir this server knows nothing of a process before it: if it dies, jobs do not "
            "go on from their snapshots by themselves, and if it is stopped, it hands nothing on; add "
            "--state-dir, a local folder that its next process finds again"
        )
    return found


def parse_coordinator(
    index: int, num_shards: int, coordinator: str | None, servers: str | None
) -> str | None:
    """Where shard 0 is; None on shard 0.

    Raises:
        UsageError: a shard above 0 does not know it.
        ShardMismatch: it is in a list of another number of servers.
    """
    if index == 0:
        return None
    if coordinator is not None:
        return parse_address(coordinator)
    if servers is not None:
        listed = parse_servers(servers)
        if len(listed) != num_shards:
            raise ShardMismatch(
                f"--shard (PS_SHARD) says that there are {num_shards} servers, and PS_SERVERS lists "
                f"{len(listed)}: give both the same number"
            )
        return listed[0]
    raise UsageError(f"shard {index} needs --coordinator HOST:PORT, the address of shard 0")


def main() -> None:
    """Runs the command; a named error becomes one line on stderr and its exit code."""
    run_command(app, "ps-server")
