"""Servers that all tests here share: each test uses job names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .processes import Zygote
from .servers import Servers, serving

torch.set_num_threads(1)  # the bits of a matrix product depend on it; workers have OMP_NUM_THREADS=1


@pytest.fixture(scope="session")
def cluster(zygote: Zygote) -> Iterator[Servers]:
    """Two shards."""
    with serving(zygote.start, 2) as servers:
        yield servers


@pytest.fixture(scope="session")
def single(zygote: Zygote) -> Iterator[Servers]:
    """One shard with a small memory."""
    with serving(zygote.start, 1, "--memory-limit", "4M") as servers:
        yield servers


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script that joins and leaves."""
    path = tmp_path / "train.py"
    path.write_text(
        "import ps_worker as ps\nwith ps.connect() as worker:\n    print('joined', worker.rank)\n"
    )
    return str(path)
