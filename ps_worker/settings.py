"""The settings of a worker: keyword arguments of `connect`, else `PS_*` environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ps_wire.errors import UsageError
from ps_wire.frames import carrier
from ps_wire.process import ranks
from ps_wire.process.ranks import Ranks
from ps_wire.snapshot.snapshot_options import KEEP, NO_PLACE, SnapshotOptions
from ps_wire.spec import consistency, nonfinite, stragglers, wire_dtype
from ps_wire.spec.address import check_job_name, is_loopback, parse_servers
from ps_wire.spec.stragglers import StragglerProfile
from ps_wire.spec.wire_dtype import WireDtype

Parsed = TypeVar("Parsed")

ROLES = ("worker", "reader")
ALONE = "none"  # instead of addresses: a server inside this process
STORE = "PS_STORE"  # HOST:PORT of the store where ranks without servers meet
CONNECT_LIMIT_S = 30.0
START_LIMIT_S = 600.0
RETRY_LIMIT_S = 30.0
WAIT_S = 0.0
METRICS_HOST = "127.0.0.1"
NO_STRAGGLERS = StragglerProfile()
REDUCES = ("auto", "shm", "gloo", "hosts", "nccl")  # ways in which ranks of a group reduce their gradients
ON = ("1", "true", "yes", "on")  # what a switch may be set to, as the command's own
LEASE_S = 10.0  # five heartbeats; few calls hold Python's interpreter for so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked settings of one worker.

    Attributes:
        servers: addresses in shard order; none: alone, with a server inside the process.
        job: name of the job.
        consistency: its model.
        num_workers: that the job waits for; of a range the largest number.
        min_workers: of a range, that the job starts with; 0: no range, it starts with all.
        worker: this one's number; None lets the service give one.
        nonfinite: what the job does with gradients that hold NaN or infinity.
        connect_limit_s: how long a server may take to answer at the start.
        start_limit_s: how long the job may take to start.
        retry_limit_s: how long a broken data connection is tried again.
        carrier: of the data; None for the best one that reaches each server.
        role: "worker", or "reader".
        lease_s: without a sign of life for so long, the worker is evicted.
        token_file: holds the service's token or the job's; None: calls carry none.
        tls_dir: folder of the certificates; None: connections are plain.
        wire_dtype: in which float32 gradients and weights travel.
        wait_s: how long a reader waits for its job to start.
        record: folder for the record of this worker's steps; None: nothing is recorded.
        log_dir: folder of runs for TensorBoard, where the job's scalars go; None: they do not.
        stragglers: when this worker is slow on purpose.
        ranks: the place of this process in its group.
        group_reduce: how ranks of a group reduce their gradients.
        insecure_group: its ranks may be on several hosts, with certificates too.
        pipeline: the ranks of its group are the stages of a pipeline.
        ddp: folder in which the workers of the baseline DistributedDataParallel meet, without servers; None:
            this is no baseline.
        snapshots: of the job of a group without servers.
        metrics_port: where it shows metrics; 0 lets the system choose, None: nowhere.
        metrics_host: to bind for them.
    """

    servers: tuple[str, ...]
    job: str
    consistency: consistency.Consistency
    num_workers: int
    worker: int | None
    nonfinite: nonfinite.NonFinite = nonfinite.NonFinite.ERROR
    connect_limit_s: float = CONNECT_LIMIT_S
    start_limit_s: float = START_LIMIT_S
    retry_limit_s: float = RETRY_LIMIT_S
    carrier: carrier.Carrier | None = None
    role: str = "worker"
    min_workers: int = 0
    lease_s: float = LEASE_S
    token_file: Path | None = None
    tls_dir: Path | None = None
    wire_dtype: WireDtype = WireDtype.FP32
    wait_s: float = WAIT_S
    record: Path | None = None
    log_dir: Path | None = None
    stragglers: StragglerProfile = NO_STRAGGLERS
    ranks: Ranks = ranks.ALONE
    group_reduce: str = REDUCES[0]
    insecure_group: bool = False
    pipeline: bool = False
    ddp: Path | None = None
    snapshots: SnapshotOptions = NO_PLACE
    metrics_port: int | None = None
    metrics_host: str = METRICS_HOST

    @property
    def shares(self) -> bool:
        """Whether gradients and weights may lie in memory that servers map: they have the table's dtype."""
        return self.wire_dtype is WireDtype.FP32

    @property
    def data_ranks(self) -> Ranks:
        """The ranks that share out each batch: all stages of a pipeline draw whole ones."""
        return ranks.ALONE if self.pipeline else self.ranks

    @property
    def alike(self) -> dict[str, str]:
        """The settings that all ranks of a group have to have alike, by option."""
        return {
            "--pipeline-stages": str(self.ranks.size if self.pipeline else 1),
            "--group-reduce": self.group_reduce,
            "--consistency": str(self.consistency),
            "--num-workers": f"{self.min_workers}:{self.num_workers}".removeprefix("0:"),
            "--nonfinite": self.nonfinite.value,
            "--wire-dtype": self.wire_dtype.value,
            "--lease": f"{self.lease_s:g}",
        }

    @property
    def one_host(self) -> str:
        """Why the ranks of this worker may not be on several hosts; "": they may."""
        if self.tls_dir is None or self.insecure_group:
            return ""
        return (
            "with --tls-dir nothing leaves a host unencrypted, and what ranks send each other is not "
            "encrypted; --insecure-group (PS_INSECURE_GROUP) permits it"
        )


