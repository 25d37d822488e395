"""A job goes back to its snapshot while its workers are at any point of a step: no trace of it is left."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator import recovery
from ps_server.coordinator.snapshots.durability import Durability
from ps_wire.access.access import OPEN
from ps_wire.access.channel import dial
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_worker.membership.snapshot_promise import Put
from tests.component.points import AT_THE_END, IN_A_STEP, LIMIT_S, Points, Script
from tests.component.service import Cluster, fresh_name, together
from tests.inside import link_of
from tests.until import until

TAKES_AT = 3
ALL = IN_A_STEP + AT_THE_END
SOME = (
    "batch read",
    "batch",
    "first forward",
    "last backward",
    "weights asked for",
    "step done",
    "evaluation",
)
EXPECTED: dict[str, list[Any]] = {}  # by kind of script: where a run without rollbacks ends


@pytest.fixture(scope="module")
def durable(loop_thread, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    options = {
        "snapshot_dir": str(folder / "snapshots"),
        "state_dir": folder / "state-{shard}",
        "durability": Durability.SNAPSHOT,
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recovery, "RESTORES", 1 << 20)  # a job of these tests goes back at each point
        cluster = Cluster(loop_thread, 2, options=options)
        yield cluster, SnapshotStore(str(folder / "snapshots"))
        cluster.close()


class Job:
    """Two workers that take a snapshot, and go back to it at points of a later step."""

    def __init__(self, cluster: Cluster, store: SnapshotStore, points: Sequence[str]) -> None:
        self.name = fresh_name()
        self._cluster, self._store = cluster, store
        self._coordinator = cluster.servers.split(",")[0]
        self.points = Points(points, workers=2, happens=self._go_back)
        self._any = bool(points)
        self._asked, self._taken = False, threading.Event()
        self._cut_by = 0  # worker 0 has begun the cut's step before this one, wherever worker 1 is

    def run(self, *, told: bool, **kind: Any) -> list[tuple[dict[str, Any], list[int]]]:
        def one(rank: int) -> tuple[dict[str, Any], list[int]]:
            heard: list[int] = []
            settings: Any = {"on_rollback": heard.append} if told else {}
            with ps.connect(
                servers=self._cluster.servers, job=self.name, num_workers=2, worker=rank, **settings
            ) as worker:
                script = Script(worker, lambda point: self._at(worker, point), **kind)
                ends = script.run()
                return ends, heard + script.heard

        return together([lambda: one(0), lambda: one(1)], LIMIT_S)

    def _at(self, worker: ps.Worker, point: str) -> None:
        if point == "batch" and worker.rank == 0 and self._any and worker.step >= TAKES_AT:
            self._snapshot(worker)
        self.points.at(worker, point)

    def _snapshot(self, worker: ps.Worker) -> None:
        """Workers train on until the cut, and wait until it is written; the steps after that are undone."""
        if not self._asked:
            self._asked = True
            promise = link_of(worker).promise
            prepare = promise.prepare

            def prepared(number: int, put: Put) -> dict[int, int]:
                steps = prepare(number, put)
                self._cut_by = max(steps.values()) + 3  # under bsp nobody is two steps ahead
                return steps

            promise.prepare = prepared  # type: ignore[method-assign]
            threading.Thread(target=self._take, daemon=True).start()
            until(lambda: self._cut_by, "the cut is asked for")
        if self.points.first == LIMIT_S and worker.step >= self._cut_by:
            until(lambda: self._taken.is_set() or worker.step < self._cut_by, "the snapshot is there")
            if self._taken.is_set():
                self.points.first = (worker.step + 2) | 1  # the forwards there wait for weights

    def _take(self) -> None:
        list(snapshot_calls.take(self._coordinator, self.name, OPEN))
        self._taken.set()

    def _go_back(self) -> None:
        (snapshot, *_) = self._store.names(self.name)
        with dial(self._coordinator, OPEN) as channel:
            request = pb.RestoreRequest(job=self.name, snapshot=snapshot)
            CoordinatorStub(channel).Restore(request, timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("kind", "overlap", "told", "points"),
    [
        ("plain", True, False, ALL),
        ("plain", "auto", True, ALL),
        ("plain", False, False, ALL),
        ("accumulating", True, True, SOME),
        ("together", True, False, SOME),
        ("together", False, True, SOME),
        ("in turn", True, True, SOME),
        ("in turn", False, False, SOME),
    ],
)
def test_a_rollback_at_any_point_of_a_step_leaves_no_trace(durable, kind, overlap, told, points):
    """Weights, buffers, schedulers, generators and steps are those of an undisturbed run; none abstains."""
    if kind not in EXPECTED:
        EXPECTED[kind] = Job(*durable, ()).run(told=False, kind=kind, overlap=False)
    job = Job(*durable, points)
    found = job.run(told=told, kind=kind, overlap=overlap)
    assert job.points.met == list(points)
    for (ends, heard), (expected, _) in zip(found, EXPECTED[kind], strict=True):
        assert len(heard) == len(points if told else set(points) & set(AT_THE_END))
        assert len(set(heard)) <= 1
        assert {name for name in ends if ends[name] != expected[name]} == set()
        assert not any(ends["abstained"])
