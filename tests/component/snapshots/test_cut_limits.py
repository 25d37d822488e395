"""Workers that a snapshot's cut holds while it is agreed on: for how long at most."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator.snapshots import attempt as snapshot_taking
from ps_wire.access.access import OPEN
from ps_wire.errors import CutAborted
from ps_worker.membership import snapshot_promise
from ps_worker.membership.snapshot_promise import Put
from tests.component.service import Cluster, fresh_name, run_workers, together
from tests.inside import link_of
from tests.until import LIMIT_S, until

WAIT_S = LIMIT_S
TOO_EARLY_S = 0.5  # in which a cut is armed that waits for no answer


@pytest.fixture
def saving(loop_thread, tmp_path):
    """One shard that has a place for snapshots."""
    made = Cluster(loop_thread, 1, options={"snapshot_dir": str(tmp_path / "snapshots")})
    yield made
    made.close()


def test_a_worker_that_does_not_answer_holds_nobody_for_longer_than_a_limit(saving, monkeypatch):
    """A cut is given up before those who have promised to begin no step go on by themselves."""
    assert snapshot_taking.ARM_LIMIT_S < snapshot_promise.PROMISE_LIMIT_S <= 20.0
    monkeypatch.setattr(snapshot_taking, "ARM_LIMIT_S", 0.1)
    job, answers, over = fresh_name(), threading.Event(), threading.Event()
    steps = [0, 0]

    def body(worker: ps.Worker) -> None:
        mine = link_of(worker).promise
        prepare = mine.prepare

        def late(number: int, put: Put) -> dict[int, int]:
            assert answers.wait(WAIT_S)
            return prepare(number, put)

        if worker.rank == 1:
            mine.prepare = late
        table = worker.table({"w": torch.zeros(100)}, optimizer=ps.SGD(lr=1.0))
        while not over.is_set():
            table.push({"w": torch.ones(100)})
            table.pull().result(WAIT_S)
            steps[worker.rank] = table.step

    def watch() -> None:
        until(lambda: all(steps), "both train")
        with pytest.raises(CutAborted, match="worker 1"):
            list(snapshot_calls.take(saving.servers, job, OPEN))
        given_up = steps[0]
        until(lambda: steps[0] > given_up + 1, "the other trains on")
        answers.set()
        over.set()

    together([lambda: run_workers(saving, body, num_workers=2, consistency="asp", job=job), watch])


def test_an_answer_to_a_cut_of_before_does_not_count(saving):
    """What it promises has begun since, and would be in the snapshot."""
    job, asked, answers, told, over = fresh_name(), *(threading.Event() for _ in range(4))
    steps, too_early = [0, 0], []

    def body(worker: ps.Worker) -> None:
        mine = link_of(worker).promise
        prepare, arm = mine.prepare, mine.arm

        def late(number: int, put: Put) -> dict[int, int]:
            asked.set()
            assert answers.wait(WAIT_S)
            return prepare(number, put)

        def armed(number: int, cut: dict[int, int]) -> None:
            told.set()
            arm(number, cut)

        if worker.rank == 1:
            mine.prepare = late
        else:
            mine.arm = armed
        table = worker.table({"w": torch.zeros(100)}, optimizer=ps.SGD(lr=1.0))
        while not over.is_set():
            table.push({"w": torch.ones(100)})
            table.pull().result(WAIT_S)
            steps[worker.rank] = table.step

    def take() -> None:
        list(snapshot_calls.take(saving.servers, job, OPEN))
        over.set()

    def watch() -> None:
        until(lambda: all(steps), "both train")
        taking = threading.Thread(target=take)
        taking.start()
        assert asked.wait(WAIT_S)
        member = saving.coordinator.runners[job].job.roster.members[1]
        before = {0: steps[1] + 100}
        saving._loop.loop.call_soon_threadsafe(saving.coordinator._scheduler.ready, job, member, 0, before)
        too_early.append(told.wait(TOO_EARLY_S))
        answers.set()
        taking.join(WAIT_S)

    together([lambda: run_workers(saving, body, num_workers=2, consistency="asp", job=job), watch])
    assert too_early == [False]