def read(environment: Mapping[str, str] | None = None, **given: object) -> Settings:
    """Settings from `given`, else from `environment` (default: the process's).

    Raises:
        UsageError: one is missing or makes no sense; its variable is named.
    """
    source = os.environ if environment is None else environment
    values = {name: str(value) for name, value in given.items() if value is not None}

    def value(name: str, default: str) -> str:
        return values.get(name) or source.get(f"PS_{name.upper()}") or default

    worker = values.get("worker") or source.get("PS_WORKER")
    number = _whole("worker", worker, least=0) if worker else None
    servers = value("servers", ALONE)
    place = _place(source, value, values, number)
    if place.ranks.together and servers.strip() == ALONE and place.worker is None:
        place = replace(place, worker=0)
    count = "1" if place.num_workers is None else str(place.num_workers)
    least, most = parse_size(value("num_workers", count))
    made = Settings(
        servers=() if servers.strip() == ALONE else _named("servers", parse_servers, servers),
        job=_named("job", check_job_name, value("job", "default")),
        consistency=_named("consistency", consistency.parse, value("consistency", "bsp")),
        num_workers=most,
        min_workers=least,
        worker=0
        if place.worker is None and place.ranks.together and servers.strip() == ALONE
        else place.worker,
        nonfinite=_named("nonfinite", nonfinite.parse, value("nonfinite", "error")),
        connect_limit_s=_seconds("connect_limit", value("connect_limit", str(CONNECT_LIMIT_S))),
        start_limit_s=_seconds("start_limit", value("start_limit", str(START_LIMIT_S))),
        carrier=_named("carrier", carrier.parse, value("carrier", carrier.AUTO)),
        retry_limit_s=_seconds("retry_limit", value("retry_limit", str(RETRY_LIMIT_S))),
        role=value("role", ROLES[0]),
        lease_s=_seconds("lease", value("lease", str(LEASE_S))),
        wait_s=_seconds("wait", value("wait", str(WAIT_S)), zero=True),
        token_file=_path(value("token_file", "")),
        tls_dir=_path(value("tls_dir", "")),
        wire_dtype=_named("wire_dtype", wire_dtype.parse, value("wire_dtype", WireDtype.FP32)),
        record=_path(value("record", "")),
        log_dir=_path(value("log_dir", "")),
        stragglers=_named("straggler", stragglers.parse, value("straggler", "none")),
        ranks=place.ranks,
        group_reduce=value("group_reduce", REDUCES[0]),
        insecure_group=value("insecure_group", "").lower() in ON,
        pipeline=place.ranks.together and _stages(value) > 1,
        ddp=_path(value("ddp", "")),
        snapshots=SnapshotOptions(
            place=value("snapshot_dir", "") or None,
            every=value("snapshot_every", "") or None,
            keep=_whole("snapshot_keep", value("snapshot_keep", str(KEEP)), least=1),
        ),
        metrics_port=_port("metrics_port", value("metrics_port", "")),
        metrics_host=value("metrics_host", METRICS_HOST),
    )
    if made.role not in ROLES:
        raise UsageError(f"role (PS_ROLE) is one of {', '.join(ROLES)}, got {made.role!r}")
    if made.role == "worker" and made.carrier is carrier.Carrier.SHM and not made.shares:
        raise UsageError(
            f"wire_dtype (PS_WIRE_DTYPE) is {made.wire_dtype}, and over carrier shm (PS_CARRIER) nothing "
            "travels that it could make smaller: use carrier uds, or wire_dtype fp32"
        )
    if made.ranks.together:
        _check_group(made)
    _check_metrics_host(made, insecure=bool(source.get("PS_INSECURE")))
    if made.ddp is not None:
        _check_baseline(made)
    elif not made.servers:
        _check_alone(made, has_store=bool(source.get(STORE)))
        if not (made.ranks.together or values.get("servers") or source.get("PS_SERVERS")):
            _check_one_process(source.get("WORLD_SIZE", ""))
    return made


