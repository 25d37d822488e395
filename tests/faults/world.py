"""Two shards that write their ledger, and the workers of one job, each a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np

from ps_lab.cluster.cluster import free_ports
from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job

from .controller import Faults
from .replay import check

TRAINER = str(Path(__file__).with_name("trainer.py"))
LEASE_S = 1.0
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
    ) -> Process:
        """Starts a worker; `reach` is its `--servers`, where that is not what the others have."""
        servers = ("--servers", reach or self.servers.option, "--job", self.job)
        job = ("--consistency", self.consistency, "--num-workers", size)
        mine = ("--worker", str(worker), "--carrier", carrier, "--lease", str(LEASE_S))
        final = str(self._folder / f"final-{worker}")
        environment = self._faults.environment(f"worker {worker}") | dict(extra)
        return self._spawn("ps-worker", *servers, *job, *mine, TRAINER, str(steps), final, **environment)

    def state(self, worker: int) -> str:
        """What the coordinator says of a worker; "gone": the job has none of this number."""
        try:
            status = self.servers.status(self.job)
        except grpc.RpcError:  # the coordinator is dead, and has another process soon
            return "unknown"
        if status is None:  # the coordinator has just come back
            return "unknown"
        return next((entry.state for entry in status.workers if entry.worker == worker), "gone")

    def check(self, *finished: int) -> None:
        """The laws, and that these workers have the weights that the ledger makes."""
        weights = check(
            self._faults.ledger, self.servers, self.job, aggregates=self.consistency.startswith("bsp")
        ).numpy()
        for worker in finished:
            final = np.fromfile(self._folder / f"final-{worker}", dtype=np.float32)
            assert np.array_equal(final, weights), f"worker {worker} has other weights"
