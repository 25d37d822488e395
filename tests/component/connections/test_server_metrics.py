"""The metrics of a shard say what has become of pushes and pulls, over every carrier, and stay bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

import ps_worker as ps
from ps_server.agreement.gate import gate_of
from ps_server.process import server_metrics
from ps_server.process.server_metrics import ServerMetrics, staleness_bound
from ps_wire.spec import consistency
from tests.component.service import Cluster, LoopThread, fresh_name, run_workers
from tests.until import until

STEPS, WORKERS, SIZE = 4, 3, 1000


def metrics_of(cluster: Cluster, loop: LoopThread) -> ServerMetrics:
    return ServerMetrics(
        cluster.shards[0].shard,
        cluster.coordinator,
        loop.loop,
        ready=lambda: True,
        snapshot_every_s=0.0,
    )


def samples(text: bytes, **labels: str) -> dict[str, float]:
    """Name and the labels that are not given -> value, of the series with these labels."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                rest = [
                    f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in labels
                ]
                found[" ".join([sample.name, *rest])] = sample.value
    return found


@pytest.fixture
def untouched(loop_thread: LoopThread) -> Iterator[Cluster]:
    """A service of this test's own: no other test's job trains, or waits for the end of a lease, on it."""
    cluster = Cluster(loop_thread, 1)
    yield cluster
    cluster.close()


def train(cluster: Cluster, job: str, model: str, **settings: object) -> None:
    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0))
        for _ in range(STEPS):
            table.push({"w": torch.ones(SIZE)})
            table.pull().result()

    run_workers(cluster, body, num_workers=WORKERS, consistency=model, job=job, **settings)


def of_table(cluster: Cluster, loop: LoopThread, job: str) -> Mapping[str, float]:
    return samples(metrics_of(cluster, loop).text(), ps_job=job, shard="0", table="0")


@pytest.fixture(autouse=True)
def _as_many_jobs_as_there_are(monkeypatch):
    """These servers have had many jobs before."""
    monkeypatch.setattr(server_metrics, "MOST_JOBS", 10_000)


def test_jobs_that_train_have_series_before_those_that_have_ended(untouched, loop_thread, monkeypatch):
    """Else the oldest names would hide whatever runs on servers that stay up."""
    train(untouched, fresh_name(), "bsp")
    shard = untouched.shards[0].shard
    until(lambda: not any(job.members for job in shard.jobs()), "its workers have left")
    job = f"zz-{fresh_name()}"
    monkeypatch.setattr(server_metrics, "MOST_JOBS", 1)

    def body(worker: ps.Worker) -> Mapping[str, float]:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.ones(SIZE)})
        table.pull().result()
        return of_table(untouched, loop_thread, job)

    (seen,) = run_workers(untouched, body, num_workers=1, consistency="asp", job=job)
    assert seen["ps_pushes_total outcome=received"] == 1


@pytest.mark.parametrize("model", ["bsp", "ssp:1", "asp"])
def test_gaps_taus_and_waits_have_one_entry_per_push_and_pull(one_shard, loop_thread, model):
    job = fresh_name()
    train(one_shard, job, model)
    seen = of_table(one_shard, loop_thread, job)
    pushes = WORKERS * STEPS
    assert seen["ps_pushes_total outcome=received"] == seen["ps_pushes_total outcome=applied"] == pushes
    assert seen["ps_clock_gap_steps_count"] == seen["ps_staleness_updates_count"] == pushes
    assert seen["ps_rounds_total"] == seen["ps_apply_seconds_count"] == (STEPS if model == "bsp" else pushes)
    assert seen["ps_gate_wait_seconds_count"] == seen["ps_pulls_total"] >= pushes
    if model == "asp":  # law 7
        assert seen["ps_gate_wait_seconds_sum"] == 0
    assert seen["ps_apply_seconds_sum"] > 0


@pytest.mark.parametrize("carrier", ["shm", "uds", "tcp", "grpc"])
def test_bytes_are_counted_by_carrier_also_when_connections_have_gone(untouched, loop_thread, carrier):
    job = fresh_name()
    shard = untouched.shards[0].shard
    before = samples(metrics_of(untouched, loop_thread).text(), carrier=carrier, shard="0")
    train(untouched, job, "bsp", carrier=carrier)
    until(lambda: not shard.traffic.figures()[carrier].connections, "they have gone")
    seen = samples(metrics_of(untouched, loop_thread).text(), carrier=carrier, shard="0")
    nbytes = shard.table(job, 0).totals().weight_bytes
    for direction, least in (("in", WORKERS * STEPS), ("out", WORKERS * STEPS)):
        name = f"ps_carrier_bytes_total direction={direction}"
        assert seen[name] - before.get(name, 0) >= least * nbytes
    assert seen["ps_connections"] == seen["ps_queued_bytes"] == 0


def test_weights_are_counted_for_each_worker_that_got_them(one_shard, loop_thread):
    """One message goes to all who waited at the gate."""
    job = fresh_name()
    train(one_shard, job, "bsp")
    totals = one_shard.shards[0].shard.table(job, 0).totals()
    assert totals.meters.pulls >= WORKERS * STEPS
    assert totals.meters.bytes_out >= totals.meters.pulls * totals.weight_bytes


def test_only_so_many_workers_have_series_of_their_own(untouched, loop_thread, monkeypatch):
    """Those with the lowest numbers; the others are counted, and are in the sums."""
    monkeypatch.setattr(server_metrics, "MOST_WORKERS", 2)
    job = fresh_name()
    seen = []

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(SIZE)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.ones(SIZE)})
        table.pull().result()
        if worker.rank == 0:
            seen.append(metrics_of(untouched, loop_thread).text())
        worker.barrier()

    run_workers(untouched, body, num_workers=WORKERS, job=job)
    (text,) = seen
    named = {name for name in samples(text, ps_job=job) if "worker=" in name}
    assert {name.rpartition("worker=")[2] for name in named} == {"0", "1"}
    assert samples(text, what="workers", shard="0")["ps_left_out"] == WORKERS - 2
    assert samples(text, ps_job=job, shard="0", table="0")["ps_pushes_total outcome=received"] == WORKERS


def test_refusals_are_counted_by_what_was_refused(untouched, loop_thread):
    shard = untouched.shards[0].shard
    before = samples(metrics_of(untouched, loop_thread).text(), shard="0")
    shard.count_refused()
    seen = samples(metrics_of(untouched, loop_thread).text(), shard="0")
    assert seen["ps_refused_total what=frame"] == before["ps_refused_total what=frame"] + 1
    assert seen["ps_refused_total what=call"] == before["ps_refused_total what=call"]


@pytest.mark.parametrize(
    ("model", "bound"),
    [("bsp", 0), ("ssp:3", 21), ("asp", None), ("asp:max_delay=5", 5), ("bsp:backup=1", 0)],
)
def test_the_bound_of_tau_is_that_of_the_model(model, bound):
    assert staleness_bound(gate_of(consistency.parse(model)), 4) == bound


def test_an_event_loop_that_does_not_answer_is_a_timeout(one_shard, loop_thread, monkeypatch):
    monkeypatch.setattr(server_metrics, "LOOP_LIMIT_S", 0.01)
    held = []

    async def hold() -> None:
        with pytest.raises(TimeoutError):
            metrics_of(one_shard, loop_thread).text()  # on the loop itself, which so cannot answer
        held.append(True)

    loop_thread.start(hold()).result()
    assert held
