"""Services that all tests of the worker library share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ps_server.coordinator.snapshots.durability import Durability
from ps_worker.transport import carrier_choice
from tests.component.service import Cluster, LoopThread

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def shared() -> list[Cluster]:
    """Those of `one_shard` and `cluster` that a test has asked for."""
    return []


@pytest.fixture(scope="session")
def one_shard(loop_thread: LoopThread, shared: list[Cluster]) -> Iterator[Cluster]:
    cluster = Cluster(loop_thread, 1)
    shared.append(cluster)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def cluster(loop_thread: LoopThread, shared: list[Cluster]) -> Iterator[Cluster]:
    """Two shards."""
    made = Cluster(loop_thread, 2)
    shared.append(made)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _greeted_late() -> Iterator[None]:
    """A shard that gets no turn for a while is no reason to take another carrier, or to copy weights.

    Not by a test's own `monkeypatch`: what a test has put into a service is taken out before `_jobs` ends.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier_choice, "GREET_LIMIT_S", 60.0)
        yield


@pytest.fixture(autouse=True)
def _jobs(shared: list[Cluster]) -> Iterator[None]:
    """The jobs of a test go with it: all tests of a process begin more than a service has room for."""
    with ExitStack() as stack:
        for service in shared:
            stack.enter_context(service.dropping())
        yield


@pytest.fixture
def num_durable() -> int:
    """Shards of `durable`; a file of tests may have another number."""
    return 2


@pytest.fixture
def durable(loop_thread: LoopThread, tmp_path: Path, num_durable: int) -> Iterator[Cluster]:
    """Shards with a snapshot folder and state directories: their jobs go back to snapshots."""
    options: dict[str, Any] = {
        "snapshot_dir": str(tmp_path / "snapshots"),
        "state_dir": tmp_path / ("state-{shard}" if num_durable > 1 else "state"),
        "durability": Durability.SNAPSHOT,
    }
    cluster = Cluster(loop_thread, num_durable, options=options)
    yield cluster
    cluster.close()