def _place(
    source: Mapping[str, str],
    value: Callable[[str, str], str],
    given: Mapping[str, str],
    worker: int | None,
) -> ranks.RankPlace:
    """Which rank of which worker this process is; readers are in no group."""
    size, stages = _whole("group_size", value("group_size", "1"), least=1), _stages(value)
    if size > 1 and stages not in (1, size):
        raise UsageError(
            f"group_size (PS_GROUP_SIZE) is {size}, and pipeline_stages (PS_PIPELINE_STAGES) {stages}: each "
            "stage of a pipeline is one rank; leave group_size out"
        )
    size = max(size, stages)
    stage = value("stage", "") if stages > 1 else ""
    if size == 1 or value("role", ROLES[0]) != ROLES[0]:
        return ranks.RankPlace(ranks=ranks.ALONE, worker=worker)
    if stage and worker is None:
        raise UsageError(f"stage (PS_STAGE) is {stage}, and worker (PS_WORKER) does not say of which worker")
    if stage and _whole("stage", stage, least=0) >= stages:
        raise UsageError(f"stage (PS_STAGE) is {stage}: {stages} stages are numbered from 0 to {stages - 1}")
    name, text = ("stage", stage) if stage else ("group_rank", given.get("group_rank", ""))
    return ranks.find(source, size, worker, _whole(name, text, least=0) if text else None)


def _stages(value: Callable[[str, str], str]) -> int:
    return _whole("pipeline_stages", value("pipeline_stages", "1"), least=1)


def _check_group(made: Settings) -> None:
    """Refuses what is not built for groups of ranks."""
    size = made.ranks.size
    if made.group_reduce not in REDUCES:
        raise UsageError(
            f"group_reduce (PS_GROUP_REDUCE) is one of {', '.join(REDUCES)}, got {made.group_reduce!r}"
        )
    if made.pipeline and not made.servers:
        raise UsageError(
            f"pipeline_stages (PS_PIPELINE_STAGES) is {size}, and servers is not set: it needs servers; "
            "pass --servers to ps-worker, or set PS_SERVERS"
        )
    if made.worker is None or made.worker >= made.num_workers:
        raise UsageError(
            f"group_size (PS_GROUP_SIZE) is {size}, and worker (PS_WORKER) is {made.worker}: the ranks of a "
            f"group meet under its number, from 0 to {made.num_workers - 1}; give --worker, or check "
            "--num-workers, which counts groups"
        )
    if getattr(made.consistency, "backup", 0):
        raise UsageError(f"{made.consistency} with group_size (PS_GROUP_SIZE) {size}: groups have no backup")


def _check_metrics_host(made: Settings, *, insecure: bool) -> None:
    guarded = made.token_file is not None or made.tls_dir is not None
    if made.metrics_port is None or guarded or insecure or is_loopback(made.metrics_host):
        return
    raise UsageError(
        f"metrics_host (PS_METRICS_HOST) {made.metrics_host} lets anybody on that network read names and "
        "figures: set a token file (PS_TOKEN_FILE) or certificates (PS_TLS_DIR), which the scrape must then "
        "show, too, or PS_INSECURE=1 if that is meant"
    )


