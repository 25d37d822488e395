"""What the servers say, put together."""

import json

from ps_lab.status.status import RankConnections, Table, merge_tables
from tests.unit.ps_lab.made import made_job, made_status, made_table, made_table_worker, made_worker


def test_a_table_over_shards_has_extremes_of_clocks_sums_of_counts_and_the_longest_wait() -> None:
    near = made_table(
        min_version=7,
        max_version=9,
        bytes_in=100,
        tau_counts={0: 4, 2: 1},
        workers=(
            made_table_worker(1, min_clock=4, max_clock=5, applied=9, gate_wait_s=0.5, carriers=("uds",)),
        ),
    )
    far = made_table(
        partitions=1,
        min_version=8,
        max_version=8,
        bytes_in=50,
        tau_counts={2: 3},
        workers=(
            made_table_worker(0, member=False),
            made_table_worker(
                1, min_clock=3, max_clock=3, applied=4, gate_wait_s=2.0, member=False, carriers=("tcp",)
            ),
        ),
    )
    merged = merge_tables([near, far])
    assert (merged.partitions, merged.min_version, merged.max_version, merged.bytes_in) == (3, 7, 9, 150)
    assert merged.tau_counts == {0: 4, 2: 4}
    assert [worker.worker for worker in merged.workers] == [0, 1]
    last = merged.workers[1]
    assert (last.min_clock, last.max_clock, last.applied, last.gate_wait_s) == (3, 5, 13, 2.0)
    assert last.member
    assert last.carriers == ("tcp", "uds")


def test_a_shard_without_a_partition_of_a_table_says_nothing_about_its_versions() -> None:
    merged = merge_tables([made_table(min_version=5, max_version=5), made_table(partitions=0)])
    assert (merged.min_version, merged.max_version) == (5, 5)


def test_the_gap_is_to_the_slowest_member_and_others_have_none() -> None:
    fast, slow, gone = (
        made_table_worker(0, min_clock=9),
        made_table_worker(1, min_clock=6),
        made_table_worker(2, min_clock=2, member=False),
    )
    table = made_table(workers=(fast, slow, gone))
    assert [table.gap(worker) for worker in table.workers] == [3, 0, 0]


def test_a_metric_is_the_mean_over_those_who_logged_it() -> None:
    job = made_job(
        workers=(
            made_worker(0, metrics={"loss": 1.0}),
            made_worker(1, metrics={"loss": 3.0}),
            made_worker(2),
        )
    )
    assert job.metric("loss") == 2.0
    assert job.metric("accuracy") is None


def test_json_for_programs_has_what_people_see_and_survives_a_round_trip() -> None:
    table = made_table(
        tau_counts={1: 2, 3: 2},
        max_version=4,
        workers=(made_table_worker(0, min_clock=2), made_table_worker(1, min_clock=1)),
    )
    worker = made_worker(0, metrics={"loss": 0.5}, passed_over="shm: no memory")
    status = made_status(made_job(workers=(worker,), tables=(table,)))
    data = json.loads(json.dumps(status.to_json()))
    (job,) = data["jobs"]
    assert (job["name"], job["consistency"], job["state"]) == ("digits", "ssp:3", "running")
    assert job["workers"][0]["metrics"] == {"loss": 0.5}
    assert job["workers"][0]["passed_over"] == "shm: no memory"
    assert job["tables"][0]["tau"] == {"pushes": 4, "mean": 2.0, "p99": 3, "max": 3}
    assert [worker["gap"] for worker in job["tables"][0]["workers"]] == [1, 0]
    assert data["shards"][0]["address"] == "127.0.0.1:1"


def test_what_the_ranks_of_a_worker_have_pushed_is_summed_over_shards() -> None:
    def part(*ranks: tuple[int, int, int]) -> Table:
        of = tuple(RankConnections(rank=it, received_bytes=came, sent_bytes=went) for it, came, went in ranks)
        return made_table(workers=(made_table_worker(0, ranks=of),))

    merged = merge_tables([part((0, 10, 1), (1, 20, 2)), part((1, 5, 4))]).workers[0]

    assert [(it.rank, it.received_bytes, it.sent_bytes) for it in merged.ranks] == [(0, 10, 1), (1, 25, 6)]
