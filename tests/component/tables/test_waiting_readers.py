"""Readers that come before their job, and what they are told of its end."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import JobUnknown
from ps_worker.readers import reader as readers
from tests.component.readers import reader_of
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S, until


def trains(started: threading.Event | None = None, enough: threading.Event | None = None):
    """A worker's body: one step at least."""

    def body(worker: ps.Worker) -> torch.Tensor:
        model = torch.nn.Linear(3, 2)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        while True:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            if started is not None:
                started.set()
            if enough is None or enough.is_set():
                break
        worker.finish()
        return model.weight.detach().clone()

    return body


class Reads:
    """A reader in a thread, which has waited once when `waits` is set."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.outcome: queue.SimpleQueue[tuple[ps.Cut, torch.Tensor] | ps.PsError] = queue.SimpleQueue()
        self._cluster, self._job = cluster, job
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            with ps.connect(
                role="reader", servers=self._cluster.servers, job=self._job, wait=LIMIT_S
            ) as reader:
                model = torch.nn.Linear(3, 2)
                cut = reader.read(model)
                self.outcome.put((cut, model.weight.detach()))
        except ps.PsError as error:
            self.outcome.put(error)


@pytest.fixture(name="waited")
def _waited(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns once a reader has found that its job is not there, or has not started."""
    waits: queue.SimpleQueue[None] = queue.SimpleQueue()
    tried = readers.Reader._end_stream

    def end_stream(self: readers.Reader) -> None:
        tried(self)
        waits.put(None)

    monkeypatch.setattr(readers.Reader, "_end_stream", end_stream)
    monkeypatch.setattr(readers, "AGAIN_S", 0.01)
    return lambda: waits.get(timeout=LIMIT_S)


def test_a_reader_waits_for_a_job_that_is_not_there_and_then_for_its_start(cluster, waited, caplog):
    """Nobody has joined; then one of two workers has; then both train, and it reads."""
    job, one, enough = fresh_name(), threading.Event(), threading.Event()
    with caplog.at_level(logging.INFO, "ps_worker"):
        reads = Reads(cluster, job)
        waited()

        def worker(rank: int) -> None:
            if rank == 1:
                assert one.wait(LIMIT_S)
            with ps.connect(
                servers=cluster.servers, job=job, num_workers=2, worker=rank, consistency="asp"
            ) as it:
                one.set()
                if rank == 1:
                    waited()  # at least once after the first has joined
                trains(enough=enough)(it)

        threads = [threading.Thread(target=worker, args=(rank,), daemon=True) for rank in range(2)]
        for thread in threads:
            thread.start()
        cut, _ = reads.outcome.get(timeout=LIMIT_S)
        enough.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not cut.ended
    assert set(cut.clocks) <= {0, 1}
    said = [record.getMessage() for record in caplog.records if "waiting for job" in record.getMessage()]
    assert said == [f"reader: waiting for job {job}, up to {LIMIT_S:g} s (PS_WAIT)"]


def test_a_reader_that_was_not_told_to_wait_does_not(cluster):
    with pytest.raises(JobUnknown, match=r"a reader comes after the workers$"):
        reader_of(cluster, fresh_name())


def test_when_the_wait_is_over_the_reader_says_how_long_it_was(cluster):
    with pytest.raises(JobUnknown, match=r"a reader comes after the workers; waited for 0.01 s \(PS_WAIT\)"):
        ps.connect(role="reader", servers=cluster.servers, job=fresh_name(), wait=0.01)


def test_a_cut_says_that_the_job_has_ended(cluster):
    """It is of the final weights then; before, it is not."""
    job, started, enough = fresh_name(), threading.Event(), threading.Event()
    weights: list[torch.Tensor] = []
    running = threading.Thread(
        target=lambda: weights.extend(run_workers(cluster, trains(started, enough), job=job)), daemon=True
    )
    running.start()
    assert started.wait(LIMIT_S)
    with reader_of(cluster, job) as reader:
        model = torch.nn.Linear(3, 2)
        assert not reader.read(model).ended
        enough.set()
        until(lambda: reader.read(model).ended, "the job has ended")
        running.join(LIMIT_S)
        assert torch.equal(model.weight, weights[0])
        assert reader.read(model).ended