def _check_baseline(made: Settings) -> None:
    """Refuses what a baseline without servers does not have."""
    if made.servers:
        raise UsageError(
            "PS_DDP names the folder of a baseline without servers, and servers (PS_SERVERS) is set, too: "
            f"take one of them away, or set PS_SERVERS={ALONE}"
        )
    if made.ranks.together:
        raise UsageError(f"PS_DDP with group_size (PS_GROUP_SIZE) {made.ranks.size}: leave group_size out")
    if made.role == "worker" and (made.worker is None or made.worker >= made.num_workers):
        raise UsageError(
            f"worker (PS_WORKER) is {made.worker}: the workers of a baseline (PS_DDP) meet under their "
            f"numbers, from 0 to {made.num_workers - 1}"
        )


def _check_alone(made: Settings, *, has_store: bool) -> None:
    """Refuses what needs other processes."""
    if made.role == "reader" and not has_store:
        raise UsageError("a reader needs servers to read from: set PS_SERVERS, or give servers to connect()")
    _check_snapshots(made)
    for name, number in (("num_workers", made.num_workers - 1), ("worker", made.worker or 0)):
        if number > 0:
            raise UsageError(
                f"{name} (PS_{name.upper()}) is {getattr(made, name)}, which needs servers, and servers is "
                "not set: pass --servers to ps-worker, set PS_SERVERS, or give it to connect(); "
                f"without servers one worker runs alone: leave {name} out"
            )


def _check_snapshots(made: Settings) -> None:
    asked = made.snapshots
    if asked.place is not None and made.role == "worker" and not made.ranks.together:
        raise UsageError(
            "snapshot_dir (PS_SNAPSHOT_DIR) is set, and this worker is one process without servers, which "
            "takes no snapshots: start ps-server with --snapshot-dir, or several ranks with --nproc"
        )
    if asked.place is None and asked.every is not None and made.ranks.together:
        raise UsageError("snapshot_every (PS_SNAPSHOT_EVERY) needs snapshot_dir (PS_SNAPSHOT_DIR)")


def _check_one_process(world_size: str) -> None:
    """Refuses to run alone beside others that a launcher has started: each would train a model of its own."""
    if world_size.isascii() and world_size.isdecimal() and len(world_size) < 10 and int(world_size) > 1:
        raise UsageError(
            f"WORLD_SIZE says that torchrun, or another launcher, has started {int(world_size)} processes, "
            f"and servers (PS_SERVERS) is not set: {int(world_size)} models would be trained, each alone. "
            f"Start ps-server and set PS_SERVERS and PS_NUM_WORKERS={int(world_size)}; or, where each is to "
            f"train alone, set PS_SERVERS={ALONE}"
        )


def _named(name: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parses a setting with `parse`; its error also says which setting it was."""
    try:
        return parse(text)
    except UsageError as error:
        raise type(error)(f"{error.message} (PS_{name.upper()})", **error.facts) from None


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _whole(name: str, text: str, *, least: int) -> int:
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise UsageError(f"{name} (PS_{name.upper()}) must be a whole number, got {text!r}")
    if int(text) < least:
        raise UsageError(f"{name} (PS_{name.upper()}) must be >= {least}, got {int(text)}")
    return int(text)


def _port(name: str, text: str) -> int | None:
    if not text:
        return None
    number = _whole(name, text, least=0)
    if number > 65535:
        raise UsageError(f"{name} (PS_{name.upper()}) must be <= 65535, got {number}")
    return number


def parse_size(text: str, option: str = "num_workers (PS_NUM_WORKERS)") -> tuple[int, int]:
    """Least (0: no range) and most workers of `4` or `2:8`.

    Raises:
        UsageError: it is neither; `option` says where it came from.
    """
    match = re.fullmatch(r"(?:(\d{1,9}):)?(-?\d{1,9})", text.strip())
    if match is None:
        raise UsageError(f"{option} must be a whole number, got {text!r}; or a range, such as 2:8")
    least, most = int(match[1] or 1), int(match[2])
    if least < 1 or most < 1:
        raise UsageError(f"{option} must be >= 1, got {text.strip()}")
    if most < least:
        raise UsageError(f"{option}: the least of a range comes first, as in 2:8, got {text.strip()}")
    return 0 if match[1] is None else least, most


def _seconds(name: str, text: str, *, zero: bool = False) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number < 1e9 and not (zero and number == 0):
        least = ">= 0" if zero else "> 0"
        raise UsageError(f"{name} (PS_{name.upper()}) must be seconds {least}, got {text!r}")
    return number
