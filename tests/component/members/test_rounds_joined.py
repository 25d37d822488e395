"""Workers that come while others are in a round over several tables: they enter all between two rounds."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator import late_joins
from tests.component.service import Cluster, fresh_name, together
from tests.inside import link_of
from tests.until import LIMIT_S, until

ROUNDS = 3


class Tables:
    """Two tables that are pushed and pulled in turn."""

    def __init__(self, worker: ps.Worker) -> None:
        self._pair = [worker.table({f"w{i}": torch.zeros(300)}, optimizer=ps.SGD(lr=1.0)) for i in range(2)]

    @property
    def steps(self) -> list[int]:
        return [table.step for table in self._pair]

    def step(self, which: int) -> None:
        self._pair[which].push({f"w{which}": torch.ones(300)})
        self._pair[which].pull().result(LIMIT_S)


class Optimizers:
    """Two models, each with an optimizer."""

    def __init__(self, worker: ps.Worker, **options: Any) -> None:
        self._models = [torch.nn.Linear(13, 5) for _ in range(2)]
        self._pair = [
            worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)
            for model in self._models
        ]

    @property
    def steps(self) -> list[int]:
        return [optimizer.step_number for optimizer in self._pair]

    def step(self, which: int) -> None:
        self._pair[which].zero_grad()
        self._models[which](torch.ones(2, 13)).square().mean().backward()
        self._pair[which].step()


KINDS = {
    "tables": Tables,
    "optimizers": lambda worker: Optimizers(worker, overlap=False),
    "overlap": lambda worker: Optimizers(worker, overlap=True),
}


def connect(cluster: Cluster, job: str, rank: int, consistency: str, num_workers: object = "1:3") -> Any:
    return ps.connect(
        servers=cluster.servers, job=job, consistency=consistency, num_workers=num_workers, worker=rank
    )


def in_between(worker: ps.Worker, inside: threading.Event) -> None:
    """Waits, in the middle of a round, until a newcomer cannot go on without this worker, or is in."""
    link = link_of(worker)
    asked = link.presence.membership
    until(lambda: inside.is_set() or link.rounds.held_up or asked.live_wanted or asked.position_wanted)


@pytest.mark.parametrize("consistency", ["bsp", "ssp:0"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_comes_between_two_tables_of_a_round_enters_both_at_its_end(one_shard, kind, consistency):
    job = fresh_name()
    between, inside, over = threading.Event(), threading.Event(), threading.Event()

    def first():
        with connect(one_shard, job, 0, consistency) as worker:
            pair = KINDS[kind](worker)
            for _ in range(ROUNDS):
                pair.step(0)
                pair.step(1)
            for _ in range(2):  # in the first one it may ask for what lies outside tables
                pair.step(0)
                between.set()
                in_between(worker, inside)
                pair.step(1)
            while not over.is_set():
                pair.step(0)
                pair.step(1)
            worker.finish()

    def second():
        assert between.wait(LIMIT_S)
        with connect(one_shard, job, 1, consistency) as worker:
            pair = KINDS[kind](worker)
            inside.set()
            entered = pair.steps
            for _ in range(ROUNDS):
                pair.step(0)
                pair.step(1)
            over.set()
            worker.finish()
            return entered

    _, entered = together([first, second])
    assert entered[0] == entered[1] > ROUNDS


@pytest.mark.parametrize("found_at", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_evicted_in_the_middle_of_a_round_goes_on_with_the_rounds_of_the_others(
    one_shard, kind, found_at
):
    """Found at the round's first table or at its second: nothing more of that round is pushed."""
    job = fresh_name()
    over = threading.Event()

    def stays():
        with connect(one_shard, job, 0, "bsp", 2) as worker:
            pair = KINDS[kind](worker)
            while not over.is_set():
                pair.step(0)
                pair.step(1)
            worker.finish()

    def falls_silent():
        with connect(one_shard, job, 1, "bsp", 2) as worker:
            pair = KINDS[kind](worker)
            for round_ in range(3 * ROUNDS):
                for which in range(2):
                    if (round_, which) == (ROUNDS, found_at):
                        one_shard.evict(job, 1)
                        until(lambda: link_of(worker).exchanges.failure is not None)
                    pair.step(which)
            steps = pair.steps
            over.set()
            worker.finish()
            return steps

    _, steps = together([stays, falls_silent])
    assert steps[0] == steps[1] >= 3 * ROUNDS - 1


def test_two_who_come_at_once_enter_at_the_same_steps(one_shard):
    job = fresh_name()
    between, over = threading.Event(), threading.Event()
    come = threading.Barrier(2, timeout=LIMIT_S)
    done: list[int] = []

    def first():
        with connect(one_shard, job, 0, "bsp") as worker:
            pair = Tables(worker)
            pair.step(0)
            between.set()
            until(lambda: link_of(worker).rounds.held_up)
            pair.step(1)
            while not over.is_set():
                pair.step(0)
                pair.step(1)
            worker.finish()

    def later(rank):
        assert between.wait(LIMIT_S)
        with connect(one_shard, job, rank, "bsp") as worker:
            come.wait()
            pair = Tables(worker)
            entered = pair.steps
            while not over.is_set():  # one may be in before the other, who waits for its pushes then
                pair.step(0)
                pair.step(1)
                done.append(rank)
                if min(done.count(it) for it in (1, 2)) >= ROUNDS:
                    over.set()
            worker.finish()
            return entered

    _, *entered = together([first, lambda: later(1), lambda: later(2)])
    assert all(one[0] == one[1] > 0 for one in entered)


def test_who_makes_one_table_of_two_holds_the_others_up_for_a_limit_only(one_shard, monkeypatch, caplog):
    monkeypatch.setattr(late_joins, "ENTER_LIMIT_S", 0.1)
    job = fresh_name()
    inside, over = threading.Event(), threading.Event()

    def first():
        with connect(one_shard, job, 0, "bsp") as worker:
            pair = Tables(worker)
            while not over.is_set():
                pair.step(0)
                pair.step(1)
                inside.set()
            worker.finish()

    def second():
        assert inside.wait(LIMIT_S)
        with connect(one_shard, job, 1, "bsp") as worker:
            table = worker.table({"w0": torch.zeros(300)}, optimizer=ps.SGD(lr=1.0))
            for _ in range(ROUNDS):
                table.push({"w0": torch.ones(300)})
                table.pull().result(LIMIT_S)
            over.set()
            worker.finish()

    together([first, second])
    assert "has not made all tables" in caplog.text


def test_all_who_come_back_to_a_suspended_job_go_on_in_step(one_shard):
    """All left in the middle of a round; those who come one after the other begin with the first table."""
    job = fresh_name()
    going, came = threading.Barrier(2), threading.Event()

    def leaves(rank):
        with connect(one_shard, job, rank, "bsp", 2) as worker:
            pair = Tables(worker)
            pair.step(0)
            going.wait(LIMIT_S)

    def comes(rank):
        with connect(one_shard, job, rank, "bsp", 2) as worker:
            pair = Tables(worker)
            if rank:
                came.set()
            for _ in range(ROUNDS):
                pair.step(0)
                pair.step(1)
            assert came.wait(LIMIT_S)  # else the job may end before the other one is there
            worker.finish()
            return pair.steps

    together([lambda: leaves(0), lambda: leaves(1)])
    steps = together([lambda: comes(0), lambda: comes(1)])
    assert all(one[0] - one[1] == 1 for one in steps)
