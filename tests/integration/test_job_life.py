"""The life of a job over real processes: waiting, running, suspended, ended."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import grpc
import pytest
import torch

import ps_worker as ps
from ps_wire import errors
from ps_wire.access.channel import CLIENT
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub

from .processes import LIMIT_S, Start, ended
from .raw import Stream
from .servers import Servers, fresh_job, until
from .team import hearing, join, together, train

pytestmark = pytest.mark.integration


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0, momentum=0.5))


def status_of(cluster: Servers, job: str) -> list[pb.WorkerStatus]:
    status = cluster.status(job)
    return [] if status is None else list(status.workers)


def values_of(table: ps.Table) -> torch.Tensor:
    values: torch.Tensor = table.pull().result(LIMIT_S).values["w"]
    return values


def test_waiting_says_who_is_missing_and_ends_at_the_start_limit(
    cluster: Servers, spawn: Start, tmp_path: Path
) -> None:
    """A line names the worker that has not joined; after PS_START_LIMIT the exit code is 69."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, ps_worker as ps\n"
        "with ps.connect() as worker:\n"
        "    worker.table({'w': torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))\n"
    )
    job = fresh_job()
    options = ("--servers", cluster.option, "--job", job, "--num-workers", "3", "--worker", "0")
    worker = spawn("ps-worker", *options, str(script), PS_START_LIMIT="20")
    worker.wait_line("worker 0: waiting for workers 1, 2 to join")
    code, line = ended(worker)
    assert code == 69
    assert f"StartLimitExceeded: job {job} did not start within 20 s (PS_START_LIMIT); waiting for " in line
    assert line.endswith("workers 1, 2 to join")
    cluster.wait_state(job, None)  # nobody is left and nothing has begun: it is forgotten


def test_all_start_from_the_weights_of_worker_0(cluster: Servers) -> None:
    """Whoever joins first: the starter is worker 0, for tensors, modules and buffers alike."""
    last_first = [threading.Event() for _ in range(3)]
    last_first[2].set()
    job = fresh_job()

    def one(rank: int) -> tuple[torch.Tensor, ...]:
        assert last_first[rank].wait(LIMIT_S)
        with join(cluster, job, num_workers=3, worker=rank) as worker:
            if rank:
                last_first[rank - 1].set()
            table = worker.table({"w": torch.full((100,), float(rank + 5))}, optimizer=ps.SGD(lr=1.0))
            model = torch.nn.BatchNorm1d(3)
            with torch.no_grad():
                model.weight.fill_(rank + 7)
                model.running_mean.fill_(rank + 9)
            worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
            return values_of(table), model.weight.detach().clone(), model.running_mean.clone()

    for table, weight, mean in together([lambda rank=rank: one(rank) for rank in range(3)]):
        assert (table == 5).all()
        assert (weight == 7).all()
        assert (mean == 9).all()


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_suspended_job_goes_on_where_its_workers_left_it(
    cluster: Servers, caplog: pytest.LogCaptureFixture, consistency: str
) -> None:
    """All leave before finishing; new ones continue from the same weights, momentum and step, and say so."""
    job = fresh_job()

    def steps(worker: ps.Worker, count: int) -> tuple[int, torch.Tensor]:
        table = table_of(worker)
        both.wait(LIMIT_S)
        began, start = table.step, values_of(table)
        for step in range(count):
            table.push({"w": torch.full((5000,), 1.0 + worker.rank + began + step)}).result(LIMIT_S)
            values_of(table)
        return began, start

    def read_last(worker: ps.Worker) -> torch.Tensor:
        table = table_of(worker)
        both.wait(LIMIT_S)
        table.push({"w": torch.ones(5000)})
        worker.finish()
        return values_of(table)

    both = threading.Barrier(2)  # whoever comes first goes on: here they wait for each other

    train(cluster, lambda worker: steps(worker, 3), num_workers=2, consistency=consistency, job=job)
    cluster.wait_state(job, "suspended")
    with caplog.at_level(logging.INFO, "ps_worker"):
        again = train(
            cluster, lambda worker: steps(worker, 0), num_workers=2, consistency=consistency, job=job
        )
    assert f"job {job} is under way: this worker goes on from its weights and steps" in caplog.text
    assert [began for began, _ in again] == [3, 3]
    assert torch.equal(again[0][1], again[1][1])
    assert (again[0][1] != 0).all()
    cluster.wait_state(job, "suspended")
    finals = train(cluster, read_last, num_workers=2, consistency=consistency, job=job)
    assert torch.equal(finals[0], finals[1])
    cluster.wait_state(job, "ended")
    if consistency == "bsp":
        weights, momentum = 0.0, 0.0
        for gradient in (1.5, 2.5, 3.5, 1.0):
            momentum = 0.5 * momentum + gradient
            weights -= momentum
        assert (finals[0] == weights).all()
    for rank in (0, 1):
        assert cluster.ledger(0, job, rank).applied == 4 * cluster.table(0, job).partitions


def test_a_suspended_job_takes_no_other_tables(cluster: Servers) -> None:
    """Who goes on must bring the model that the job has."""
    job = fresh_job()
    train(cluster, table_of, num_workers=1, consistency="bsp", job=job)
    cluster.wait_state(job, "suspended")
    with (
        join(cluster, job) as worker,
        pytest.raises(errors.TableMismatch, match=r"shape of parameter 'w': the job has \(5000,\)"),
    ):
        worker.table({"w": torch.zeros(4999)}, optimizer=ps.SGD(lr=1.0, momentum=0.5))


