"""What the project must reach, as data: each row says what is measured, how, and the most that it may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

SLICES = 2  # of gradients that a server holds: one per worker

Figures: TypeAlias = Mapping[str, Any]


class Runs(Protocol):
    """Runs of the benchmarks; the same one is made once."""

    def roundtrip(self, **options: str) -> Figures:
        """The JSON of `roundtrip.py`; options without dashes, as `num_workers="4"`."""
        ...

    def step(self, **options: str) -> Figures:
        """The JSON of `ps-lab bench step`."""
        ...

    def footprint(self, **options: str) -> Figures:
        """The JSON of `footprint.py`."""
        ...

    def optimizer_cost(self, **options: str) -> Figures:
        """The JSON of `optimizer_cost.py`."""
        ...

    def tls_dir(self) -> str:
        """A folder of certificates for this host."""
        ...

    def latency(self) -> Figures:
        """The JSON of `control_latency.py`."""
        ...

    def worker_cost(self) -> Figures:
        """The JSON of `worker_cost.py`."""
        ...

    def snapshot(self) -> Figures:
        """The JSON of `manifest.py`."""
        ...

    def fault_times(self) -> Figures:
        """The JSON of `fault_times.py`."""
        ...

    def group_step(self, **options: str) -> Figures:
        """The JSON of `group_step.py`."""
        ...

    def pipeline(self, **options: str) -> Figures:
        """The JSON of `pipeline.py`."""
        ...

    def heartbeats(self) -> Figures:
        """The JSON of `heartbeats.py`."""
        ...

    def simulate(self, **options: str) -> Figures:
        """The JSON of `simulate.py`."""
        ...

    def instrument(self, **options: str) -> Figures:
        """The JSON of `instrument.py`."""
        ...

    def token_cost(self) -> Figures:
        """The JSON of `token_cost.py`."""
        ...

    def clock_cost(self) -> Figures:
        """The JSON of `clock_cost.py`."""
        ...

    def start_cost(self) -> Figures:
        """The JSON of `start_cost.py`."""
        ...

    def many_workers(self) -> Figures:
        """The JSON of `many_workers.py`."""
        ...

    def idle_server_bytes(self) -> int:
        """Resident memory of a server without a job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One target.

    Attributes:
        what: for people.
        target: the value may be this, or less; None: it is only reported.
        value: what is compared with it, not a number where noise hides it.
        needs: what has to be there for it: "mxnet", "tensorflow" or "tls"; None: nothing.
        unit: of value and target.
    """

    what: str
    target: float | None
    value: Callable[[Runs], float]
    needs: str | None = None
    unit: str = ""


def _share(above: float, below: float) -> float:
    """A quotient of times that are differences: not a number where noise makes one of them negative."""
    return above / below if above > 0 and below > 0 else math.nan


def _versus(peer: str, **options: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.roundtrip(versus=peer, **options)["peers"][peer]["ratio"])


def _limit(carrier: str, **options: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.roundtrip(versus="gloo", carrier=carrier, **options)["limit"]["ratio"])


def _one_pass(**options: str) -> Callable[[Runs], float]:
    def value(runs: Runs) -> float:
        found = runs.roundtrip(versus="gloo", carrier="shm", **options)["one_pass"]
        return math.nan if found is None else float(found["ratio"])

    return value


def _gpt2(carrier: str, peer: str) -> Callable[[Runs], float]:
    gpt2 = _versus(peer, carrier=carrier, model="gpt2")
    resnet50 = _versus(peer, carrier=carrier)
    return lambda runs: gpt2(runs) / resnet50(runs)


def _adam(runs: Runs) -> float:
    ratio = runs.optimizer_cost(carrier="shm", optimizer="adam")["ratio"]
    return math.nan if ratio is None else float(ratio)


def _beyond(carrier: str, **options: str) -> Callable[[Runs], float]:
    def value(runs: Runs) -> float:
        figures = runs.step(carrier=carrier, **options)
        return _share(*(float(figures[party]["beyond_compute_s"]) for party in ("project", "ddp")))

    return value


def _hosts(model: str = "gpt", **options: str) -> Callable[[Runs], float]:
    """Each host is a network namespace; where there can be none, the run says so."""
    four = dict.fromkeys(("hosts", "num_workers", "num_servers"), "4")
    small = {"bucket_mb": "5", "ddp_bucket_mb": "5"}  # where links are the limit: docs/performance.md
    return _beyond("tcp", **four, **small, link_gbps="1", model=model, batch_size="4", **options)


def _small_tensors(runs: Runs) -> float:
    whole, split = runs.step(carrier="auto"), runs.step(carrier="auto", split="10")
    return _share(*(float(figures["project"]["beyond_compute_s"]) for figures in (split, whole)))


def _two_servers(runs: Runs) -> float:
    one = runs.roundtrip(versus="gloo", carrier="tcp")
    two = runs.roundtrip(versus="gloo", carrier="tcp", num_servers="2")
    # Against gloo, which does not depend on servers, for the two are different runs.
    return float(two["peers"]["gloo"]["ratio"] / one["peers"]["gloo"]["ratio"])


def _tls(runs: Runs) -> Figures:
    return runs.roundtrip(versus="gloo", carrier="tcp", tls_dir=runs.tls_dir())


def _tls_to_plain(runs: Runs) -> float:
    plain = runs.roundtrip(versus="gloo", carrier="tcp")
    return float(_tls(runs)["peers"]["gloo"]["ratio"] / plain["peers"]["gloo"]["ratio"])  # as for two servers


def _memory(slices: int, **options: str) -> Callable[[Runs], float]:
    """What the servers' peak adds to idle ones, less what workers have lent, over what they may hold."""

    def value(runs: Runs) -> float:
        figures = runs.roundtrip(versus="gloo", **options)
        own = figures["server_peak_rss_bytes"] - figures["server_borrowed_bytes"]
        may = figures["server_state_bytes"] + slices * figures["bytes"]
        return float((own - runs.idle_server_bytes()) / may)

    return value


