"""Readers of buffers, of parameters without an optimizer, and of several tables of one model."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import ps_server.coordinator.readers
import ps_server.coordinator.state_store
import ps_worker as ps
from ps_wire.errors import JobUnknown
from tests.component.readers import reader_of
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S, until


class Normed(torch.nn.Module):
    """With a buffer, and a parameter without an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(10))
        self.fixed = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("steps", torch.zeros(1))


def test_buffers_are_those_of_a_live_worker_at_its_next_step(cluster: Cluster):
    job, mine = fresh_name(), Normed()
    read: list[tuple[ps.Cut, Normed]] = []

    def reads() -> None:
        with reader_of(cluster, job) as reader:
            model = Normed()
            read.append((reader.read(model), model))

    def body(worker: ps.Worker) -> None:
        with torch.no_grad():
            mine.fixed.fill_(5.0)
        optimizer = worker.wrap(torch.optim.SGD([mine.w], lr=0.1), mine)
        thread = threading.Thread(target=reads, daemon=True)
        thread.start()
        while not read:
            mine.steps += 1
            mine.w.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        thread.join(LIMIT_S)
        worker.finish()

    run_workers(cluster, body, job=job)
    (cut, model) = read[0]
    assert cut.buffers == "live"
    assert model.steps.item() == cut.buffers_step
    assert torch.equal(model.fixed, torch.full((3,), 5.0))
    with reader_of(cluster, job) as reader:
        assert reader.read(model).buffers == "final"
    assert torch.equal(model.steps, mine.steps)
    assert torch.equal(model.w, mine.w)


def test_a_worker_that_goes_is_not_waited_for_the_next_one_is_asked_for_buffers(cluster: Cluster):
    """The lowest takes no step any more: it was asked, and finishes."""
    job, asked = fresh_name(), threading.Event()
    read: list[tuple[ps.Cut, Normed]] = []

    def reads() -> None:
        with reader_of(cluster, job) as reader:
            model = Normed()
            read.append((reader.read(model), model))

    reading = threading.Thread(target=reads, daemon=True)

    def body(worker: ps.Worker) -> None:
        mine = Normed()
        optimizer = worker.wrap(torch.optim.SGD([mine.w], lr=0.1), mine)
        if worker.rank == 0:
            reading.start()
            until(lambda: link_of(worker).presence.membership.live_wanted)
            asked.set()
        else:
            assert asked.wait(LIMIT_S)
            mine.steps.fill_(7.0)
            until(lambda: link_of(worker).presence.membership.live_wanted)
            mine.w.sum().backward()
            optimizer.step()
        worker.finish()

    run_workers(cluster, body, num_workers=2, consistency="asp", job=job)
    reading.join(LIMIT_S)
    assert (read[0][0].buffers, read[0][0].buffers_step) == ("live", 1)
    assert read[0][1].steps.item() == 7.0


def test_buffers_that_the_servers_refuse_stop_no_worker(cluster: Cluster, monkeypatch: Any):
    """They do not fit: the reader hears that it came to nothing, the worker trains on."""
    monkeypatch.setattr(ps_server.coordinator.readers, "LIVE_LIMIT_S", 0.05)
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        mine = Normed()
        optimizer = worker.wrap(torch.optim.SGD([mine.w], lr=0.1), mine)
        errors: list[BaseException] = []

        def reads() -> None:
            with reader_of(cluster, job) as reader:
                try:
                    reader.read(Normed(), limit_s=0.5)
                except ps.PsError as error:
                    errors.append(error)

        with monkeypatch.context() as small:
            small.setattr(ps_server.coordinator.state_store, "MAX_JOB_BYTES", 10)
            thread = threading.Thread(target=reads, daemon=True)
            thread.start()
            while thread.is_alive():
                mine.w.sum().backward()
                optimizer.step()
                thread.join(0.01)
        assert [type(error) for error in errors] == [ps.CutAborted]
        worker.finish()

    run_workers(cluster, body, job=job)


class Two(torch.nn.Module):
    """Its second part gets an optimizer later."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(10))
        self.later = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("steps", torch.zeros(1))


def test_each_table_of_a_model_is_read_by_its_number(cluster: Cluster):
    """The second one is of a param-group that was added in mid-run, of bfloat16 with a float32 master."""
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        mine, model = Two(), Two()
        optimizer = worker.wrap(torch.optim.SGD([mine.first], lr=1.0), mine)
        optimizer.add_param_group({"params": [mine.later], "lr": 0.5})
        (mine.first.sum() + mine.later.sum()).backward()
        optimizer.step()
        mine.steps += 1
        worker.finish()
        with reader_of(cluster, job) as reader:
            cut = reader.read(model, table=1)
            assert (cut.version, cut.buffers) == (1, "none")
            assert torch.equal(model.later, mine.later)
            assert torch.equal(model.first, torch.zeros(10))
            with pytest.raises(JobUnknown, match="no table 2"):
                reader.read(model, table=2)
            assert reader.read(model).buffers == "final"
        assert torch.equal(model.first, mine.first)
        assert torch.equal(model.steps, mine.steps)

    run_workers(cluster, body, job=job)
