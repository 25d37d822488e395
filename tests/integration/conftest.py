"""Servers that all tests here share: each test uses job names of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .processes import Process, Zygote, start
from .servers import Servers, serving


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts commands cheaply."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def cluster(zygote: Zygote) -> Iterator[Servers]:
    """Two shards, of the installed command."""
    with serving(start, 2) as servers:
        yield servers


@pytest.fixture(scope="session")
def single(zygote: Zygote) -> Iterator[Servers]:
    """One shard with a small memory."""
    with serving(zygote.start, 1, "--memory-limit", "4M") as servers:
        yield servers


@pytest.fixture
def spawn(zygote: Zygote) -> Iterator[Callable[..., Process]]:
    """Starts commands; what still runs at the end of the test is killed."""
    started: list[Process] = []

    def begin(*command: str, **environment: str) -> Process:
        started.append(zygote.start(*command, environment=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
