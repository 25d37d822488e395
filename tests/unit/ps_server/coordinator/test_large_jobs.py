"""What a large job says fits into all limits: 10,000 parameters with long names, 1,000 workers, 64 shards."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, fields

import pytest

from ps_server.shard.partition.machine import Ledger
from ps_server.shard.shard import MAX_PARTITIONS
from ps_wire.access.channel import MAX_MESSAGE_BYTES
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import MAX_META_BYTES, MAX_PAYLOAD_BYTES
from ps_wire.frames.messages import hyperparameters_to_proto, table_from_proto, table_to_proto
from ps_wire.snapshot.manifest import (
    MAX_MANIFEST_BYTES,
    FileRecord,
    Manifest,
    SavedWorker,
    parse,
    shard_file,
    worker_file,
)
from ps_wire.snapshot.saved_epoch import MAX_PLACES, SavedEpoch
from ps_wire.snapshot.tensors import MAX_HEADER_BYTES
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

PARAMETERS, NAME, WORKERS, SHARDS = 10_000, 100, 1000, 64
# The parameters have 2^20 elements each: 40 GiB in all.
STEP = 10**9
GROUP = tuple(
    sorted(
        {
            "amsgrad": False,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "lr": 0.001,
            "maximize": False,
            "weight_decay": 0.01,
        }.items()
    )
)


def table_of(groups: int) -> TableSpec:
    return TableSpec(
        number=0,
        parameters=tuple(
            ParameterSpec(name=f"{number:05}." + "x" * (NAME - 6), shape=(1024, 1024), group=number % groups)
            for number in range(PARAMETERS)
        ),
        optimizer=OptimizerSpec(name="AdamW", hyperparameters=Hyperparameters((GROUP,) * groups)),
        buckets=BucketOptions(bucket_bytes=SHARDS * MAX_PAYLOAD_BYTES),
    )


@pytest.fixture(scope="module", params=[2, PARAMETERS], ids=["two groups", "a group for each parameter"])
def table(request: pytest.FixtureRequest) -> TableSpec:
    return table_of(request.param)


@pytest.fixture(scope="module")
def job() -> spec_pb2.Job:
    return spec_pb2.Job(name="j" * 64, consistency="asp", num_workers=WORKERS, nonfinite="error")


def test_its_table_fits_into_a_message_and_so_do_orders_with_it(table, job):
    """As a worker makes it, as shards open it, and as they restore it, with all that goes beside it."""
    made = table_to_proto(table)
    assert table_from_proto(made) == table
    restore = pb.Restore(job=job, tables=[made], snapshot="00000001-0123abcd", incarnation=1 << 60)
    for message in (
        pb.MemberRequest(make_table=pb.MakeTable(table=made)),
        pb.Order(open_table=pb.OpenTable(job=job.name, table=made)),
        pb.Order(restore=restore),
    ):
        assert message.ByteSize() < MAX_MESSAGE_BYTES // 2


def test_frames_about_it_fit(table):
    """HYPER, the bitmap of a push, a pull of all partitions of a shard, clocks of all workers, a payload."""
    plan = Plan(table, SHARDS)
    assert hyperparameters_to_proto(table.optimizer.hyperparameters).ByteSize() < MAX_META_BYTES // 2
    partitions = list(plan.partitions_of_shard(0))
    assert max(partition.numel for partition in partitions) * 4 <= MAX_PAYLOAD_BYTES
    assert len(partitions) <= MAX_PARTITIONS
    meta = struct.pack(f"<{len(partitions)}I", *range(len(partitions)))
    clocks = struct.pack("<IQ", 1, STEP) * WORKERS
    for kind, said in (
        (wire.Kind.PULL, meta),
        (wire.Kind.PULLED, clocks),
        (wire.Kind.PUSH, bytes(PARAMETERS // 8)),
    ):
        assert len(said) < MAX_META_BYTES // 2
        assert wire.decode(wire.encode(wire.Frame(kind=kind, meta=said))).meta == said


def test_what_is_said_of_all_its_workers_fits_into_a_message(job):
    """A report of backup workers, the cut of a snapshot, what status shows, and where shards are."""
    clocks = dict.fromkeys(range(WORKERS), STEP)
    attendance = pb.Attendance(job=job.name, ready=list(clocks), members=list(clocks))
    save = pb.Order(
        save_cut=pb.Save(
            job=job.name, tables=[pb.TableClocks(table=number, clocks=clocks) for number in range(8)]
        )
    )
    status = pb.JobStatus(
        workers=[
            pb.WorkerStatus(worker=worker, incarnation=1 << 60, host="h" * 255, progress=_progress())
            for worker in range(WORKERS)
        ]
    )
    joined = pb.Joined(shards=[pb.ShardPlace(address="h" * 255 + ":50051", generation=1)] * SHARDS)
    for message in (attendance, save, status, joined):
        assert message.ByteSize() < MAX_MESSAGE_BYTES // 2


def _progress() -> pb.Progress:
    return pb.Progress(
        metrics={f"metric-{number}": 0.5 for number in range(16)}, waits="w" * 500, passed_over="c" * 500
    )


def test_its_manifest_is_read_as_it_was_written(job):
    """With a file of each shard and worker, and as many epochs as are remembered of so many workers."""
    every, shared = range(WORKERS), MAX_PLACES // WORKERS
    manifest = Manifest(
        number=1,
        created="2026-01-01T00:00:00Z",
        generation=1,
        job=job,
        num_shards=SHARDS,
        tables=(table_of(2),),
        clocks={0: {worker: STEP + worker for worker in every}},
        files=tuple(
            FileRecord(name=name, bytes=10**10, sha256="a" * 64)
            for name in [*(shard_file(shard, SHARDS) for shard in range(SHARDS)), *map(worker_file, every)]
        ),
        workers={worker: SavedWorker(incarnation=1 << 60, samples=10**9) for worker in every},
        shares=tuple(
            SavedEpoch(
                loader=0,
                epoch=epoch,
                workers=tuple(every),
                ranks=(8,) * len(every),
                samples=10**9,
                used=10**9,
                handed_on=0,
                starts=dict.fromkeys(every, 1000) if epoch == shared - 1 else {},  # the others are used up
                left=(),
                trains=True,
            )
            for epoch in range(shared)
        ),
        counters={0: {f"count-{number}": STEP for number in range(32)}},
    )
    text = manifest.text().encode()
    assert len(text) < MAX_MANIFEST_BYTES
    assert parse(text, "here", job.name) == manifest


def test_what_a_shard_says_of_its_partitions_fits_into_a_file():
    """Counts and clocks of all workers on each partition, and the names of all pieces with their states."""
    plan = Plan(table_of(2), SHARDS)
    own = plan.count_of_shard(0)
    ledger = asdict(Ledger(**{field.name: STEP for field in fields(Ledger)}))
    of_a_partition = len(json.dumps([[{str(STEP): ledger}, [STEP, 1 << 60, STEP]]] * WORKERS))
    of_a_piece = 5 * (NAME + 200)  # its name in the facts, and four tensors: dtype, shape, offsets
    pieces = sum(len(plan.pieces(partition)) for partition in plan.partitions_of_shard(0))
    assert own * of_a_partition + pieces * of_a_piece < MAX_HEADER_BYTES
