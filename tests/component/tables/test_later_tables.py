"""Tables that a script makes when a snapshot has been taken already."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_lab.snapshots import snapshots
from ps_server.coordinator.snapshots.durability import Durability
from ps_server.coordinator.snapshots.policy import SnapshotPolicy
from ps_wire.access.access import OPEN
from ps_wire.errors import ConfigurationRefused
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S, until


@pytest.fixture
def rarely(loop_thread, tmp_path):
    """One durable shard that takes a snapshot every so many steps that nobody takes."""
    options = {
        "snapshot_dir": str(tmp_path / "snapshots"),
        "state_dir": tmp_path / "state",
        "durability": Durability.SNAPSHOT,
        "snapshots": SnapshotPolicy(every_steps=1_000_000, keep=2),
    }
    made = Cluster(loop_thread, 1, options=options)
    yield made
    made.close()


def make(worker: ps.Worker, name: str) -> ps.Table:
    return worker.table({name: torch.zeros(300)}, optimizer=ps.SGD(lr=1.0))


def step(*tables: ps.Table) -> None:
    for table in tables:
        (name,) = table._index
        table.push({name: -torch.ones(300)})
        table.pull().result(LIMIT_S)


def take_while(cluster: Cluster, job: str, train) -> None:
    """A cut needs steps."""
    taken = threading.Event()

    def take() -> None:
        list(snapshot_calls.take(cluster.servers.split(",")[0], job, OPEN))
        taken.set()

    threading.Thread(target=take, daemon=True).start()
    while not taken.is_set():
        train()


def test_a_table_that_is_made_after_a_snapshot_is_in_another_one_at_once(rarely):
    """So a job that goes back comes to one that has all tables, and its workers go on."""
    job = fresh_name()
    store = rarely.shards[0].shard.snapshots.store

    def complete() -> bool:
        manifests = [found.manifest for found in snapshots.find(store, job)]
        return any(it is not None and len(it.tables) == 2 for it in manifests)

    with ps.connect(servers=rarely.servers, job=job, num_workers=1) as worker:
        first = make(worker, "a")
        take_while(rarely, job, lambda: step(first))
        second = make(worker, "b")
        until(lambda: step(first, second) or complete(), "a snapshot has both tables")
        step(first, second)
        rarely.kill(0)
        rarely.start_again(0)
        with pytest.raises(ps.RolledBack):
            until(lambda: step(first, second))
        step(first, second)
        assert first.pull().result(LIMIT_S).values["a"].eq(first.step).all()
        assert second.pull().result(LIMIT_S).values["b"].eq(second.step).all()
        worker.finish()


def test_a_job_that_goes_back_to_before_a_table_was_made_ends_all_its_workers_by_name(durable):
    """Whoever is asked for the weights that start it anew: a script that goes on would have no such table."""
    job, meet = fresh_name(), threading.Barrier(2, timeout=LIMIT_S)

    def body(worker: ps.Worker) -> None:
        first = make(worker, "a")
        if worker.rank == 0:
            take_while(durable, job, lambda: step(first))
            over.set()
        while not over.is_set():
            step(first)
        second = make(worker, "b")
        if meet.wait() == 0:
            durable.kill(1)
            durable.start_again(1)
        meet.wait()
        with pytest.raises(ConfigurationRefused, match="table 1 was made after the snapshot"):
            until(lambda: step(second))

    over = threading.Event()
    run_workers(durable, body, num_workers=2, consistency="asp", job=job)
