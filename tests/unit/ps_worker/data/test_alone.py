"""`ps.connect()` without servers: the service is inside the process; else nothing differs."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ps_worker as ps
import ps_worker.transport.open_service
from ps_server.process.in_process import LocalService
from ps_wire.v1 import coordinator_pb2, shard_pb2
from ps_worker.job.job_link import ALONE
from tests.anew import run_anew
from tests.component.models import Mlp, loss_of
from tests.component.reference import assert_same, seeded
from tests.inside import link_of
from tests.integration.processes import Start
from tests.until import LIMIT_S, until

SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)
STEPS = 6
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.1},
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: Any) -> Iterator[None]:
    """No `PS_*` is set, and each test leaves the threads that it found."""
    for name in [name for name in os.environ if name.startswith("PS_")]:
        monkeypatch.delenv(name)
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), thread


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    for step in range(STEPS):
        loss_of(model, seed, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def plain(model: torch.nn.Module, name: str = "SGD", seed: int = 0) -> torch.nn.Module:
    mine = copy.deepcopy(model)
    train(mine, getattr(torch.optim, name)(mine.parameters(), fused=True, **OPTIMIZERS[name]), seed)
    return mine


def wrapped(worker: ps.Worker, model: torch.nn.Module, name: str = "SGD") -> torch.optim.Optimizer:
    optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])
    return worker.wrap(optimizer, model, buckets=SMALL)


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_alone_gives_the_bytes_of_plain_torch(name: str, consistency: str):
    """Law 9, and law 1 with one worker."""
    model = seeded(Mlp)
    expected = plain(model, name)
    with ps.connect(consistency=consistency) as worker:
        train(model, wrapped(worker, model, name))
        worker.finish()
        stats = worker.stats()
    assert_same(model, expected)
    assert (worker.rank, worker.num_workers) == (0, 1)
    assert (stats.step, stats.staleness.max) == (STEPS, 0)
    assert stats.bytes_pushed > 0


def test_it_says_so_in_one_line(caplog: Any):
    with caplog.at_level(logging.INFO, "ps_worker"), ps.connect():
        pass
    said = [record.getMessage() for record in caplog.records if record.name == "ps_worker"]
    assert said == [f"worker: {ALONE}"]


def test_one_after_the_other_each_has_its_own_service():
    """The second one starts a job of its own, under the same name."""
    for seed in range(2):
        model = seeded(Mlp, seed)
        expected = plain(model, seed=seed)
        with ps.connect() as worker:
            train(model, wrapped(worker, model), seed)
        assert_same(model, expected)


def test_two_at_once_do_not_meet():
    models = [seeded(Mlp, seed) for seed in range(2)]
    expected = [plain(model, seed=seed) for seed, model in enumerate(models)]
    with ps.connect() as first, ps.connect() as second:
        optimizers = [wrapped(worker, model) for worker, model in zip((first, second), models, strict=True)]
        for step in range(STEPS):
            for seed, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                loss_of(model, seed, step).backward()
                optimizer.step()
                optimizer.zero_grad()
    for model, reference in zip(models, expected, strict=True):
        assert_same(model, reference)


def test_inside_a_running_event_loop():
    """As in a notebook's cell."""
    model = seeded(Mlp)
    expected = plain(model)

    async def cell() -> None:
        with ps.connect() as worker:
            train(model, wrapped(worker, model))
            worker.finish()

    asyncio.run(cell())
    assert_same(model, expected)


def test_nothing_is_left_after_leave():
    """The fixture looks at the threads; the memory is free although the worker object lives on."""
    worker = ps.connect()
    table = worker.table({"w": torch.zeros(100)}, optimizer=ps.SGD(lr=1.0))
    table.push({"w": torch.ones(100)}).result(LIMIT_S)
    shard = weakref.ref(link_of(worker).presence.service._shard)
    cells = [weakref.ref(cell) for cell in shard().table("default", 0).cells()]
    assert cells
    worker.leave()
    worker.leave()
    # The thread of its connection may not be at its end yet.
    until(lambda: gc.collect() is not None and shard() is None, "the shard is free")
    assert all(cell() is None for cell in cells)
    with pytest.raises(ps.UsageError, match="has left"):
        worker.stats()


