"""One shard for all contracts, and one with TLS; a carrier of `bench.py` has one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ps_lab.cluster.certificate_authority import make_certificates
from ps_wire.access.access import read
from tests.component.service import Cluster, LoopThread

from .bench import TLS, Bench


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


@pytest.fixture(scope="session")
def server(loop: LoopThread) -> Iterator[Cluster]:
    made = Cluster(loop, 1)
    yield made
    made.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `server` and `worker`."""
    path = tmp_path_factory.mktemp("certificates")
    make_certificates(path)
    return path


@pytest.fixture(scope="session")
def secure(loop: LoopThread, certificates: Path) -> Iterator[Cluster]:
    """With TLS."""
    access = read(token_file=None, tls_dir=certificates / "server", serves=True, complain=print)
    made = Cluster(loop, 1, access, tls_dir=certificates / "worker")
    yield made
    made.close()


@pytest.fixture
def its_server(carrier: str, request: Any) -> Cluster:
    """Of the carrier that the test has."""
    return request.getfixturevalue("secure" if carrier == TLS else "server")


@pytest.fixture
def in_job(carrier: str, its_server: Cluster) -> Callable[[Callable[[Bench], None]], None]:
    """Runs a test while a worker holds the job open."""
    return lambda test: Bench.run(its_server, carrier, test)
