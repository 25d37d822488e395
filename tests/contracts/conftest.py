"""One shard for all contracts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..unit.ps_worker.service import Cluster, LoopThread  # noqa: TID252


@pytest.fixture(scope="session")
def server() -> Iterator[Cluster]:
    loop = LoopThread()
    made = Cluster(loop, 1)
    yield made
    made.close()
    loop.close()
