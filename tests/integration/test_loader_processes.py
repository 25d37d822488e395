"""Workers whose DataLoaders have processes of their own: what these get, and what they must not keep."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_lab.cluster.process_handle import ProcessHandle
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import can_overlay
from tests.faults import limits

from .processes import LIMIT_S, Process, Start, ended
from .servers import Servers, fresh_job, until

pytestmark = pytest.mark.integration

TRAIN = """
import os, threading, warnings, torch, ps_worker as ps

warnings.simplefilter("ignore")  # of torch, for pin_memory without a GPU and more processes than cores

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index) ** 2])

def train(worker, model, optimizer, data):
    loader, plain = worker.loader(Squares(), batch_size=5, **data), worker.loader(Squares(), batch_size=5)
    for _ in worker.epochs(2):
        for (x, y), (expected, _) in zip(loader, plain, strict=True):
            assert torch.equal(x, expected), (x, expected)
            (model(x / 40) - y / 1600).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

def main():
    with ps.connect() as worker:
        model = torch.nn.Linear(1, 1)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for data in (
            {"num_workers": 2, "multiprocessing_context": "fork"},
            {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True,
             "pin_memory": True},
            {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
            {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True},
        ):
            train(worker, model, optimizer, data)
            print(data["multiprocessing_context"], "steps", worker.step)
        worker.finish()

if __name__ == "__main__":
    main()
"""

HELD = """
import os, sys, time, torch, ps_worker as ps

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        print("child", os.getpid(), flush=True)
        while True:
            time.sleep(1)

with ps.connect() as worker:
    worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))
    next(iter(worker.loader(Stuck(), num_workers=1, multiprocessing_context="fork")))
"""

FORKED = """
import os, sys, torch, ps_worker as ps

with ps.connect() as worker:
    child = os.fork()
    if child == 0:
        try:
            ps.connect()
        except ps.UsageError as refused:
            print("child:", refused.message, flush=True)
        sys.exit(7)  # leaves the with block, and runs what atexit knows
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    table = worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))
    table.push({"w": torch.ones(5000)}).result(20)
    print("parent is at", table.pull().result(20).values["w"].sum().item())
"""

GARBAGE = """
import gc, os, ps_worker as ps

class Cycle:
    def __init__(self):
        self.me, self.made_by = self, os.getpid()

    def __del__(self):
        print("collected", "here" if os.getpid() == self.made_by else "in the child", flush=True)

with ps.connect() as worker:
    gc.collect()
    gc.disable()
    Cycle()
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    gc.collect()
"""

MAPPED = """
import os, torch, ps_worker as ps

with ps.connect() as worker:
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, overlap=False)
    values = model.weight.detach().numpy()
    begin, result = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin[0], 1)
        os.write(result[1], values.tobytes())
        os._exit(0)
    for step in range(2):
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    os.write(begin[1], b"!")
    shown = os.read(result[0], 1 << 16)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("it saw", "this version" if shown == model.weight.detach().numpy().tobytes() else "another")
"""


def options_of(servers: Servers, job: str) -> tuple[str, ...]:
    return ("ps-worker", "--servers", servers.option, "--job", job)


def sockets_to(servers: Servers, pid: int) -> set[str]:
    """Inodes of a process's TCP connections to the servers."""
    ports = {f"{int(address.rpartition(':')[2]):04X}" for address in servers.addresses}
    wanted = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[2].rpartition(":")[2] in ports:
                wanted.add(f"socket:[{fields[9]}]")
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(entry.readlink()))
    return held & wanted


def data_over(servers: Servers, job: str) -> list[str]:
    """Carriers of the data connections that shards have of a job; empty where one has ended."""
    return [worker.carrier for shard in (0, 1) for worker in servers.table(shard, job).workers]


def test_loader_processes_of_every_kind_train_and_end(cluster: Servers, spawn: Start, tmp_path: Path) -> None:
    """Forked, spawned and from a fork server, persistent and not: the batches are those without processes."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    process = spawn(*options_of(cluster, fresh_job()), str(script))
    assert process.wait_end() == 0, process.text
    said = ("data goes over", "waiting for", "weights are copied")  # the latter two on a busy machine
    printed = [line for line in process.lines if not any(it in line for it in said)]
    assert printed == ["fork steps 16", "fork steps 32", "spawn steps 48", "forkserver steps 64"]


@pytest.fixture(params=["uds", "tcp"])
def stuck(
    request: pytest.FixtureRequest, cluster: Servers, spawn: Start, tmp_path: Path
) -> Iterator[tuple[str, Process, ProcessHandle]]:
    """A job, its worker, and a DataLoader's process which lives on."""
    script, job = tmp_path / "held.py", fresh_job()
    script.write_text(HELD)
    parent = spawn(*options_of(cluster, job), "--carrier", request.param, str(script))
    child = ProcessHandle(int(parent.wait_line(r"child (\d+)")[1]))
    yield job, parent, child
    child.send(signal.SIGKILL)
    assert child.wait(LIMIT_S)
    child.close()


def test_a_forked_loader_process_holds_no_connection(
    cluster: Servers, stuck: tuple[str, Process, ProcessHandle]
) -> None:
    """Its parent has them, and after its SIGKILL the servers see them end while the child lives."""
    job, parent, child = stuck
    assert len(sockets_to(cluster, parent.pid)) >= 3  # control: to the coordinator, and to each shard
    assert sockets_to(cluster, child.pid) == set()
    assert all(data_over(cluster, job))
    assert [worker.state for worker in cluster.status(job).workers] == ["running"]
    parent.kill()
    until(lambda: not any(data_over(cluster, job)), "its data connections have ended")
    assert not child.wait(0.0)


def test_a_forked_child_neither_leaves_nor_joins(cluster: Servers, spawn: Start, tmp_path: Path) -> None:
    """Leaving its copy of the with block does nothing, and connecting is a named error."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    process = spawn(*options_of(cluster, fresh_job()), str(script))
    assert ended(process) == (0, "parent is at -5000.0"), process.text
    assert "child: this process was forked from process" in process.text
    assert "child ended with 7" in process.text


def test_a_forked_child_does_not_end_its_parents_garbage(
    cluster: Servers, spawn: Start, tmp_path: Path
) -> None:
    """An object of gRPC's would wait there for locks of threads that are not there."""
    script = tmp_path / "garbage.py"
    script.write_text(GARBAGE)
    process = spawn(*options_of(cluster, fresh_job()), str(script))
    assert process.wait_end() == 0, process.text
    assert "child ended with 0" in process.text
    assert "collected here" in process.text
    assert "collected in the child" not in process.text


@pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")
def test_a_forked_child_sees_later_versions_in_its_parents_parameters(
    cluster: Servers, spawn: Start, tmp_path: Path
) -> None:
    """What it got at the fork is as much as a tensor that is kept: no copy."""
    script = tmp_path / "mapped.py"
    script.write_text(MAPPED)
    process = spawn(*options_of(cluster, fresh_job()), str(script), **limits.MAPPED)
    assert ended(process) == (0, "it saw this version"), process.text
    assert "child ended with 0" in process.text
