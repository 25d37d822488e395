"""Two shards for all tests here, started by forking; the fixtures beside them are those of `integration`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import spawn, zygote
from tests.integration.processes import Zygote
from tests.integration.servers import Servers, serving

__all__ = ["cluster", "spawn", "zygote"]


@pytest.fixture(scope="session")
def cluster(zygote: Zygote) -> Iterator[Servers]:
    """Two shards."""
    with serving(zygote.start, 2) as servers:
        yield servers
