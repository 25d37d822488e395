"""Orders that a shard is slow to carry out, or fails to: whom they hold up, and who is left in the gates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ps_server.coordinator.jobs.runner
import ps_worker as ps
from ps_wire.errors import InternalError
from tests.component.holding import Slow, storage_that_hangs
from tests.component.joining import joins
from tests.component.service import Cluster, fresh_name, run_workers, together
from tests.until import LIMIT_S

SMALL = ps.BucketOptions(partition_bytes=4096)  # both shards have some


def train(worker: ps.Worker, steps: int = 3) -> int:
    table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
    for _ in range(steps):
        table.push({"w": torch.ones(3000)})
        table.pull().result(LIMIT_S)
    worker.finish()
    return table.step


@pytest.mark.parametrize("shard", [0, 1])
def test_a_table_that_takes_long_to_allocate_holds_up_its_own_job_only(
    cluster: Cluster, shard: int, monkeypatch: Any
) -> None:
    """Others join, make tables, train and finish meanwhile."""
    slow_job = fresh_name()
    slow = Slow(cluster.shards[shard].shard, "open_table", lambda job, *_: job == slow_job, monkeypatch)

    def others() -> list[int]:
        assert slow.there.wait(LIMIT_S)
        try:
            return run_workers(cluster, train, num_workers=2)
        finally:
            slow.go.set()

    assert together([lambda: run_workers(cluster, train, job=slow_job), others]) == [[3], [3, 3]]


@pytest.mark.parametrize(("how", "shard"), [("late", 1), ("fails", 1), ("fails", 0)])
def test_who_is_not_let_in_on_all_shards_in_time_holds_nobody_up(
    cluster: Cluster, how: str, shard: int, monkeypatch: Any
) -> None:
    """It is told so; a shard that has let it in, or does so later, takes it out again, and steps close."""
    job, members = fresh_name(), cluster.shards[shard].shard.members
    admit = members.admit

    def fail(**order: Any) -> None:
        if (order["job"], order["worker"]) == (job, 1):
            raise InternalError("it cannot be let in")
        admit(**order)

    slow = None
    if how == "fails":
        monkeypatch.setattr(members, "admit", fail)
    else:
        slow = Slow(members, "admit", lambda **it: (it["job"], it["worker"]) == (job, 1), monkeypatch)
    with ps.connect(servers=cluster.servers, job=job, num_workers="1:2", worker=0) as worker:
        if slow is not None:
            monkeypatch.setattr(ps_server.coordinator.jobs.runner, "ORDER_LIMIT_S", 0.2)
        assert joins(cluster, job, 1).WhichOneof("kind") == "refused"
        if slow is not None:
            slow.go.set()
        assert train(worker) == 3


def test_clipped_steps_of_two_shards_go_on_while_all_that_waits_for_storage_waits(cluster: Cluster) -> None:
    """A step is closed by the threads that close steps; others may be busy with a snapshot for long."""

    def clipped(worker: ps.Worker) -> int:
        table = worker.table(
            {"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0), buckets=SMALL, clip_grad_norm=1.0
        )
        for _ in range(3):
            table.push({"w": torch.ones(3000)})
            table.pull().result(LIMIT_S)
        return table.step

    with storage_that_hangs(cluster):
        assert run_workers(cluster, clipped) == [3]
