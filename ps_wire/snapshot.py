"""What a snapshot says of itself: the manifest, in JSON, with a checksum of its own.

    URL/JOB/00000012-5f3a91c2/shard-0-of-2.safetensors   weights, optimizer state, clocks: what a shard held
                              worker-3.safetensors       what a worker had beside its tables
                              manifest.json              written last: without it there is no snapshot

The manifest names every file with its size and checksum, the job and its tables with names and shapes, the
step of each worker that the cut was made at, and what was not the same on all partitions.

Values only. It must not know where snapshots lie (`snapshot_store`) or how tensors do (`snapshot_tensors`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from google.protobuf import json_format

from ps_wire.errors import SnapshotCorrupt, SnapshotFormatUnsupported
from ps_wire.messages import table_from_proto, table_to_proto
from ps_wire.table import TableSpec
from ps_wire.v1 import spec_pb2

FORMAT = 1
MANIFEST = "manifest.json"
FILE = re.compile(r"((shard-\d{1,6}-of|worker)-\d{1,6}\.safetensors|final\.safetensors|manifest\.json)\Z")
NAME = re.compile(r"(\d{8})-[0-9a-f]{8}")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a snapshot: its name in the snapshot's folder, its size and SHA-256, in hex."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """See the module's docstring.

    Attributes:
        number: grows with each snapshot of the job.
        created: when it was complete, in ISO 8601, by the coordinator's clock.
        generation: of the shards that wrote it.
        job: name, consistency, numbers of workers: `ps_wire.v1.Job` as JSON.
        num_shards: that wrote it.
        tables: by number: `ps_wire.v1.Table` as JSON, with names, shapes and hyper-parameters of the start.
        clocks: table -> worker -> the first step that is not in the snapshot.
        files: of shards and workers.
        workers: worker -> what is known of it: `incarnation`, `samples`, `lease_s`.
        shares: who shares which epochs of loaders.
        counters: table -> counts over all partitions; `unequal` are partitions with another history than most
            have: something was dropped, skipped or mixed in some of them only.
        ended: the job had finished.
    """

    number: int
    created: str
    generation: int
    job: Json
    num_shards: int
    tables: tuple[Json, ...]
    clocks: Mapping[int, Mapping[int, int]]
    files: tuple[FileRecord, ...]
    workers: Mapping[int, Json] = field(default_factory=dict)
    shares: tuple[Any, ...] = ()
    counters: Mapping[int, Json] = field(default_factory=dict)
    ended: bool = False

    @property
    def step(self) -> int:
        """The largest step that it goes on from, over workers and tables."""
        return max((step for clocks in self.clocks.values() for step in clocks.values()), default=0)

    @property
    def total_bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.files)

    def text(self) -> str:
        """As it is written."""
        body = json.loads(json.dumps(asdict(self)))  # with texts for keys, as whoever reads it has them
        return json.dumps({"format": FORMAT, "sha256": _digest(body), "manifest": body}, indent=1) + "\n"


def table_to_json(table: TableSpec) -> Json:
    """A table, for a manifest."""
    return json_format.MessageToDict(table_to_proto(table), preserving_proto_field_name=True)


def table_from_json(given: Json) -> TableSpec:
    """A table that a manifest has."""
    return table_from_proto(json_format.ParseDict(dict(given), spec_pb2.Table()))


def job_to_json(job: spec_pb2.Job) -> Json:
    """A job, for a manifest."""
    return json_format.MessageToDict(job, preserving_proto_field_name=True)


def job_from_json(given: Json) -> spec_pb2.Job:
    """A job that a manifest has."""
    return json_format.ParseDict(dict(given), spec_pb2.Job())


def shard_file(shard: int, num_shards: int) -> str:
    """The name of what a shard has written."""
    return f"shard-{shard}-of-{num_shards}.safetensors"


def worker_file(worker: int) -> str:
    """The name of what a worker had beside its tables."""
    return f"worker-{worker}.safetensors"


FINAL_FILE = "final.safetensors"  # what lies outside tables, of a job that has ended


def parse(text: bytes, where: str, job: str) -> Manifest:
    """A manifest that was written.

    Args:
        text: the file.
        where: it lies, for people.
        job: whose it has to be: a folder that was renamed, or sent, is not to become another job's state.

    Raises:
        SnapshotFormatUnsupported: another release has written it.
        SnapshotCorrupt: it is not what was written, or of another job.
    """
    try:
        whole = json.loads(text)
        form = whole["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SnapshotCorrupt(f"{where} is no manifest of a snapshot", file=where) from None
    if form != FORMAT:
        raise SnapshotFormatUnsupported(
            f"{where} has format {form!r}, this release reads format {FORMAT}: restore it with the release "
            "that wrote it, or take another snapshot",
            file=where,
        )
    try:
        body = whole["manifest"]
        if _digest(body) != whole["sha256"]:
            raise SnapshotCorrupt(f"{where} is not what was written: its checksum differs", file=where)
        manifest = _manifest(body)
        whose = manifest.job["name"]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SnapshotCorrupt(f"{where} is no manifest of a snapshot", file=where) from None
    if whose != job:
        raise SnapshotCorrupt(
            f"{where} is of job {str(whose)[:64]!r}, and lies with those of job {job}: put it into the "
            "folder of its own job, and start that one",
            file=where,
        )
    return manifest


def _manifest(body: Json) -> Manifest:
    given = dict(body)
    given["files"] = tuple(FileRecord(**record) for record in given["files"])
    given["tables"], given["shares"] = tuple(given["tables"]), tuple(given["shares"])
    given["clocks"] = {
        int(table): {int(worker): step for worker, step in clocks.items()}
        for table, clocks in given["clocks"].items()
    }
    for name in ("workers", "counters"):
        given[name] = {int(key): value for key, value in given[name].items()}
    return Manifest(**given)


def _digest(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
