"""Calls of workers while the coordinator is on its way back: they are made again, and training goes on."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator.snapshots.saved_jobs import SavedJobs
from ps_wire.errors import ServerNotReady, ServerUnreachable
from tests.component.service import fresh_name
from tests.inside import link_of
from tests.taking import Taking
from tests.until import LIMIT_S


@pytest.fixture
def num_durable() -> int:
    return 1


def train(worker: ps.Worker, at_step, at_end_of_epoch) -> None:
    """Two epochs, however often they are gone back in."""
    model = torch.nn.Linear(1, 1)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), model)
    loader = worker.loader(torch.utils.data.TensorDataset(torch.arange(400.0).reshape(400, 1)), batch_size=8)
    for _ in worker.epochs(2):
        for (x,) in loader:
            at_step(worker.step)
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        at_end_of_epoch()
    worker.finish()
    assert worker.step == 100


def note_refusals(worker: ps.Worker, asked: threading.Event) -> None:
    """Sets `asked` when a call of this worker is told to come again."""
    calls = link_of(worker).presence.membership.calls
    ask = calls._ask

    def noted(call):
        try:
            return call()
        except (ServerNotReady, ServerUnreachable):
            asked.set()
            raise

    calls._ask = lambda call: ask(lambda: noted(call))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_loader_that_asks_while_the_coordinator_comes_back_is_answered_later(durable, monkeypatch, how):
    """Whether it goes back to a snapshot, which takes its time, or takes over: the script does not end."""
    job, asked = fresh_name(), threading.Event()
    read = SavedJobs.saved

    def saved(self, name):
        assert asked.wait(LIMIT_S)  # the loader has been told to ask again
        yield from read(self, name)

    def at_step(step):
        if step == 3 and not taking:
            taking.append(Taking(durable.servers, job))
            taking[0].wait_fixed()

    def at_end_of_epoch():
        taking[0].wait()
        if not died:
            died.append(how)
            getattr(durable, how)(0)
            threading.Thread(target=durable.start_again, args=(0,), daemon=True).start()

    taking, died, heard = [], [], []
    with ps.connect(servers=durable.servers, job=job, num_workers=1, on_rollback=heard.append) as worker:
        note_refusals(worker, asked)
        monkeypatch.setattr(SavedJobs, "saved", saved)
        train(worker, at_step, at_end_of_epoch)
    assert len(heard) == (how == "kill")