def _pss_gib(runs: Runs) -> float:
    figures = runs.footprint(carrier="shm", model="gpt2-xl", num_workers="1", rounds="2")
    return float(figures["finish_pss_bytes"] / 2**30)


def _four_workers(runs: Runs) -> Figures:
    return runs.footprint(
        carrier="shm", model="gpt2", num_workers="4", optimizer="adam", versus="gloo", rounds="2"
    )


def _pss_ratio(runs: Runs) -> float:
    pss = _four_workers(runs)["pss_bytes"]
    return float(pss["project"] / pss["gloo"])


def _finish_pss_ratio(runs: Runs) -> float:
    figures = _four_workers(runs)
    return float(figures["finish_pss_bytes"] / figures["pss_bytes"]["gloo"])


def _group_beyond(what: str, above: str, below: str) -> Callable[[Runs], float]:
    def value(runs: Runs) -> float:
        found = runs.group_step(what=what)["beyond_s"]
        return _share(float(found[above]), float(found[below]))

    return value


def _pipeline(key: str, **options: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.pipeline(**options)[key])


def _rounds(key: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.footprint(model="dlrm-dense", rounds="2000", versus="gloo")[key])


def _versus_row(what: str, target: float, peer: str, **options: str) -> Row:
    needs = peer if peer in ("mxnet", "tensorflow") else None
    return Row(what=what, target=target, value=_versus(peer, **options), needs=needs)


def _row(what: str, target: float | None, value: Callable[[Runs], float], unit: str = "") -> Row:
    return Row(what=what, target=target, value=value, unit=unit)


