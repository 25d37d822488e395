"""Seconds per training step: compute alone, the project, and DistributedDataParallel over gloo, in turns.

What counts is the time beyond compute alone: what communication and optimizer add to a step. Ablations are
further variants of the project in the same run, each a job of its own on the same servers. On hosts that are
network namespaces all run behind the same links. Through a slow link on one host the project runs without
DistributedDataParallel, whose connections cannot be led through it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ps_lab.bench import link as links
from ps_lab.bench.carriers import carrier_of
from ps_lab.bench.figures import Round, Summary, summarize
from ps_lab.bench.parties import WARM_UP_ROUNDS, Party, interleave
from ps_lab.bench.session import ProcessPlan, Session, run_module
from ps_lab.bench.setup import JobSetup
from ps_lab.bench.watcher import Watcher
from ps_lab.cluster.cluster import Job
from ps_lab.cluster.host import LOCAL
from ps_lab.cluster.network import Link, placed
from ps_lab.cluster.ports import free_ports
from ps_wire.errors import UsageError
from ps_wire.process.device import device_of
from ps_wire.spec import wire_dtype as wire_dtypes

MODELS = ("mlp", "cnn", "gpt", "waiting")
ALONE, DDP = "alone", "ddp"
STEPS = 4  # per turn: in the last one nothing hides the wait for the weights
LIMIT_S = 600.0  # for a start or a turn
SCRIPT = Path(__file__).with_name("children") / "step_worker.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run the project.

    Attributes:
        overlap: push while backward runs.
        bucket_mb: size of buckets in MiB, "all" for one bucket; 0: a push per parameter.
    """

    overlap: bool
    bucket_mb: str

    @property
    def name(self) -> str:
        """Of its party."""
        buckets = {"0": "a push per parameter", "all": "one bucket"}.get(
            self.bucket_mb, f"buckets of {self.bucket_mb} MiB"
        )
        return f"project, overlap {'on' if self.overlap else 'off'}, {buckets}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetup(JobSetup):
    """Workers, their processes and the model that they train, one of `MODELS`.

    Attributes:
        split: parameters that each of the MLP's matrices and biases is cut into.
        batch_size: samples a step, of each worker.
        device: on which models compute, of torch's names; all workers have the same.
        variants: of the project; the first one is the one that is compared.
        ddp_bucket_mb: size of DistributedDataParallel's buckets, MiB, but for its first one.
        link: between workers and servers, or of each host; None: as it is.
        wire_dtype: in which the project's gradients and weights travel.
    """

    split: int
    batch_size: int
    device: str = "cpu"
    variants: tuple[Variant, ...]
    ddp_bucket_mb: int = 25
    link: Link | None = None
    wire_dtype: str = wire_dtypes.WireDtype.FP32

    def __post_init__(self) -> None:
        JobSetup.__post_init__(self)  # super() does not know a class with slots
        wire_dtypes.parse(self.wire_dtype)
        if self.model not in MODELS:
            raise UsageError(f"--model {self.model!r} is not known; there are {', '.join(MODELS)}")
        device_of(self.device)
        if self.split > 1 and self.model != "mlp":
            raise UsageError("--split cuts the parameters of the mlp only")

    @property
    def throttled(self) -> Link | None:
        """The link of servers on this host, through which the project alone is led; None: there is none."""
        return self.link if self.hosts == (LOCAL,) else None


def parse_variants(overlap: str, bucket_mb: str) -> tuple[Variant, ...]:
    """All combinations of "on,off" and "0,1,5,25,all", in that order.

    Raises:
        UsageError: something else was typed, or the same twice.
    """
    switches = _items("--overlap", overlap)
    sizes = _items("--bucket-mb", bucket_mb)
    for switch in switches:
        if switch not in ("on", "off"):
            raise UsageError(f"--overlap takes on, off or both, got {switch!r}")
    for size in sizes:
        if size != "all" and not (size.isascii() and size.isdecimal() and int(size) < 1 << 20):
            raise UsageError(f"--bucket-mb takes whole numbers of MiB, or all, got {size!r}")
    return tuple(
        Variant(overlap=switch == "on", bucket_mb=size) for size, switch in itertools.product(sizes, switches)
    )


