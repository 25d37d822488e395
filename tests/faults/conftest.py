"""Two shards for all tests here, what happens to their processes, and a world of a test's own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes import Start, Zygote
from tests.integration.servers import Servers, serving

from .controller import Faults
from .world import World


@pytest.fixture(scope="session")
def cluster(zygote: Zygote) -> Iterator[Servers]:
    """Two shards."""
    with serving(zygote.start, 2) as servers:
        yield servers


@pytest.fixture
def stoppable(spawn: Start) -> Iterator[Servers]:
    """Two shards of its own that it may stop, or kill; they run on at the end, and end in order."""
    servers = Servers(spawn, 2)
    yield servers
    for process in servers.processes:
        process.signal(signal.SIGCONT)
    codes = servers.close()
    assert set(codes) <= {0, -signal.SIGKILL}, "\n".join(process.text for process in servers.processes)


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    """What happens to the processes of this test."""
    with Faults(tmp_path) as made:
        yield made


@pytest.fixture
def world(spawn: Start, faults: Faults, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Two shards of its own, whose points can be stopped at; parametrized with the consistency of the job."""
    made = World(spawn, faults, tmp_path, request.param)
    yield made
    made.close()
