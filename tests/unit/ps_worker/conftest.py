"""Services that all tests of the worker library share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .service import Cluster, LoopThread

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def one_shard(loop_thread: LoopThread) -> Iterator[Cluster]:
    cluster = Cluster(loop_thread, 1)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def cluster(loop_thread: LoopThread) -> Iterator[Cluster]:
    """Two shards."""
    made = Cluster(loop_thread, 2)
    yield made
    made.close()