def _items(option: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if len(set(items)) < len(items):
        raise UsageError(f"{option} {text!r} names something twice")
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Measured times, per step.

    Attributes:
        setup: of the run.
        carrier: that the project's workers had.
        parameters: elements of the model.
        tensors: that they lie in.
        rounds: of each party, by its name.
    """

    setup: StepSetup
    carrier: str
    parameters: int
    tensors: int
    rounds: Mapping[str, list[Round]]

    def summary(self, party: str) -> Summary:
        """Seconds per step."""
        return summarize(self.rounds[party])

    def beyond_s(self, party: str) -> float:
        """Seconds that a step of that party takes beyond compute alone; below 0 only by noise."""
        return self.summary(party).median - self.summary(ALONE).median

    def ratio(self, party: str) -> float | None:
        """Time beyond compute alone, against DistributedDataParallel's; None where that has none."""
        return None if DDP not in self.rounds else _quotient(self.beyond_s(party), self.beyond_s(DDP))

    def hidden(self, variant: Variant) -> float | None:
        """The share of what a step adds without overlap that overlap hides; None if not measured."""
        without = Variant(overlap=False, bucket_mb=variant.bucket_mb)
        if not variant.overlap or without not in self.setup.variants:
            return None
        left = _quotient(self.beyond_s(variant.name), self.beyond_s(without.name))
        return None if left is None else 1.0 - max(left, 0.0)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` writes."""
        setup = self.setup

        def of_variant(variant: Variant) -> dict[str, Any]:
            return asdict(variant) | {
                "step_s": self.summary(variant.name).to_json(),
                "beyond_compute_s": self.beyond_s(variant.name),
                "ratio": self.ratio(variant.name),
                "hidden": self.hidden(variant),
            }

        ddp = (
            {
                "bucket_mb": setup.ddp_bucket_mb,
                "step_s": self.summary(DDP).to_json(),
                "beyond_compute_s": self.beyond_s(DDP),
            }
            if (DDP in self.rounds)
            else None
        )
        return {
            "model": setup.model,
            "parameters": self.parameters,
            "tensors": self.tensors,
            "batch_size": setup.batch_size,
            "device": setup.device,
            **setup.to_json(self.carrier),
            "steps_per_round": STEPS,
            "wire_dtype": setup.wire_dtype,
            "link": None if setup.link is None else asdict(setup.link),
            "alone": {"step_s": self.summary(ALONE).to_json()},
            "ddp": ddp,
            "project": of_variant(setup.variants[0]),
            "ablations": [of_variant(variant) for variant in setup.variants[1:]],
        }


def _quotient(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def measure(setup: StepSetup, watcher: Watcher) -> StepOutcome:
    """Runs the bench. Call it in the main thread: it takes over the signals that stop a program.

    Raises:
        BenchFailed: a process hangs.
        ProcessFailed: a process ended before the end.
        Interrupted: a signal came; everything has been ended.
    """
    link = setup.throttled
    data_ports = () if link is None else free_ports(setup.num_servers)
    if link is not None:
        links.check_available()
    watcher.phase("starting servers", 0)
    with Session(
        num_servers=setup.num_servers,
        on_line=watcher.line,
        data_ports=data_ports,
        hosts=setup.server_hosts,
    ) as session:
        watcher.phase("starting workers", 0)
        addresses = session.cluster.addresses
        if link is not None:
            session.start("link", links.plans(link, addresses, data_ports), limit_s=LIMIT_S)
            session.wait_ready(limit_s=LIMIT_S)
            addresses = links.through(addresses)
        parties = _start(session, setup, addresses)
        first, *_ = session.wait_ready(limit_s=LIMIT_S).values()
        carrier = carrier_of(session.cluster.addresses, _job_name(0), session.cluster.access)
        watcher.phase("rounds", len(parties) * (WARM_UP_ROUNDS + setup.rounds))
        rounds = interleave(parties, setup.rounds, on_round=watcher.advance)
    return StepOutcome(
        setup=setup,
        carrier=carrier,
        parameters=first["parameters"],
        tensors=first["tensors"],
        rounds={name: [_per_step(item) for item in items] for name, items in rounds.items()},
    )


def _start(session: Session, setup: StepSetup, servers: tuple[str, ...]) -> list[Party]:
    configuration: dict[str, object] = {
        "model": setup.model,
        "split": setup.split,
        "batch_size": setup.batch_size,
        "device": setup.device,
        "optimizer": setup.optimizer,
        "steps": STEPS,
    }
    parties: list[Party] = [session.start(ALONE, _ranks(ALONE, configuration, setup), limit_s=LIMIT_S)]
    for number, variant in enumerate(setup.variants):
        job = Job(
            name=_job_name(number),
            consistency=setup.consistency,
            num_workers=setup.num_workers,
            script=SCRIPT,
            carrier=setup.asked_carrier,
            servers=servers,
            wire_dtype=setup.wire_dtype,
            hosts=setup.hosts,
        )
        own = configuration | {"mode": "project"} | asdict(variant)
        parties.append(session.start_workers(job, own, name=variant.name, limit_s=LIMIT_S))
    if setup.throttled is not None:
        return parties
    configuration["ddp_bucket_mb"] = setup.ddp_bucket_mb
    return [*parties, session.start(DDP, _ranks(DDP, configuration, setup), limit_s=LIMIT_S)]


def _job_name(variant: int) -> str:
    return f"step-{variant}"


def _ranks(mode: str, configuration: Mapping[str, object], setup: StepSetup) -> list[ProcessPlan]:
    (port,) = free_ports(1)
    meets = {"host": setup.hosts[0].address, "port": port, "world_size": setup.num_workers}
    own = {**configuration, "mode": mode, **meets}
    return [
        ProcessPlan(
            name=f"{mode} {rank}",
            command=run_module("ps_lab.bench.children.step_worker"),
            configuration={**own, "rank": rank},
            host=placed(setup.hosts, rank),
        )
        for rank in range(setup.num_workers)
    ]


def _per_step(item: Round) -> Round:
    return Round(seconds=item.seconds / STEPS, cpu_s=None if item.cpu_s is None else item.cpu_s / STEPS)
