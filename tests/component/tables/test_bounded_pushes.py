"""Under ssp a push waits as a pull would: who never pulls runs no further ahead than the bound."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_worker.exchange.in_flight import Asked
from tests.component.service import Cluster, figures, fresh_name, partitions, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S, until

STEPS = 12
SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)


def gaps(cluster: Cluster, job: str, worker: int) -> int:
    return max(server.shard.table(job, 0).ledger(worker).max_gap for server in cluster.shards)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_law_5_the_gap_of_who_only_pushes_is_bounded_and_no_weights_travel(cluster: Cluster, staleness: int):
    """The fast one is always as far ahead as it may be; the slow one steps when that is so."""
    job, ahead = fresh_name(), threading.Semaphore(0)

    def body(worker: ps.Worker) -> tuple[int, int]:
        table = table_of(worker)
        before = table._exchange.in_flight.bytes_pulled
        for step in range(STEPS):
            if worker.rank and step + staleness < STEPS:
                for _ in range(1 if step else staleness + 1):
                    assert ahead.acquire(timeout=LIMIT_S)  # s + 1 pushes of the other are there
            pushed = table.push({"w": -torch.ones(3000)})
            if not worker.rank:
                pushed.result(LIMIT_S)
                ahead.release()
        pushed.result(LIMIT_S)
        pulled = table._exchange.in_flight.bytes_pulled - before
        worker.finish()
        assert (table.pull().result(LIMIT_S).values["w"] == 2 * STEPS).all()
        return pulled, table.step

    answers = run_workers(cluster, body, num_workers=2, consistency=f"ssp:{staleness}", job=job)
    assert answers == [(0, STEPS)] * 2
    assert gaps(cluster, job, 0) == staleness + 1
    for worker in range(2):
        counts = figures(cluster, job, worker)
        assert counts["applied"] == counts["received"] == STEPS * partitions(cluster, job)


def test_an_abstention_waits_too(cluster: Cluster):
    job, first = fresh_name(), threading.Event()

    def body(worker: ps.Worker) -> int:
        table = table_of(worker)
        if worker.rank:
            assert first.wait(LIMIT_S)
        for step in range(STEPS):
            table.abstain()
            if not worker.rank and not step:
                first.set()
        return table.step

    assert run_workers(cluster, body, num_workers=2, consistency="ssp:0", job=job) == [STEPS] * 2
    assert gaps(cluster, job, 0) == 1


def test_who_pulls_at_each_step_asks_once(cluster: Cluster):
    """The weights of a clock are the answer of the gate, too."""
    asked: list[bool] = []

    def body(worker: ps.Worker) -> None:
        table = table_of(worker)
        exchange = table._exchange
        ask = exchange.in_flight.ask

        def counted(*args: int, nothing: bool = False) -> list[Asked | None]:
            asked.append(nothing)
            return ask(*args, nothing=nothing)

        exchange.in_flight.ask = counted
        for _ in range(STEPS):
            table.pull().result(LIMIT_S)
            table.push({"w": torch.ones(3000)}).result(LIMIT_S)

    run_workers(cluster, body, consistency="ssp:1")
    assert asked == [False] * STEPS


def test_who_is_evicted_while_it_waits_joins_again_and_goes_on(cluster: Cluster):
    """What it was about to push is void; the other one is not held up."""
    job, waiting, back = fresh_name(), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> int:
        table = table_of(worker)
        if worker.rank:
            assert waiting.wait(LIMIT_S)
            cluster.evict(job, 0)
        else:
            exchange, pass_gate = table._exchange, table._exchange.pass_gate
            table.push({"w": torch.ones(3000)}).result(
                LIMIT_S
            )  # else a shard refuses what an evicted one sends

            def waits(step: int) -> None:
                waiting.set()
                until(lambda: exchange.in_flight.evicted, "it has heard that it was evicted")
                pass_gate(step)

            exchange.pass_gate = waits
            table.push({"w": torch.ones(3000)})
            exchange.pass_gate = pass_gate
            back.set()
        for step in range(STEPS):
            if worker.rank and step == STEPS - 1:
                assert back.wait(LIMIT_S)  # else the job has ended when it comes again
            table.push({"w": torch.ones(3000)})
        worker.finish()
        return link_of(worker).presence.joined.incarnation

    fast, slow = run_workers(cluster, body, num_workers=2, consistency="ssp:0", job=job)
    assert fast > slow == 1
    counts = figures(cluster, job, 1)
    assert counts["applied"] == STEPS * partitions(cluster, job)


def test_who_comes_again_to_a_job_that_has_ended_meanwhile_is_told_so_when_it_pushes(cluster: Cluster):
    job, made, over = fresh_name(), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> object:
        table = table_of(worker)
        if worker.rank:
            assert made.wait(LIMIT_S)  # who is evicted while it makes a table joins again, and is waited for
            cluster.evict(job, 0)
            table.push({"w": -torch.ones(3000)}).result(LIMIT_S)
            worker.finish()
            return over.set()
        made.set()
        assert over.wait(LIMIT_S)
        until(lambda: table._exchange.in_flight.evicted, "it has heard that it was evicted")
        table.push({"w": torch.ones(3000)})  # void: it joins again
        for call in (lambda: table.push({"w": torch.ones(3000)}), table.abstain):
            with pytest.raises(ps.UsageError, match=f"job {job} has ended: its final weights"):
                call()
        return table.pull().result(LIMIT_S).values["w"].unique().tolist()

    assert run_workers(cluster, body, num_workers=2, consistency="ssp:0", job=job)[0] == [1.0]


def test_a_connection_that_breaks_while_the_gate_is_shut_asks_again(cluster: Cluster):
    job, waiting, broken = fresh_name(), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> int:
        table = table_of(worker)
        if worker.rank:
            assert broken.wait(LIMIT_S)
            for _ in range(2):
                table.push({"w": torch.ones(3000)}).result(LIMIT_S)
            return table.step
        table.push({"w": torch.ones(3000)}).result(LIMIT_S)

        def cut() -> None:
            assert waiting.wait(LIMIT_S)
            for connection in link_of(worker).presence.connections:
                connection._call.cancel()
            broken.set()

        cutting = threading.Thread(target=cut, daemon=True)
        cutting.start()
        in_flight = table._exchange.in_flight
        ask = in_flight.ask

        def says(*args: int, nothing: bool = False) -> list[Asked | None]:
            asked = ask(*args, nothing=nothing)
            waiting.set()
            return asked

        in_flight.ask = says
        table.push({"w": torch.ones(3000)}).result(LIMIT_S)
        cutting.join(LIMIT_S)
        return table.step

    assert run_workers(cluster, body, num_workers=2, consistency="ssp:0", job=job) == [2, 2]
    assert gaps(cluster, job, 0) == 1
