"""What servers say, put together."""

from __future__ import annotations

from ps_lab.status.observer import _events
from ps_wire.v1 import coordinator_pb2 as coordinator
from ps_wire.v1 import shard_pb2 as shard
from ps_wire.v1 import spec_pb2
from tests.unit.ps_lab.made import made_table, made_table_worker


def test_events_are_those_of_the_coordinator_and_of_all_shards() -> None:
    """Of pushes that were dropped the ledgers know, each shard's partitions."""
    job = coordinator.JobStatus(job=spec_pb2.Job(name="j"), events={"join": 3, "evict": 1})
    replies = [
        shard.TablesReply(events=[shard.JobEvents(job=name, counts={"retry": count, "drop": 1})])
        for name, count in (("j", 2), ("j", 1), ("other", 9))
    ]
    parts = [made_table(workers=(made_table_worker(0, dropped=4), made_table_worker(1, dropped=1)))]
    assert _events(job, replies, parts) == {"drop": 5, "evict": 1, "join": 3, "retry": 3}
