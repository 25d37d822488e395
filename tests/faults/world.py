"""Two shards that write their ledger, and the workers of one job, each a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np

from ps_lab.cluster.ports import free_ports
from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job

from .controller import Faults
from .replay import check

TRAINER = str(Path(__file__).with_name("trainer.py"))
OF_RANKS = str(Path(__file__).with_name("rank_trainer.py"))
LEASE_S = 1.0
GROUP_LEASE_S = 4.0  # a rank that is silent for half of it ends its group
GROUP_SIZE = 2
STEPS = 8


class World:
    """See the module's docstring.

    Attributes:
        job: its name.
        servers: the shards.
        data_ports: of the shards, for TCP.
    """

    def __init__(
        self,
        spawn: Start,
        faults: Faults,
        folder: Path,
        consistency: str,
        options: Sequence[str] = (),
        through: Callable[[str], str] = str,
    ) -> None:
        """Starts the shards, with these options more; shard 1 gets `through(address)` as that of shard 0."""
        self.job = fresh_job()
        self.consistency = consistency
        self._spawn = spawn
        self._faults = faults
        self._folder = folder
        self.data_ports = free_ports(2)
        self._through = through
        self._commands: list[tuple[str, ...]] = []
        self.servers = Servers(self._begin_server, 2, *options)

    def _begin_server(self, *command: str) -> Process:
        shard = len(self._commands)
        reach = (
            self._through(word) if before == "--coordinator" else word for before, word in pairwise(command)
        )
        self._commands.append((command[0], *reach, "--data-port", str(self.data_ports[shard])))
        return self._spawn(*self._commands[shard], **self._faults.environment(f"server {shard}"))

    def begin_server_again(self, shard: int) -> None:
        """Another process for a shard whose process has ended."""
        environment = self._faults.environment(f"server {shard}")
        self.servers.processes[shard] = self._spawn(*self._commands[shard], **environment)

    def begin_server_twice(self, shard: int) -> Process:
        """Another process for a shard whose process lives; it is none of those that faults happen to."""
        return self._spawn(*self._commands[shard])

    def close(self) -> None:
        """Stops the shards, which end in order."""
        assert self.servers.close() == [0, 0], "\n".join(process.text for process in self.servers.processes)

    def begin(
        self,
        worker: int,
        size: str,
        *,
        carrier: str = "tcp",
        steps: int = STEPS,
        reach: str | None = None,
        extra: Mapping[str, str] = {},
        rank: int | None = None,
        lease_s: float | None = None,
    ) -> Process:
        """Starts a worker, or a rank of a group that is one.

        `reach` is its `--servers`, where that is not what the others have, and `lease_s` its lease, likewise.
        """
        servers = ("--servers", reach or self.servers.option, "--job", self.job)
        job = ("--consistency", self.consistency, "--num-workers", size)
        lease_s = lease_s or (LEASE_S if rank is None else GROUP_LEASE_S)
        mine = ("--worker", str(worker), "--carrier", carrier, "--lease", str(lease_s))
        script = (TRAINER if rank is None else OF_RANKS, str(steps), str(self._final(worker, rank)))
        environment = self._faults.environment(name_of(worker, rank)) | dict(extra)
        if rank is not None:
            of_rank = dict.fromkeys(("PS_GROUP_RANK", "PS_LOCAL_RANK"), str(rank))
            environment |= {"PS_GROUP_SIZE": str(GROUP_SIZE), **of_rank}
        return self._spawn("ps-worker", *servers, *job, *mine, *script, **environment)

    def _final(self, worker: int, rank: int | None) -> Path:
        return self._folder / f"final-{worker}{'' if rank is None else f'-{rank}'}"

    def state(self, worker: int) -> str:
        """What the coordinator says of a worker; "gone": the job has none of this number."""
        try:
            status = self.servers.status(self.job)
        except grpc.RpcError:  # the coordinator is dead, and has another process soon
            return "unknown"
        if status is None:  # the coordinator has just come back
            return "unknown"
        return next((entry.state for entry in status.workers if entry.worker == worker), "gone")

    def check(self, *finished: int, group: int | None = None) -> None:
        """The laws, and that these workers, all ranks of a group too, have the weights of the ledger."""
        weights = check(
            self._faults.ledger, self.servers, self.job, aggregates=self.consistency.startswith("bsp")
        ).numpy()
        for worker in finished:
            for rank in range(GROUP_SIZE) if worker == group else (None,):
                final = np.fromfile(self._final(worker, rank), dtype=np.float32)
                assert np.array_equal(final, weights), f"{name_of(worker, rank)} has other weights"


def name_of(worker: int, rank: int | None) -> str:
    """A process of a worker, as faults and people know it: "worker 2", or "worker 2/1" for its rank 1."""
    return f"worker {worker}/{rank}" if rank else f"worker {worker}"


def place_of(name: str) -> tuple[int, int]:
    """Worker and rank; see `name_of`."""
    worker, _, rank = name.removeprefix("worker ").partition("/")
    return int(worker), int(rank or 0)
