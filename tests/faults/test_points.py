"""A worker is killed or stopped at each point of the life of a push and of a pull: what the others see.

`injector.py` holds a process at the point, so nothing depends on timing; `replay.py` has the laws.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job, serving, until

from .controller import Faults
from .points import POINTS
from .replay import check

pytestmark = [pytest.mark.integration, pytest.mark.fault]

TRAINER = str(Path(__file__).with_name("trainer.py"))
LEASE_S = 1.0
STEPS = 8


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    with Faults(tmp_path) as made:
        yield made


class World:
    """Two shards, and the workers of one job."""

    def __init__(self, spawn: Start, faults: Faults, folder: Path, servers: Servers, consistency: str) -> None:
        self.servers = servers
        self.job = fresh_job()
        self._spawn = spawn
        self._faults = faults
        self._folder = folder
        self._consistency = consistency

    def begin(self, worker: int, size: str, *, carrier: str = "tcp", steps: int = STEPS) -> Process:
        servers = ("--servers", self.servers.option, "--job", self.job, "--consistency", self._consistency)
        mine = ("--num-workers", size, "--worker", str(worker), "--carrier", carrier, "--lease", str(LEASE_S))
        final = str(self._folder / f"final-{worker}")
        environment = self._faults.environment(f"worker {worker}")
        return self._spawn("ps-worker", *servers, *mine, TRAINER, str(steps), final, **environment)

    def check(self, *finished: int) -> None:
        """The laws, and that these workers have the weights that the ledger makes."""
        weights = check(
            self._faults.ledger, self.servers, self.job, aggregates=self._consistency.startswith("bsp")
        ).numpy()
        for worker in finished:
            final = np.fromfile(self._folder / f"final-{worker}", dtype=np.float32)
            assert np.array_equal(final, weights), f"worker {worker} has other weights"


@pytest.fixture
def world(spawn: Start, faults: Faults, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    shards = iter((0, 1))

    def start(*command: str) -> Process:
        return spawn(*command, **faults.environment(f"server {next(shards)}"))

    with serving(start, 2) as servers:
        yield World(spawn, faults, tmp_path, servers, request.param)


@pytest.mark.parametrize("world", ["bsp"], indirect=True)
def test_every_point_of_the_life_of_a_push_and_a_pull_is_reached(world: World, faults: Faults) -> None:
    """Over shared memory, which has one answer more than the others."""
    workers = [world.begin(worker, "2", carrier="auto", steps=3) for worker in (0, 1)]
    assert [worker.wait_end() for worker in workers] == [0, 0]
    reached = set.union(*faults.reached.values())
    assert reached == set(POINTS)
    world.check(0, 1)