# Round trips are of resnet50, bsp, SGD, 1 server, 2 workers, where a row does not say otherwise.
ROWS: tuple[Row, ...] = (
    _versus_row("shm, against gloo", 0.15, "gloo", carrier="shm"),
    _versus_row("shm, 4 workers, against gloo with 4 ranks", 0.11, "gloo", carrier="shm", num_workers="4"),
    _versus_row("shm, gpt2, against gloo", 0.12, "gloo", carrier="shm", model="gpt2"),
    _versus_row("shm, ssp:3, against gloo", 0.35, "gloo", carrier="shm", consistency="ssp:3"),
    _versus_row("shm, asp, against gloo", 0.35, "gloo", carrier="shm", consistency="asp"),
    _row("shm, against one pass over the memory", 1.4, _one_pass()),
    _row("shm, Adam, against one pass over the memory", 1.4, _one_pass(optimizer="adam")),
    _row("shm, AdamW, against one pass over the memory", 1.4, _one_pass(optimizer="adamw")),
    _versus_row(
        "shm, 20,000 small tensors, against gloo", 0.35, "gloo", carrier="shm", model="small-tensors"
    ),
    _row("tcp, 20,000 small tensors, against the machine's limit", 1.2, _limit("tcp", model="small-tensors")),
    _versus_row("uds, against gloo", 0.85, "gloo", carrier="uds"),
    _versus_row("tcp, against torch RPC over TCP", 0.8, "torch-rpc", carrier="tcp"),
    _versus_row("tcp, against MXNet dist_sync", 0.5, "mxnet", carrier="tcp"),
    _versus_row("tcp, asp, against TensorFlow", 0.6, "tensorflow", carrier="tcp", consistency="asp"),
    _versus_row("grpc, against MXNet dist_sync", 0.8, "mxnet", carrier="grpc"),
    _row("a step beyond compute, 10 times as many tensors / as many", 1.5, _small_tensors),
    _row("gpt2 against gloo / resnet50 against gloo, shm", 1.15, _gpt2("shm", "gloo")),
    _row("gpt2 against gloo / resnet50 against gloo, uds", 1.15, _gpt2("uds", "gloo")),
    _row("gpt2 against torch RPC / resnet50 against it, tcp", 1.15, _gpt2("tcp", "torch-rpc")),
    _row("shm: what Adam adds / its kernel alone", 1.2, _adam),
    _row("a step beyond compute / DDP's, shm, batch 64", 0.2, _beyond("shm")),
    _row("a step beyond compute / DDP's, shm, batch 16", 0.2, _beyond("shm", batch_size="16")),
    _row("a step beyond compute / DDP's, tcp, batch 64", 1.0, _beyond("tcp")),
    _row("a step beyond compute / DDP's, tcp, batch 16", 1.0, _beyond("tcp", batch_size="16")),
    _row("gpt2-xl, 1 worker, shm: PSS of all processes", 20, _pss_gib, "GiB"),
    _row("shm, against the machine's limit", 1.4, _limit("shm")),
    _row("uds, against the machine's limit", 1.3, _limit("uds")),
    _row("tcp, against the machine's limit", 1.3, _limit("tcp")),
    _row("tcp, 2 servers / 1 server", 1.05, _two_servers),
    Row(
        what="tcp with TLS, against raw TLS sockets",
        target=1.3,
        value=lambda runs: float(_tls(runs)["limit"]["ratio"]),
        needs="tls",
    ),
    Row(what="tcp with TLS / without", target=None, value=_tls_to_plain, needs="tls"),
    _row("server's peak above idle / (weights + slices), grpc", 1.15, _memory(SLICES, carrier="grpc")),
    _row("the same, tcp", 1.15, _memory(SLICES, carrier="tcp")),
    _row(
        "the same / (weights + state + slices), Adam, asp, grpc",
        1.15,
        _memory(SLICES, carrier="grpc", consistency="asp", optimizer="adam"),
    ),
    _row("server's peak above idle / 2 x weights, shm", 1.15, _memory(1, carrier="shm")),
    _row("gpt2, 4 workers, Adam, shm: PSS of all processes / gloo's", 0.65, _pss_ratio),
    _row("the same at the end, when each worker gets weights of its own", None, _finish_pss_ratio),
    _row("2,000 rounds: last 100 / first 100", 1.05, _rounds("last_over_first")),
    _row("2,000 rounds: growth of resident memory", 8, _rounds("rss_growth_mib"), "MiB"),
    _row("2,000 rounds: growth of open files", 0, _rounds("open_files_growth")),
    _row(
        "slowest health check while 3 GB are applied",
        100,
        lambda runs: float(runs.latency()["health_ms"]["max"]),
        "ms",
    ),
    _row("slowest status call meanwhile", 100, lambda runs: float(runs.latency()["status_ms"]["max"]), "ms"),
    _row("wrap of 5,000 parameters", 300, lambda runs: float(runs.worker_cost()["wrap"]["wall_ms"]), "ms"),
    _row(
        "their step, the training thread beyond the bytes",
        5,
        lambda runs: float(runs.worker_cost()["steps"]["16"]["beyond"]["cpu_ms"]),
        "ms",
    ),
    _row(
        "checks of a step, 50 M parameters, of plain torch's step",
        1,
        lambda runs: 100 * float(runs.worker_cost()["checks_share"]["cpu"]),
        "%",
    ),
    _row(
        "steps a second without a snapshot / while one is taken and written",
        1.25,
        lambda runs: float(runs.snapshot()["normal_over_during"]),
    ),
    _row(
        "slowest step meanwhile",
        None,
        lambda runs: 1000 * float(runs.snapshot()["slowest_step_s"]["during"]),
        "ms",
    ),
    _row(
        "kill -9 of a worker until the other goes on, less the lease: the worst",
        0.5,
        lambda runs: float(runs.fault_times()["evicted_s"]["worst"]),
        "s",
    ),
    _row(
        "kill -9 of the rank that leads a group until the other group goes on, less the lease: the worst",
        0.5,
        lambda runs: float(runs.fault_times()["rank_s"]["worst"]),
        "s",
    ),
    _row("4 hosts behind 1 Gbit/s, a worker and a shard on each: beyond compute / DDP's", 1.1, _hosts()),
    _row("4 hosts, the same with --wire-dtype bf16", 0.6, _hosts(wire_dtype="bf16")),
    _row(
        "4 hosts, computation that takes none of these cores: beyond compute / DDP's", 1.1, _hosts("waiting")
    ),
    _row("4 hosts, the same with bf16, no core taken", 0.6, _hosts("waiting", wire_dtype="bf16")),
    _row(
        "a group of 2 ranks: bytes that a rank pushes / half of the model",
        1.1,
        lambda runs: float(runs.group_step(what="bytes")["share"]),
    ),
    _row(
        "reduce and push of a group of 2 ranks / push of a single worker, shm",
        1.3,
        lambda runs: float(runs.group_step(what="push")["ratio"]),
    ),
    _row(
        "a step beyond compute, shm, a group of 2 ranks / a single worker",
        None,
        _group_beyond("shm", "group", "worker"),
    ),
    _row(
        "a step beyond compute, servers behind 1 Gbit/s, 2 groups of 2 ranks / 4 workers",
        0.6,
        _group_beyond("link", "groups", "workers"),
    ),
    _row(
        "--servers none --nproc 2, Adam, a step / DDP's over gloo, shm",
        0.9,
        lambda runs: float(runs.group_step(what="own")["ratio"]["shm"]),
    ),
    _row(
        "the same, gradients over gloo",
        1.1,
        lambda runs: float(runs.group_step(what="own")["ratio"]["gloo"]),
    ),
    _row(
        "--servers none --nproc 2, Adam: optimizer state of a rank / half of it",
        1.1,
        lambda runs: float(runs.group_step(what="own")["state_share"]),
    ),
    _row("a step of 2 stages / of torch's own schedule", 1.1, _pipeline("ratio", what="step", stages="2")),
    _row("a step of 4 stages / of torch's own schedule", 1.1, _pipeline("ratio", what="step", stages="4")),
    _row("12 blocks in 4 stages: the largest / the best", 1.0, _pipeline("over_best", what="partition")),
    _row("the same: how far a stage is from its prediction", 0.15, _pipeline("off", what="partition")),
    _row(
        "4 sleeping stages, gpipe: idle share less its formula",
        5,
        _pipeline("points", what="bubble", schedule="gpipe"),
        "points",
    ),
    _row(
        "4 sleeping stages, 1f1b: idle share less its formula",
        5,
        _pipeline("points", what="bubble", schedule="1f1b"),
        "points",
    ),
    _row("the first of 4 stages: activations, 1f1b / gpipe", 0.65, _pipeline("share", what="memory")),
    _row("the largest of 4 stages / a worker of one process: memory", 0.3, _pipeline("share", what="pss")),
    _row(
        "a killed server is ready again until training goes on: the worst",
        3,
        lambda runs: float(runs.fault_times()["back_s"]["worst"]),
        "s",
    ),
    _row(
        "heartbeats of 1,000 workers, the coordinator's share of a core",
        20,
        lambda runs: 100 * float(runs.heartbeats()["share"]),
        "%",
    ),
    _row(
        "1,000 steps of 1,000 workers under asp, simulated on one core",
        60,
        lambda runs: float(runs.simulate()["cpu_s"]),
        "s",
    ),
    _row("the same under bsp", 60, lambda runs: float(runs.simulate(consistency="bsp")["cpu_s"]), "s"),
    _row("the same under ssp:3", 60, lambda runs: float(runs.simulate(consistency="ssp:3")["cpu_s"]), "s"),
    _row(
        "bsp with workers that sleep, a step / its slowest worker's draw, off by",
        5,
        lambda runs: 100 * float(runs.instrument(check="forms")["step_off"]),
        "%",
    ),
    _row(
        "asp with workers that sleep, mean tau / (N - 1), off by",
        5,
        lambda runs: 100 * float(runs.instrument(check="forms")["tau_off"]),
        "%",
    ),
    _row(
        "simulated / real throughput of these runs, off by",
        10,
        lambda runs: 100 * float(runs.instrument(check="forms")["ratio_off"]),
        "%",
    ),
    _row(
        "A/A: differences found between asp and itself, five seeds",
        0,
        lambda runs: float(runs.instrument(check="aa")["found"]),
    ),
    _row(
        "import ps_worker and the first optimizer, beyond import torch",
        0.3,
        lambda runs: float(runs.start_cost()["worker_beyond_torch_s"]),
        "CPU s",
    ),
    _row(
        "a server's start until it serves, after the first",
        1.5,
        lambda runs: float(runs.start_cost()["server_s"]),
        "s",
    ),
    _row(
        "64 workers, 4 servers, 1 MiB: CPU of the servers for a worker's round / with 8",
        1.3,
        lambda runs: float(runs.many_workers()["ratio"]),
    ),
    _row("a push and a pull, 1,000 members / 10", 1.5, lambda runs: float(runs.clock_cost()["growth"])),
    _row("a round with a token / without", 1.02, lambda runs: float(runs.token_cost()["on_over_off"])),
)
