"""The setup of a bench, as it was asked for, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ps_lab.bench.optimizers import OPTIMIZERS, check_optimizer
from ps_lab.bench.shapes import Shapes, bytes_of, parameters_of
from ps_lab.cluster.host import LOCAL, Host
from ps_wire.errors import UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.spec import wire_dtype as wire_dtypes
from ps_wire.spec.consistency import parse

Peers: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """The project's job, and how the other parties are like it.

    Attributes:
        model: a name for people.
        num_servers: of the project, and of peers that have several.
        num_workers: of every party.
        asked_carrier: as typed; `auto` leaves it to the servers and workers.
        consistency: of the project's jobs, as it prints itself.
        optimizer: of all parties that have one, by its name on the command line.
        rounds: that are kept.
        hosts: of workers and ranks, which go round them.
        server_hosts: likewise of servers.
    """

    model: str
    num_servers: int
    num_workers: int
    asked_carrier: str
    consistency: str
    optimizer: str
    rounds: int
    hosts: tuple[Host, ...] = (LOCAL,)
    server_hosts: tuple[Host, ...] = (LOCAL,)

    def __post_init__(self) -> None:
        for name, number in (
            ("--num-servers", self.num_servers),
            ("--num-workers", self.num_workers),
            ("--rounds", self.rounds),
        ):
            if number < 1:
                raise UsageError(f"{name} must be >= 1, got {number}")
        carriers.parse(self.asked_carrier)
        check_optimizer(self.optimizer)
        parse(self.consistency)

    def to_json(self, carrier: str) -> dict[str, object]:
        """The facts that figures name of it; `carrier` is what the job got."""
        return {
            "num_servers": self.num_servers,
            "num_workers": self.num_workers,
            "carrier": carrier,
            "optimizer": self.optimizer,
            "consistency": self.consistency,
            "rounds": self.rounds,
            "hosts": len({*self.hosts, *self.server_hosts}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(JobSetup):
    """The participants of a bench, and the tables that a round moves.

    Attributes:
        shapes: of all parameters, float32.
        peers: names, in the order of their turns.
        with_limit: measure what the machine allows, too.
        tls_dir: folder of the certificates of the project's connections, and of the limit's; None: no TLS.
        wire_dtype: in which the project's gradients and weights travel; all bytes are counted as float32.
    """

    shapes: Shapes
    peers: Peers
    with_limit: bool
    tls_dir: str | None = None
    wire_dtype: str = wire_dtypes.WireDtype.FP32

    def __post_init__(self) -> None:
        JobSetup.__post_init__(self)  # super() does not know a class with slots
        wire_dtypes.parse(self.wire_dtype)
        if self.tls_dir is not None and self.asked_carrier != carriers.Carrier.TCP:
            raise UsageError(f"--tls-dir is about TCP: add --carrier tcp, not {self.asked_carrier}")
        if self.with_limit and self.hosts != (LOCAL,):
            raise UsageError("the machine's limit is that of one host: with --hosts, add --no-limit")

    @property
    def parameters(self) -> int:
        """Elements of the weights."""
        return parameters_of(self.shapes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return bytes_of(self.shapes)

    @property
    def state_slots(self) -> int:
        """Tensors of the weights' size in the optimizer's state."""
        return OPTIMIZERS[self.optimizer].slots

    @property
    def bytes_per_round(self) -> int:
        """Pushed and pulled by all workers together."""
        return 2 * self.num_workers * self.weight_bytes

    @property
    def limit_s(self) -> float:
        """How long a start or a round may take: a minute per GB that moves, and two for everything else."""
        return 120.0 + 60.0 * self.bytes_per_round / 1e9


def parse_peers(text: str, known: Sequence[str]) -> Peers:
    """The names in "gloo,torch-rpc".

    Raises:
        UsageError: one is unknown, or there twice.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise UsageError(f"--versus {name!r} is not known; there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise UsageError(f"--versus {text!r} names a peer twice")
    return names
