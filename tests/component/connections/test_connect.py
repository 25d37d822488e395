"""Connecting again in one process, as a notebook does."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref
from typing import Any

import pytest

import ps_worker as ps
from ps_wire.errors import JobFull, UsageError, WorkerNumberTaken
from tests.component.service import Cluster, fresh_name, threads_of_workers
from tests.until import until


def join(cluster: Cluster, job: str, **given: Any) -> ps.Worker:
    return ps.connect(servers=cluster.servers, job=job, **given)


def test_a_process_that_is_in_its_own_way_is_told_so_and_can_leave_and_connect_again(cluster: Cluster):
    job = fresh_name()
    first = join(cluster, job)
    with pytest.raises(
        JobFull,
        match=r"has all the workers.*; this very process is worker 0: worker.leave\(\), or the end of",
    ):
        join(cluster, job)
    with pytest.raises(
        WorkerNumberTaken, match=r"holds this number .*; this very process is worker 0: "
    ) as taken:
        join(cluster, job, worker=0)
    assert taken.value.facts["worker"] == 0
    first.leave()
    with join(cluster, job) as second:
        assert second.rank == 0
    with join(cluster, job, worker=0) as third:
        assert third.rank == 0


def test_only_a_number_that_this_process_holds_in_this_job_is_named(cluster: Cluster):
    """A number that is none of the job's is refused as before."""
    job = fresh_name()
    with join(cluster, job, num_workers=2, worker=1), join(cluster, fresh_name()):
        with pytest.raises(WorkerNumberTaken, match=r"this very process is worker 1:"):
            join(cluster, job, num_workers=2, worker=1)
        with pytest.raises(JobFull) as refused:
            join(cluster, job, num_workers=2, worker=2)
        assert "this very process" not in refused.value.message
        with join(cluster, job, num_workers=2) as other:
            assert other.rank == 0
            with pytest.raises(JobFull, match="this very process is worker 0, 1:"):
                join(cluster, job, num_workers=2)


def test_leaving_ends_every_thread_and_so_does_a_refused_join(cluster: Cluster):
    before, job = threads_of_workers(), fresh_name()  # those of other tests may be about to end
    with join(cluster, job):
        joined = threads_of_workers() - before
        of_shards = [f"ps-{what}-{shard}" for what in ("shard", "watch") for shard in range(2)]
        assert sorted(thread.name for thread in joined) == ["ps-heartbeat", "ps-member", *of_shards]
        with pytest.raises(JobFull):
            join(cluster, job)
        until(lambda: threads_of_workers() - before == joined, "those of the refused join have ended")
    until(lambda: threads_of_workers() <= before, "all have ended")


def test_a_worker_that_nobody_leaves_stays_until_someone_does(cluster: Cluster):
    """Threads and the end of the process hold it, whether or not a script still does."""
    held = weakref.ref(join(cluster, fresh_name()))
    gc.collect()
    worker = held()
    assert worker is not None
    assert any(thread.name == "ps-heartbeat" for thread in threading.enumerate())
    worker.leave()
    del worker
    gc.collect()
    assert held() is None


def test_a_script_that_a_child_imports_again_does_not_join(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """What multiprocessing sets while a spawned child imports the parent's main module."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(UsageError, match='if __name__ == "__main__":'):
        join(cluster, fresh_name())
