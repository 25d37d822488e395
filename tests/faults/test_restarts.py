"""Server processes that die or are stopped, and come back: what becomes of a job that trains meanwhile."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

import ps_worker as ps
from ps_lab.cluster.ports import free_ports
from ps_lab.snapshots import calls as snapshot_calls
from ps_wire.access.access import OPEN
from ps_wire.access.channel import CLIENT
from tests.faults import limits
from tests.faults.restarting import SMALL, STEPS, Restarting, Run
from tests.integration.processes import LIMIT_S, Process, Zygote
from tests.integration.servers import NOT_SERVING, SERVING, Servers, fresh_job, until
from tests.integration.team import join, together
from tests.taking import Taking

pytestmark = [pytest.mark.integration, pytest.mark.fault]

COLUMNS, PLACES = 64, 128
GOES_ON_S = 3.0  # from a server's readiness until training goes on
SLOW = 10.0  # times as long as on an idle machine


@pytest.fixture(scope="module")
def restarting(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarting]:
    """The same servers for all tests here, as far as they are the same."""
    servers = Restarting(zygote.start, tmp_path_factory.mktemp("snapshots"))
    yield servers
    assert servers.close() == [0, 0], "\n".join(process.text for process in servers.processes)


class Killing:
    """Takes a snapshot while training goes on, kills a server some steps later, and starts it again."""

    def __init__(self, servers: Restarting, shard: int) -> None:
        self._servers, self._shard = servers, shard
        self._taking: Taking | None = None
        self.ready_s: float | None = None

    def at_step(self, job: str, step: int) -> None:
        if step == 2 and self._taking is None:
            self._taking = Taking(self._servers.addresses[0], job)
            self._taking.wait_fixed()
        if step == STEPS - 2 and self._taking is not None and self.ready_s is None:
            self._taking.wait()
            self._servers.processes[self._shard].kill()
            self.ready_s = self._servers.again(self._shard)


@pytest.mark.parametrize("shard", [1, 0])
def test_after_kill_9_of_a_server_all_go_back_to_the_snapshot_and_end_with_the_same_bits(
    restarting: Restarting, shard: int
) -> None:
    """A shard and the coordinator alike; each worker is told once, and training goes on within seconds."""
    undisturbed = Run(restarting, lambda _job, _step: None).train()
    killing = Killing(restarting, shard)
    run = Run(restarting, killing.at_step)
    assert all(map(torch.equal, run.train(), undisturbed))
    assert len(run.undone[0]) == 1
    assert run.undone[0] == run.undone[1]
    assert killing.ready_s is not None
    assert min(at for at in run.stepped_s if at > killing.ready_s) - killing.ready_s < GOES_ON_S * SLOW


class Counting:
    """Two workers without a common clock: each weight counts how often pushes were applied, exactly.

    Legend: C = columns, over all partitions of both shards; P = places of a worker's steps. A push of step t
    adds 1 at place t mod P of its worker, in every column, so that a push that is lost or applied twice, and
    a shard that went back to another cut than the other one, leave a trace in whole numbers.
    """

    def __init__(self, servers: Restarting, consistency: str, shard: int) -> None:
        self.job = fresh_job()
        self.undone: list[list[int]] = [[], []]
        self.came = threading.Event()  # a reader, and has read
        self.read = threading.Event()  # what readers have come for
        self._servers, self._consistency, self._shard = servers, consistency, shard
        self._taken = threading.Event()
        self._left = 3  # steps of worker 0 until the server dies

    def train(self) -> list[tuple[int, torch.Tensor]]:
        """Returns each worker's steps and final weights, shape (C, 2, P)."""
        *trained, _ = together([lambda: self._train(0), lambda: self._train(1), self._read])
        return trained

    def _train(self, rank: int) -> tuple[int, torch.Tensor]:
        options = {"num_workers": 2, "worker": rank, "consistency": self._consistency}
        with join(self._servers, self.job, **options) as worker:
            start = {"w": torch.zeros(COLUMNS, 2, PLACES)}
            table = worker.table(start, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
            least = 0
            while not (self.undone[rank] and self.read.is_set() and table.step >= least):
                if rank == 0:
                    self._at_step(table.step)
                try:
                    one = torch.zeros(COLUMNS, 2, PLACES)
                    one[:, rank, table.step % PLACES] = -1.0
                    table.push({"w": one})
                    table.pull().result(LIMIT_S)
                except ps.RolledBack as error:
                    self.undone[rank].append(error.step)
                    least = error.step + STEPS
            worker.finish()
            return table.step, table.pull().result(LIMIT_S).values["w"]

    def _at_step(self, step: int) -> None:
        if step == 2 and not self.undone[0]:
            threading.Thread(target=self._take, daemon=True).start()
        if self._taken.is_set() and self.came.is_set() and self._left:
            self._left -= 1
            if not self._left:
                self._servers.processes[self._shard].kill()
                self._servers.again(self._shard)

    def _take(self) -> None:
        list(snapshot_calls.take(self._servers.addresses[0], self.job, OPEN))
        self._taken.set()

    def _read(self) -> None:
        """One reader is there before, and told; another comes after the rollback, while both train on."""
        try:
            until(self._runs, "the job runs")
            with self._reader() as before:
                check_read(before)
                self.came.set()
                until(lambda: all(self.undone), "both workers have gone back")
                with pytest.raises((ps.RolledBack, ps.ConnectionLost)):
                    before.read(Counted())
            with self._reader() as after:
                check_read(after)
        finally:
            self.read.set()

    def _runs(self) -> bool:
        status = self._servers.status(self.job)
        return status is not None and status.state == "running"

    def _reader(self) -> ps.Reader:
        return ps.connect(role="reader", servers=self._servers.option, job=self.job)


class Counted(torch.nn.Module):
    """What `Counting` trains."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(COLUMNS, 2, PLACES))


def check_read(reader: ps.Reader) -> None:
    """That a cut has the pushes below its clocks."""
    model = Counted()
    cut = reader.read(model)
    check_counts(model.w.detach(), cut.clocks)


def check_counts(weights: torch.Tensor, clocks: Mapping[int, int]) -> None:
    """That each push below these clocks is in the weights once, shape (C, 2, P), and no other one."""
    for worker, clock in clocks.items():
        counts = torch.bincount(torch.arange(clock) % PLACES, minlength=PLACES).float()
        assert torch.equal(weights[:, worker], counts.expand(COLUMNS, PLACES))


@pytest.mark.parametrize(("consistency", "shard"), [("ssp:1", 0), ("ssp:1", 1), ("asp", 0), ("asp", 1)])
def test_without_a_barrier_too_all_go_back_together_and_every_push_counts_once(
    restarting: Restarting, consistency: str, shard: int
) -> None:
    """Each worker goes back to its own clock of the cut; what it takes again is applied once."""
    run = Counting(restarting, consistency, shard)
    steps, weights = zip(*run.train(), strict=True)
    assert [len(undone) for undone in run.undone] == [1, 1]
    assert torch.equal(*weights)
    check_counts(weights[0], dict(enumerate(steps)))


def test_a_rolling_restart_loses_nothing(restarting: Restarting) -> None:
    """SIGTERM ends each server with 0, one after the other; nobody is rolled back, the bits are the same."""
    stops = {3: 1, 6: 0, 9: 1}

    def at_step(_job: str, step: int) -> None:
        shard = stops.pop(step, None)
        if shard is not None:
            restarting.processes[shard].signal(signal.SIGTERM)
            assert restarting.processes[shard].wait_end() == 0
            restarting.again(shard)

    undisturbed = Run(restarting, lambda _job, _step: None).train()
    run = Run(restarting, at_step)
    assert all(map(torch.equal, run.train(), undisturbed))
    assert run.undone == [[], []]


def test_a_model_and_its_loader_go_on_to_the_bit_when_the_coordinator_is_restarted_in_an_epoch(
    restarting: Restarting,
) -> None:
    """It hands on the epoch that is under way: every sample is used once, and accounted for."""

    def train(restarts: bool) -> tuple[list[float], torch.Tensor]:
        model, used = torch.nn.Linear(1, 1), []
        for parameter in model.parameters():
            torch.nn.init.ones_(parameter)
        with join(restarting, fresh_job(), num_workers=1, worker=0) as worker:
            optimizer = worker.wrap(torch.optim.AdamW(model.parameters(), lr=0.1), model)
            samples = torch.arange(40.0).reshape(40, 1)
            loader = worker.loader(torch.utils.data.TensorDataset(samples), batch_size=4)
            for _ in worker.epochs(2):
                for (x,) in loader:
                    model(x).square().mean().backward()
                    if restarts and worker.step == 3:
                        restarting.processes[0].signal(signal.SIGTERM)
                        assert restarting.processes[0].wait_end() == 0
                        restarting.again(0)
                    optimizer.step()
                    optimizer.zero_grad()
                    used += x.flatten().tolist()
            worker.finish()
            assert [(use.samples, use.used) for use in worker.stats().epochs if use.over] == [(40, 40)] * 2
        return used, model.weight.detach()

    (used, weight), (expected, whole) = train(restarts=True), train(restarts=False)
    assert used == expected
    assert sorted(used) == sorted(2 * list(map(float, range(40))))
    assert torch.equal(weight, whole)


def test_a_second_sigterm_ends_a_server_at_once(zygote: Zygote) -> None:
    """It does not wait for calls that are under way, here for whoever watches its health."""
    patient = limits.environment(ps_server__process__server__GRACE_S=1000.0)
    servers = Servers(partial(zygote.start, environment=patient), 1)
    (process,) = servers.processes
    with grpc.insecure_channel(servers.addresses[0], options=CLIENT) as channel:
        request = health_pb2.HealthCheckRequest(service="")
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=LIMIT_S)
        assert next(watch).status == SERVING
        process.signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING  # it has heard the first one
        process.signal(signal.SIGTERM)
        assert process.wait_end() == -signal.SIGTERM
    assert "stopping" in process.text
    assert "stopped" not in process.text


def second(restarting: Restarting, zygote: Zygote, shard: int) -> Process:
    """One more process of a shard that has one."""
    (port,) = free_ports(1)
    return zygote.start(
        "ps-server",
        *("--shard", f"{shard}/2", "--port", str(port), *restarting._given),
        *(("--coordinator", restarting.addresses[0]) if shard else ()),
    )


def test_a_second_process_of_a_shard_whose_holder_lives_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """With 78, naming the holder's host and pid; a job that trains does not notice."""
    patient = limits.environment(ps_server__coordinator__fleet__fleet__PROVE_LIMIT_S=100.0)
    restarting = Restarting(partial(zygote.start, environment=patient), tmp_path)
    refused: list[str] = []

    def at_step(_job: str, step: int) -> None:
        if step == STEPS // 2:
            newer = second(restarting, zygote, 1)
            assert newer.wait_end() == 78
            refused.append(newer.lines[-1])

    run = Run(restarting, at_step)
    first, other = run.train()
    assert torch.equal(first, other)
    assert run.undone == [[], []]
    (line,) = refused
    assert f"host {socket.gethostname()}, pid {restarting.processes[1].pid}" in line
    assert restarting.close() == [0, 0]


def test_a_holder_that_does_not_answer_gives_way_and_is_fenced(
    restarting: Restarting, zygote: Zygote
) -> None:
    """A process that hangs, or is cut off; it ends with 78 when it runs on."""
    older = restarting.processes[1]
    older.signal(signal.SIGSTOP)
    newer = second(restarting, zygote, 1)
    newer.wait_line("serving on")
    until(lambda: restarting.status_of_shards()[1] not in ("", restarting.addresses[1]), "it has the shard")
    older.signal(signal.SIGCONT)
    assert older.wait_end() == 78
    assert "another process was started" in older.text
    newer.signal(signal.SIGTERM)
    assert newer.wait_end() == 0
    restarting.again(1)
