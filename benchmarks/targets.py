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

    def latency(self) -> Figures:
        """The JSON of `control_latency.py`."""
        ...

    def worker_cost(self) -> Figures:
        """The JSON of `worker_cost.py`."""
        ...

    def idle_server_bytes(self) -> int:
        """Resident memory of a server without a job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One target.

    Attributes:
        what: for people.
        target: the value may be this, or less.
        value: what is compared with it, not a number where noise hides it; None: nothing measures it yet.
        carrier: that it is about; the row waits until it is built.
        peer: that has to be installed for it.
        unit: of value and target.
    """

    what: str
    target: float
    value: Callable[[Runs], float] | None
    carrier: str = "grpc"
    peer: str | None = None
    unit: str = ""


def _share(above: float, below: float) -> float:
    """A quotient of times that are differences: not a number where noise makes one of them negative."""
    return above / below if above > 0 and below > 0 else math.nan


def _versus(peer: str, **options: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.roundtrip(versus=peer, **options)["peers"][peer]["ratio"])


def _limit(carrier: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.roundtrip(versus="gloo", carrier=carrier)["limit"]["ratio"])


def _gpt2(carrier: str) -> Callable[[Runs], float]:
    gpt2 = _versus("gloo", carrier=carrier, model="gpt2")
    resnet50 = _versus("gloo", carrier=carrier)
    return lambda runs: gpt2(runs) / resnet50(runs)


def _adam(runs: Runs) -> float:
    sgd = runs.roundtrip(versus="gloo", carrier="shm")
    adam = runs.roundtrip(versus="gloo", carrier="shm", optimizer="adam")

    def added_s(key: Callable[[Figures], Figures]) -> float:
        return float(key(adam)["round_s"]["median"] - key(sgd)["round_s"]["median"])

    return _share(added_s(lambda figures: figures), added_s(lambda figures: figures["limit"]))


def _beyond(carrier: str, **options: str) -> Callable[[Runs], float]:
    def value(runs: Runs) -> float:
        figures = runs.step(carrier=carrier, **options)
        return _share(*(float(figures[party]["beyond_compute_s"]) for party in ("project", "ddp")))

    return value


def _small_tensors(runs: Runs) -> float:
    whole, split = runs.step(carrier="auto"), runs.step(carrier="auto", split="10")
    return _share(*(float(figures["project"]["beyond_compute_s"]) for figures in (split, whole)))


def _two_servers(runs: Runs) -> float:
    one = runs.roundtrip(versus="gloo", carrier="tcp")
    two = runs.roundtrip(versus="gloo", carrier="tcp", num_servers="2")
    # Against gloo, which does not depend on servers, for the two are different runs.
    return float(two["peers"]["gloo"]["ratio"] / one["peers"]["gloo"]["ratio"])


def _memory(slices: int, **options: str) -> Callable[[Runs], float]:
    def value(runs: Runs) -> float:
        figures = runs.roundtrip(versus="gloo", **options)
        above = figures["server_peak_rss_bytes"] - runs.idle_server_bytes()
        return float(above / (figures["server_state_bytes"] + slices * figures["bytes"]))

    return value


def _pss_gib(runs: Runs) -> float:
    figures = runs.footprint(carrier="shm", model="gpt2-xl", num_workers="1", rounds="2")
    return float(figures["pss_bytes"]["project"] / 2**30)


def _pss_ratio(runs: Runs) -> float:
    figures = runs.footprint(
        carrier="shm", model="gpt2", num_workers="4", optimizer="adam", versus="gloo", rounds="2"
    )
    return float(figures["pss_bytes"]["project"] / figures["pss_bytes"]["gloo"])


def _rounds(key: str) -> Callable[[Runs], float]:
    return lambda runs: float(runs.footprint(model="dlrm-dense", rounds="2000")[key])


