"""Statuses for tests: everything has a value, and what a test is about is said."""

from typing import Any

from ps_lab.status.status import Job, Shard, Status, Table, TableWorker, Worker


def made_worker(worker: int = 0, **given: Any) -> Worker:
    values: dict[str, Any] = {
        "incarnation": 1,
        "host": "here",
        "pid": 100 + worker,
        "state": "running",
        "step": 0,
        "samples": 0,
        "waited_s": 0.0,
        "heartbeat_age_s": 0.5,
        "lease_left_s": 9.5,
        "metrics": {},
        "waits": "",
        "passed_over": "",
    }
    return Worker(worker=worker, **values | given)


def made_table_worker(worker: int = 0, **given: Any) -> TableWorker:
    names = ("max_gap", "received", "applied", "dropped", "abstained", "duplicates", "missed")
    values: dict[str, Any] = dict.fromkeys(names, 0) | {
        "member": True,
        "min_clock": 0,
        "max_clock": 0,
        "gate_wait_s": 0.0,
        "carriers": (),
        "ranks": (),
    }
    return TableWorker(worker=worker, **values | given)


def made_table(**given: Any) -> Table:
    values: dict[str, Any] = {
        "table": 0,
        "partitions": 2,
        "min_version": 0,
        "max_version": 0,
        "bytes_in": 0,
        "bytes_out": 0,
        "weight_bytes": 0,
        "optimizer_bytes": 0,
        "hyper_mismatches": 0,
        "mixed_steps": 0,
        "tau_counts": {},
        "workers": (),
    }
    return Table(**values | given)


def made_job(**given: Any) -> Job:
    values: dict[str, Any] = {
        "name": "digits",
        "consistency": "ssp:3",
        "num_workers": 2,
        "min_workers": 0,
        "nonfinite": "error",
        "state": "running",
        "epoch": 1,
        "events": {},
        "happened": (),
        "epochs": (),
        "workers": (),
        "tables": (),
    }
    return Job(**values | given)


def made_status(*jobs: Job) -> Status:
    shard = Shard(shard=0, address="127.0.0.1:1", memory_bytes=2048, memory_limit_bytes=0, refused_frames=0)
    return Status(shards=(shard,), jobs=jobs)
