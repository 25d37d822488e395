"""The threads that torch takes in a worker: as many as the worker has cores."""

from __future__ import annotations

import pytest
import torch

from ps_worker import cli


@pytest.mark.parametrize(
    ("servers", "num_workers", "cores", "torchs", "expected"),
    [
        ("none", 1, 2, 96, 2),  # a container on a large machine
        ("ps-server-0.ps-server:50051", 4, 2, 96, 2),
        ("ps-server-0.ps-server:50051", 4, 96, 48, None),  # no limit: torch knows which are cores
        ("127.0.0.1:50051", 4, 8, 8, 2),  # the others are on this host
        ("127.0.0.1:50051", 4, 2, 8, 1),
    ],
)
def test_it_takes_as_many_as_this_worker_has_cores(
    servers: str,
    num_workers: int,
    cores: int,
    torchs: int,
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
):
    set_to: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cli, "available_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: torchs)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(cli.os, "environ", dict(cli.os.environ))
    cli._share_cores(servers, num_workers)
    assert set_to == ([] if expected is None else [expected])
    assert cli.os.environ.get("OMP_NUM_THREADS") == (None if expected is None else str(expected))


def test_a_number_that_a_person_has_set_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("it was set"))
    cli._share_cores("127.0.0.1:50051", 4)