ROWS: tuple[Row, ...] = (
    Row(
        what="shm, bsp, against gloo, 2 ranks",
        target=0.25,
        value=_versus("gloo", carrier="shm"),
        carrier="shm",
    ),
    Row(
        what="shm, bsp, 4 workers, against gloo, 4 ranks",
        target=0.2,
        value=_versus("gloo", carrier="shm", num_workers="4"),
        carrier="shm",
    ),
    Row(
        what="shm, ssp:3, against gloo",
        target=0.55,
        value=_versus("gloo", carrier="shm", consistency="ssp:3"),
        carrier="shm",
    ),
    Row(
        what="shm, asp, against gloo",
        target=0.55,
        value=_versus("gloo", carrier="shm", consistency="asp"),
        carrier="shm",
    ),
    Row(what="uds, against gloo", target=1.0, value=_versus("gloo", carrier="uds"), carrier="uds"),
    Row(
        what="tcp, against torch RPC over TCP",
        target=0.8,
        value=_versus("torch-rpc", carrier="tcp"),
        carrier="tcp",
    ),
    Row(
        what="tcp, against MXNet dist_sync",
        target=0.5,
        value=_versus("mxnet", carrier="tcp"),
        carrier="tcp",
        peer="mxnet",
    ),
    Row(
        what="tcp, asp, against TensorFlow's parameter server",
        target=0.6,
        value=_versus("tensorflow", carrier="tcp", consistency="asp"),
        carrier="tcp",
        peer="tensorflow",
    ),
    Row(
        what="grpc, against MXNet dist_sync",
        target=1.5,
        value=_versus("mxnet", carrier="grpc"),
        peer="mxnet",
    ),
    Row(what="a step beyond compute, 10 times as many tensors / as many", target=1.5, value=_small_tensors),
    Row(
        what="gpt2 against gloo / resnet50 against gloo, shm", target=1.15, value=_gpt2("shm"), carrier="shm"
    ),
    Row(
        what="gpt2 against gloo / resnet50 against gloo, tcp", target=1.15, value=_gpt2("tcp"), carrier="tcp"
    ),
    Row(what="shm: what Adam adds / what it adds to the limit", target=1.2, value=_adam, carrier="shm"),
    Row(what="a step beyond compute / DDP's, shm, batch 64", target=0.3, value=_beyond("shm"), carrier="shm"),
    Row(
        what="a step beyond compute / DDP's, shm, batch 16",
        target=0.3,
        value=_beyond("shm", batch_size="16"),
        carrier="shm",
    ),
    Row(what="a step beyond compute / DDP's, tcp, batch 64", target=1.0, value=_beyond("tcp"), carrier="tcp"),
    Row(
        what="gpt2-xl, 1 worker, shm: PSS of all processes",
        target=20,
        value=_pss_gib,
        carrier="shm",
        unit="GiB",
    ),
    Row(what="shm, bsp, against the machine's limit", target=1.4, value=_limit("shm"), carrier="shm"),
    Row(what="uds, against the machine's limit", target=1.3, value=_limit("uds"), carrier="uds"),
    Row(what="tcp, against the machine's limit", target=1.3, value=_limit("tcp"), carrier="tcp"),
    Row(what="tcp, 2 servers / 1 server", target=1.05, value=_two_servers, carrier="tcp"),
    Row(what="tcp with TLS, against raw TLS sockets", target=1.3, value=None, carrier="tcp"),
    Row(
        what="server's peak above idle / (weights + slices), grpc",
        target=1.15,
        value=_memory(SLICES, carrier="grpc"),
    ),
    Row(
        what="the same / (weights + state + slices), Adam, asp",
        target=1.15,
        value=_memory(SLICES, carrier="grpc", consistency="asp", optimizer="adam"),
    ),
    Row(
        what="server's peak above idle / 2 x weights, shm, bsp",
        target=1.15,
        value=_memory(1, carrier="shm"),
        carrier="shm",
    ),
    Row(what="gpt2, 4 workers, Adam, shm: PSS / DDP's", target=0.65, value=_pss_ratio, carrier="shm"),
    Row(what="2,000 rounds: last 200 / first 200", target=1.05, value=_rounds("last_over_first")),
    Row(
        what="2,000 rounds: growth of resident memory",
        target=8 << 20,
        value=_rounds("rss_growth_bytes"),
        unit="B",
    ),
    Row(what="2,000 rounds: growth of open files", target=0, value=_rounds("open_files_growth")),
    Row(
        what="slowest health check while 3 GB are applied",
        target=100,
        value=lambda runs: float(runs.latency()["health_ms"]["max"]),
        unit="ms",
    ),
    Row(
        what="slowest status call meanwhile",
        target=100,
        value=lambda runs: float(runs.latency()["status_ms"]["max"]),
        unit="ms",
    ),
    Row(
        what="wrap of 5,000 parameters",
        target=300,
        value=lambda runs: float(runs.worker_cost()["wrap"]["wall_ms"]),
        unit="ms",
    ),
    Row(
        what="their step, the training thread beyond the bytes",
        target=5,
        value=lambda runs: float(runs.worker_cost()["steps"]["16"]["beyond"]["cpu_ms"]),
        unit="ms",
    ),
    Row(
        what="checks of a step, 50 M parameters, of plain torch's step",
        target=1,
        value=lambda runs: 100 * float(runs.worker_cost()["checks_share"]["cpu"]),
        unit="%",
    ),
)