def test_torchs_threads_stay_as_they_were():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        with ps.connect() as worker:
            table = worker.table({"w": torch.zeros(100)}, optimizer=ps.SGD(lr=1.0))
            table.push({"w": torch.ones(100)}).result(LIMIT_S)
            seen.append(torch.get_num_threads())
            thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            thread.start()
            thread.join()
        seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert seen == [3, 3, 3]


def test_a_refusal_of_the_service_is_the_workers_error_and_ends_the_service():
    model = seeded(Mlp)
    lbfgs = torch.optim.LBFGS(model.parameters())
    with ps.connect() as worker, pytest.raises(ps.ConfigurationRefused, match="LBFGS"):
        worker.wrap(lbfgs, model)


def test_a_connection_that_is_cut_is_made_again():
    """The same replay as over a network: every push counts once."""
    with ps.connect(consistency="asp") as worker:
        table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        for _ in range(STEPS):
            table.push({"w": torch.full((3000,), -1.0)})
            link_of(worker).presence.connections[0]._call.cancel()
            values = table.pull().result(LIMIT_S).values["w"]
        assert torch.equal(values, torch.full((3000,), float(STEPS)))


def test_a_missing_entry_point_says_what_to_do(monkeypatch: Any):
    monkeypatch.setattr(ps_worker.transport.open_service, "entry_points", lambda group: ())
    with pytest.raises(ps.UsageError, match=r"install torch-parameter-server again .* or set PS_SERVERS"):
        ps.connect()


def test_calls_inside_the_process_raise_what_the_server_raises():
    service = LocalService()
    request = shard_pb2.OpenRequest(job="nobody", worker=0, incarnation=1)
    with pytest.raises(ps.PsError, match="does not know job 'nobody'"):
        service.shard(0).Open(request, timeout=LIMIT_S)
    key = coordinator_pb2.StateKey(job="nobody", name="final")
    with pytest.raises(ps.PsError, match="no job 'nobody'"):
        next(service.coordinator.GetState(coordinator_pb2.GetStateRequest(key=key), timeout=LIMIT_S))
    with pytest.raises(AttributeError):
        _ = service.coordinator.Describe
    service.close()
    service.close()
    with pytest.raises(ps.ServerUnreachable, match="has stopped"):
        service.shard(0).Open(request)


SCRIPT = """
import sys
import torch
import ps_worker as ps

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
batches = torch.randn(5, 8, 20)

def train(optimizer):
    for batch in batches:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]

start = {name: value.clone() for name, value in model.state_dict().items()}
expected = train(torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))
model.load_state_dict(start)
worker = ps.connect()
got = train(worker.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model))
assert all(map(torch.equal, got, expected))
if sys.argv[1:] == ["finish"]:
    worker.finish()
    worker.leave()
if sys.argv[1:] == ["interrupt"]:
    import _thread, os, signal
    with worker:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            train(steps_of(worker).optimizers[0])
print("done")
"""


def run_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return run_anew(str(path), *arguments)


@pytest.mark.integration
def test_a_plain_script_runs_alone_and_just_ends(tmp_path: Path):
    """`python train.py`, nothing else: it neither finishes nor leaves."""
    ended = run_script(tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert ended.stderr == f"worker: {ALONE}\n"


@pytest.mark.integration
def test_a_plain_script_runs_alone_and_finishes(spawn: Start, tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    ended = spawn(sys.executable, str(path), "finish")
    assert (ended.wait_end(), ended.lines) == (0, [f"worker: {ALONE}", "done"])


@pytest.mark.integration
def test_ctrl_c_ends_it_as_it_ends_any_script(tmp_path: Path):
    ended = run_script(tmp_path, "interrupt")
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.startswith(f"worker: {ALONE}\nTraceback")
    assert ended.stderr.count("Traceback") == 1, ended.stderr
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_worker_that_leaves_at_once_is_no_stranger(caplog: pytest.LogCaptureFixture):
    """Its connection may come when it has left: nothing that a person should read."""
    for _ in range(20):
        with ps.connect():
            pass
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
