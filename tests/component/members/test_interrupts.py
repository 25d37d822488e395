"""What ends a loop before its end: Ctrl-C in a notebook's cell, which may go on, and an exception."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

import ps_worker as ps
from ps_worker.optimizer.step_cycle import Stage
from ps_worker.process.waiting import wait_of
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, seeded
from tests.component.scripts import STEPS, sgd, train
from tests.component.service import LIMIT_S, Cluster, fresh_name, run_workers, together
from tests.inside import cycle_of, link_of
from tests.until import until

READS = {
    "forward": lambda worker, model, optimizer: loss_of(model, 0, 0),
    "synchronize": lambda worker, model, optimizer: worker.synchronize(),
    "zero_grad": lambda worker, model, optimizer: optimizer.zero_grad(),
    "state_dict": lambda worker, model, optimizer: optimizer.state_dict(),
}


def interrupt(wrapped: list[Any]) -> None:
    """SIGINT for the main thread, once it waits for weights in `step()` of `wrapped[0]`."""
    main = threading.main_thread().ident
    until(
        lambda: wrapped and cycle_of(wrapped[0]).stage is Stage.WAITING and wait_of(main) is not None,
        "the main thread waits for weights",
        pause_s=0.0,
    )
    signal.pthread_kill(main, signal.SIGINT)


@pytest.mark.parametrize("read", READS)
def test_after_ctrl_c_in_step_whoever_reads_the_weights_gets_them_whole(cluster: Cluster, read: str):
    """Worker 0 is interrupted while it waits for worker 1, and goes on as if it had not been."""
    expected = alone(train, seeded(Mlp), sgd, num_workers=2)
    models = [seeded(Mlp), seeded(Mlp)]
    interrupted = threading.Event()
    name = {"servers": cluster.servers, "job": fresh_name(), "num_workers": 2}
    wrapped: list[Any] = []

    def other() -> None:
        with ps.connect(worker=1, **name) as worker:
            optimizer = worker.wrap(sgd(models[1]), models[1])
            interrupt(wrapped)
            assert interrupted.wait(LIMIT_S)
            train(1, models[1], optimizer)
            worker.finish()

    thread = threading.Thread(target=together, args=([other],), daemon=True)
    with ps.connect(worker=0, **name) as worker:
        thread.start()
        wrapped.append(worker.wrap(sgd(models[0]), models[0]))
        loss_of(models[0], 0, 0).backward()
        with pytest.raises(KeyboardInterrupt):
            wrapped[0].step()
        interrupted.set()
        READS[read](worker, models[0], wrapped[0])
        wrapped[0].zero_grad()
        train(0, models[0], wrapped[0], range(1, STEPS))
        worker.finish()
    thread.join(LIMIT_S)
    assert_same(models[0], expected)
    assert_same(models[1], expected)


def test_an_exception_in_the_loop_leaves_at_once_and_names_itself_to_the_others(cluster: Cluster):
    """Who stays trains to its end."""
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if "left: " in text:
            heard.set()

    def body(worker: ps.Worker) -> int:
        model = seeded(Mlp)
        link_of(worker).presence.membership._log = say if worker.rank == 0 else print
        optimizer = worker.wrap(sgd(model), model)
        train(worker.rank, model, optimizer, range(1))
        if worker.rank == 1:
            with pytest.raises(ZeroDivisionError), worker:
                print(1 // 0)
            with pytest.raises(ps.UsageError, match="has left job"):
                optimizer.step()
            return 1
        assert heard.wait(LIMIT_S)
        train(worker.rank, model, optimizer, range(1, STEPS))
        worker.finish()
        return worker.step

    assert run_workers(cluster, body, num_workers=2) == [STEPS, 1]
    (line,) = [text for text in said if "left: " in text]
    assert line.startswith("worker 1 (host ")
    assert "left: ZeroDivisionError: integer division or modulo by zero" in line