def test_an_ended_job_gives_its_final_weights_and_exit_code_0(
    cluster: Servers, spawn: Start, tmp_path: Path
) -> None:
    """A join gets an empty loader and the final weights and buffers; the remedy is named."""
    script, out = tmp_path / "train.py", tmp_path / "final.safetensors"
    script.write_text(
        "import sys, torch, safetensors.torch, ps_worker as ps\n"
        "dataset = torch.utils.data.TensorDataset(torch.ones(64, 3))\n"
        "with ps.connect() as worker:\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))\n"
        "    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)\n"
        "    steps = 0\n"
        "    for (x,) in worker.loader(dataset, batch_size=8):\n"
        "        model(x + torch.rand(len(x), 3)).square().sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "        steps += 1\n"
        "    worker.finish()\n"
        "    print('steps', steps)\n"
        "    safetensors.torch.save_file(model.state_dict(), sys.argv[1])\n"
    )
    job = fresh_job()
    command = ("ps-worker", "--servers", cluster.option, "--job", job, str(script), str(out))
    first = spawn(*command)
    assert ended(first) == (0, "steps 8"), first.text
    assert cluster.status(job).state == "ended"
    weights = out.read_bytes()
    out.unlink()
    second = spawn(*command)
    assert ended(second) == (0, "steps 0"), second.text
    assert f"job {job} has ended" in second.text
    assert f"take another --job, or drop this one: ps-lab job drop {job}" in second.text
    assert out.read_bytes() == weights
    with join(cluster, job) as late:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
        optimizer = late.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        assert late.ended
        with pytest.raises(errors.UsageError, match="take another --job"):
            optimizer.step()


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1"])
def test_a_worker_joins_in_mid_run(cluster: Servers, consistency: str) -> None:
    """Under a number that has become free, at the step that the job is at; those who train go on."""
    job = fresh_job()
    left, joined = threading.Event(), threading.Event()

    def begins(worker: ps.Worker) -> int:
        table = table_of(worker)
        for _ in range(3):
            table.push({"w": torch.ones(5000)}).result(LIMIT_S)
            values_of(table)
        if worker.rank == 1:
            left.set()
            return table.step
        while not joined.is_set():
            table.push({"w": torch.ones(5000)})
            values_of(table)
        worker.finish()
        return table.step

    def comes() -> tuple[int, torch.Tensor]:
        assert left.wait(LIMIT_S)
        until(lambda: "left" in {entry.state for entry in status_of(cluster, job)}, "one has left")
        with join(cluster, job, num_workers=2, consistency=consistency) as worker:
            assert worker.rank == 1
            table = table_of(worker)
            began = table.step
            for _ in range(3):
                table.push({"w": torch.ones(5000)})
                values_of(table)
            joined.set()
            worker.finish()
            return began, values_of(table)

    body = [lambda: train(cluster, begins, num_workers=2, consistency=consistency, job=job), comes]
    (first, _), (began, final) = together(body)
    assert 3 <= began <= first
    assert (final < 0).all()
    cluster.wait_state(job, "ended")


def test_a_range_of_workers_starts_with_its_least(cluster: Servers) -> None:
    """And takes whoever comes later, up to its most; the first to arrive brings the weights."""
    job = fresh_job()
    started = threading.Event()

    def one(worker: ps.Worker) -> float:
        table = worker.table({"w": torch.full((5000,), 7.0)}, optimizer=ps.SGD(lr=1.0))
        if worker.rank == 1:
            started.set()
        worker.finish()
        return float(values_of(table).unique())

    def run(number: int) -> float:
        assert number < 2 or started.wait(LIMIT_S)
        with join(cluster, job, num_workers="2:3", worker=number) as worker:
            return one(worker)

    assert together([lambda number=number: run(number) for number in range(3)]) == [7.0] * 3
    cluster.wait_state(job, "ended")


def test_finishing_says_whom_it_waits_for(cluster: Servers) -> None:
    """A worker without more data names the others; they all end with the same weights."""

    def body(worker: ps.Worker) -> torch.Tensor:
        table = table_of(worker)
        if worker.rank == 1:
            assert waiting.wait(LIMIT_S)
            table.push({"w": torch.ones(5000)})
        worker.finish()
        return values_of(table)

    with hearing("waiting for worker 1 (host", "to finish") as waiting:
        first, second = train(cluster, body, num_workers=2, consistency="bsp")
    assert (first == -1).all()
    assert torch.equal(first, second)


def test_a_job_that_never_began_is_forgotten(cluster: Servers) -> None:
    """Also when its last stream ends long after its worker has left: failed starts fill no service."""
    job = fresh_job()
    with grpc.insecure_channel(cluster.addresses[0], options=CLIENT) as channel:
        stream = Stream(CoordinatorStub(channel).Member)
        wanted = spec_pb2.Job(name=job, consistency="bsp", num_workers=2)
        stream.send(pb.MemberRequest(join=pb.Join(protocol=PROTOCOL, job=wanted)))
        assert next(stream.call).WhichOneof("kind") == "joined"
        stream.send(pb.MemberRequest(leave=pb.Leave(reason="")))
        assert next(stream.call).WhichOneof("kind") == "left"
        for _ in range(100):  # what follows from its leaving takes fewer round trips
            cluster.status(job)
        stream.close()
    cluster.wait_state(job, None)
