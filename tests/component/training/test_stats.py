"""A worker's figures; and the summary of a histogram is that of the samples it stands for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ps_worker as ps
from ps_wire.spec.staleness import Staleness, summarize
from ps_wire.v1 import shard_pb2
from ps_worker.job.stats import gather
from tests.component.service import Cluster, run_workers
from tests.inside import steps_of
from tests.until import LIMIT_S

HISTOGRAMS = st.dictionaries(st.integers(0, 200), st.integers(0, 60), max_size=12)


def naive(histogram: dict[int, int]) -> Staleness:
    """Nearest rank: the smallest sample that at least 99 % of all do not exceed."""
    samples = sorted(tau for tau, count in histogram.items() for _ in range(count))
    if not samples:
        return Staleness()
    rank = math.ceil(len(samples) * 99 / 100)
    return Staleness(
        pushes=len(samples), mean=sum(samples) / len(samples), p99=samples[rank - 1], max=samples[-1]
    )


@given(HISTOGRAMS)
def test_a_summary_is_that_of_all_samples(histogram: dict[int, int]):
    got, expected = summarize(histogram), naive(histogram)
    assert (got.pushes, got.p99, got.max) == (expected.pushes, expected.p99, expected.max)
    assert got.mean == pytest.approx(expected.mean)


@pytest.mark.parametrize(("large", "p99"), [(1, 0), (2, 7)])
def test_p99_of_a_hundred(large: int, p99: int):
    assert summarize({0: 100 - large, 7: large}).p99 == p99


def test_nothing_was_pushed():
    assert summarize({}) == summarize({3: 0}) == Staleness()


def test_a_workers_figures(cluster: Cluster):
    """Bytes are those of the payload, staleness is that of the whole job, waits are not negative."""

    def body(worker: ps.Worker) -> ps.Stats:
        table = worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))
        nothing = worker.stats()
        assert (nothing.step, nothing.samples, nothing.bytes_pushed) == (0, 0, 0)
        assert nothing.staleness == Staleness()
        for _ in range(4):
            table.push({"w": torch.ones(5000)})
            table.pull().result(LIMIT_S)
        stats = worker.stats()
        worker.finish()
        return stats

    both = run_workers(cluster, body, num_workers=2)
    assert max(stats.max_gap for stats in both) == 1  # who pushes first is one ahead
    for stats in both:
        flat = 5 * 4096  # 20,000 bytes in whole pages
        assert stats.step == 4
        assert stats.bytes_pushed == 4 * flat
        assert stats.bytes_pulled == 5 * flat  # the start's weights came too
        assert stats.spread == 0
        assert stats.staleness.max == 0
        assert stats.gate_wait_s >= 0.0


def test_figures_are_the_workers_own_and_waits_at_shards_are_side_by_side():
    """Counts are added over shards; of waits, and of gaps, the largest counts."""
    shards = [
        shard_pb2.TableStatus(
            tau={1: 2},
            workers=[
                shard_pb2.TableWorker(worker=0, dropped=1, gate_wait_s=wait_s, max_gap=gap),
                shard_pb2.TableWorker(worker=1, dropped=50, gate_wait_s=9.0, max_gap=9),
            ],
        )
        for wait_s, gap in ((0.5, 1), (2.0, 3))
    ]
    given = {"step": 4, "abstained": 0, "samples": 8, "waited_s": 2.5}
    found = gather(shards, [], [], worker=0, **given)
    assert (found.dropped, found.gate_wait_s, found.max_gap) == (2, 2.0, 3)
    assert (found.staleness.pushes, found.staleness.max) == (4, 1)


def test_logged_metrics_are_numbers(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        worker.log(loss=torch.tensor(0.5, requires_grad=True), accuracy=1, other=0.25)
        assert steps_of(worker).metrics == {"loss": 0.5, "accuracy": 1.0, "other": 0.25}
        with pytest.raises(ps.UsageError, match="name"):
            worker.log(name="high")
        with pytest.raises(ps.UsageError, match="many"):
            worker.log(many=torch.ones(2))

    run_workers(cluster, body)
