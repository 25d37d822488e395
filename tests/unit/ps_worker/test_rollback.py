"""Servers that lose what they held: all go back to the last snapshot, together, and training goes on."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_server.durability import Durability
from ps_worker.model_spec import pack

from .saving import save
from .service import Cluster, fresh_name, together

LIMIT_S = 30.0


@pytest.fixture
def durable(loop_thread, tmp_path):
    """Two shards with a snapshot folder and state directories."""
    options = {
        "snapshot_dir": str(tmp_path / "snapshots"),
        "state_dir": tmp_path / "state-{shard}",
        "durability": Durability.SNAPSHOT,
    }
    cluster = Cluster(loop_thread, 2, options=options)
    yield cluster
    cluster.close()


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=0.1, momentum=0.9))


def step(table: ps.Table, rank: int) -> torch.Tensor:
    table.push({"w": torch.full((3000,), 1.0 + rank + table.step)})
    return table.pull().result(LIMIT_S).values["w"]


@pytest.mark.parametrize("lost", [0, 1])
def test_all_go_back_to_the_snapshot_together_and_go_on_bit_exactly(durable, tmp_path, lost):
    """Whichever server dies: workers are told the step, and end with the weights of a run without deaths."""
    job, saved_at, dies_at, steps = fresh_name(), 3, 5, 8
    meet = threading.Barrier(2, timeout=LIMIT_S)

    def train(rank, name, *, faults):
        seen, saved = [], not faults
        with ps.connect(servers=durable.servers, job=name, num_workers=2, worker=rank) as worker:
            table = table_of(worker)
            while table.step < steps:
                if not saved and table.step == saved_at:
                    if meet.wait() == 0:
                        save(durable, str(tmp_path / "snapshots"), job, dict.fromkeys(range(2), pack({})))
                    saved = meet.wait() >= 0
                if faults and table.step == dies_at and not seen and meet.wait() == 0:
                    durable.kill(lost)
                    durable.start_again(lost)
                try:
                    values = step(table, rank)
                except ps.RolledBack as error:
                    seen.append((error.step, table.step))
            worker.finish()
            return values, seen, worker._link._now.joined.incarnation

    whole = together([lambda rank=rank: train(rank, "whole", faults=False) for rank in range(2)])
    found = together([lambda rank=rank: train(rank, job, faults=True) for rank in range(2)], 60.0)
    for (expected, _, _), (values, seen, incarnation) in zip(whole, found, strict=True):
        assert seen == [(saved_at, saved_at)]
        assert torch.equal(values, expected)
        assert incarnation > 1 << 16
