"""The manifest of a snapshot, in JSON, with a checksum of its own.

    URL/JOB/00000012-5f3a91c2/shard-0-of-2.safetensors   weights, optimizer state, clocks: what a shard held
                              worker-3.safetensors       what a worker had beside its tables
                              manifest.json              written last: without it there is no snapshot

The manifest names every file with its size and checksum, the job and its tables with names and shapes, the
step of each worker that the cut was made at, and what was not the same on all partitions.

Whoever may bring a snapshot may write what it likes into it: `parse` makes checked values of a manifest,
once, and names the field that is none. All sizes are bounded by constants or by what else is there: shards by
their files, workers by the job's number of them.

Values only. It must not know where snapshots lie (`store`) or how tensors do (`tensors`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from ps_wire.errors import PsError, SnapshotCorrupt, SnapshotFormatUnsupported
from ps_wire.frames.frame import MAX_GENERATION
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.snapshot.json_fields import MAX_SAMPLES, Field, FieldInvalid, Json, read, shown
from ps_wire.snapshot.saved_epoch import SavedEpoch, epochs_from_json
from ps_wire.spec.address import MAX_SERVERS
from ps_wire.spec.job_spec import MAX_LEASE_S, check_spec
from ps_wire.spec.table import MAX_TABLES, TableSpec
from ps_wire.v1 import spec_pb2

FORMAT = 2
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = (
    16 << 20
)  # some 70,000 parameters; JSON takes up to twenty times its size while it is read
MAX_SAVED_WORKERS = 4096  # that train at a cut
MAX_INCARNATION = (1 << 64) - 1
MAX_NUMBER = 99_999_999
MAX_FILE_BYTES = 1 << 50
MAX_COUNTERS = 64
FILE = re.compile(r"((shard-\d{1,6}-of|worker)-\d{1,6}\.safetensors|final\.safetensors|manifest\.json)\Z")
NAME = re.compile(r"(\d{8})-[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
LEASE_S = 10.0  # of workers in snapshots that do not say it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a snapshot: its name in the snapshot's folder, its size and SHA-256, in hex."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWorker:
    """Facts about a worker that trained at the cut, beside its file.

    Attributes:
        incarnation: that it had.
        lease_s: after which it was evicted; 0: never.
        samples: that it had used.
    """

    incarnation: int = 0
    lease_s: float = LEASE_S
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A snapshot's facts and the files that belong to it.

    Attributes:
        number: grows with each snapshot of the job.
        created: when it was complete, in ISO 8601, by the coordinator's clock.
        generation: of the shards that wrote it.
        job: name, consistency, numbers of workers.
        num_shards: that wrote it.
        tables: by number, with names, shapes and hyper-parameters of the start.
        clocks: table -> worker -> the first step that is not in the snapshot.
        files: of shards and workers.
        workers: that trained at the cut.
        shares: who shares which epochs of loaders.
        counters: table -> counts over all partitions; `unequal` are partitions with another history than most
            have: something was dropped, skipped or mixed in some of them only.
        ended: the job had finished.
    """

    number: int
    created: str
    generation: int
    job: spec_pb2.Job
    num_shards: int
    tables: tuple[TableSpec, ...]
    clocks: Mapping[int, Mapping[int, int]]
    files: tuple[FileRecord, ...]
    workers: Mapping[int, SavedWorker] = field(default_factory=dict)
    shares: tuple[SavedEpoch, ...] = ()
    counters: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
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
        body = json.loads(json.dumps(self._body()))  # with texts for keys, as whoever reads it has them
        return json.dumps({"format": FORMAT, "sha256": _digest(body), "manifest": body}, indent=1) + "\n"

    def _body(self) -> Json:
        return {
            "number": self.number,
            "created": self.created,
            "generation": self.generation,
            "job": json_format.MessageToDict(self.job, preserving_proto_field_name=True),
            "num_shards": self.num_shards,
            "tables": [
                json_format.MessageToDict(table_to_proto(table), preserving_proto_field_name=True)
                for table in self.tables
            ],
            "clocks": self.clocks,
            "files": [{"name": it.name, "bytes": it.bytes, "sha256": it.sha256} for it in self.files],
            "workers": {
                worker: {"incarnation": it.incarnation, "lease_s": it.lease_s, "samples": it.samples}
                for worker, it in self.workers.items()
            },
            "shares": [epoch.to_json() for epoch in self.shares],
            "counters": self.counters,
            "ended": self.ended,
        }


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
        SnapshotCorrupt: it is not what was written, says what cannot be (the field is named), or is of
            another job.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise SnapshotCorrupt(f"{where} has over {MAX_MANIFEST_BYTES} bytes: it is no manifest", file=where)
    try:
        whole = read(text)
        form = whole["format"]
    except (KeyError, TypeError, FieldInvalid):
        raise SnapshotCorrupt(f"{where} is no manifest of a snapshot", file=where) from None
    if form != FORMAT or isinstance(form, bool):
        raise SnapshotFormatUnsupported(
            f"{where} has format {shown(form)}, this release reads format {FORMAT}: restore it with the "
            "release that wrote it, or take another snapshot",
            file=where,
        )
    try:
        parts = Field(whole).form(("format", "sha256", "manifest"))
        body = parts["manifest"].value
        if _digest(body) != parts["sha256"].value:
            raise SnapshotCorrupt(f"{where} is not what was written: its checksum differs", file=where)
        return _manifest(Field(body), where, job)
    except FieldInvalid as error:
        raise SnapshotCorrupt(
            f"{where} is no manifest of a snapshot: {error}", file=where, field=error.field
        ) from None


_NEEDED = ("number", "created", "generation", "job", "num_shards", "tables", "clocks", "files")


def _manifest(given: Field, where: str, job: str) -> Manifest:
    parts = given.form(_NEEDED, ("workers", "shares", "counters", "ended"))
    spec = _job(parts["job"], where, job)
    tables = tuple(_table(number, it) for number, it in enumerate(parts["tables"].entries(MAX_TABLES)))
    if not tables:
        raise parts["tables"].refuse("at least one table")
    last_table, last_worker = len(tables) - 1, spec.num_workers - 1
    clocks = {
        table: {worker: step.whole() for worker, step in its.numbered(last_worker, spec.num_workers).items()}
        for table, its in parts["clocks"].numbered(last_table, len(tables)).items()
    }
    workers = {
        worker: _worker(it)
        for worker, it in parts.get("workers", Field({})).numbered(last_worker, MAX_SAVED_WORKERS).items()
    }
    num_shards = parts["num_shards"].whole(MAX_SERVERS, least=1)
    return Manifest(
        number=parts["number"].whole(MAX_NUMBER),
        created=parts["created"].text(64),
        generation=parts["generation"].whole(MAX_GENERATION),
        job=spec,
        num_shards=num_shards,
        tables=tables,
        clocks=clocks,
        files=_files(parts["files"], num_shards, workers),
        workers=workers,
        shares=epochs_from_json(parts.get("shares", Field([], "shares")), spec.num_workers),
        counters=_counters(parts.get("counters", Field({}, "counters")), len(tables)),
        ended=parts["ended"].flag() if "ended" in parts else False,
    )


def _job(given: Field, where: str, job: str) -> spec_pb2.Job:
    parts = given.form(("name",), ("consistency", "num_workers", "min_workers", "nonfinite"))
    whose = parts["name"].text(64)
    if whose != job:
        raise SnapshotCorrupt(
            f"{where} is of job {whose!a}, and lies with those of job {job}: put it into the "
            "folder of its own job, and start that one",
            file=where,
        )
    message: spec_pb2.Job = _message(given, spec_pb2.Job())
    try:
        return check_spec(message)
    except PsError as error:
        raise FieldInvalid(given.path, f"a job ({error.message[:200]})", given.value) from None


def _table(number: int, given: Field) -> TableSpec:
    message: spec_pb2.Table = _message(given, spec_pb2.Table())
    try:
        table = table_from_proto(message)
    except PsError as error:
        raise FieldInvalid(given.path, f"a table ({error.message[:200]})", given.value) from None
    if table.number != number:
        raise given.within("number", table.number).refuse(f"{number}")
    return table


def _message(given: Field, message: Any) -> Any:
    try:
        json.dumps(given.value, ensure_ascii=False).encode()  # else protobuf ends with SystemError
        return json_format.ParseDict(given.mapping(), message)
    except (json_format.Error, ValueError, TypeError, AttributeError, OverflowError) as error:
        text = str(error)[:200]
        raise FieldInvalid(given.path, f"a {type(message).__name__} ({text})", given.value) from None


def _worker(given: Field) -> SavedWorker:
    parts = given.form((), ("incarnation", "lease_s", "samples"))
    known: dict[str, Any] = {}
    if "incarnation" in parts:
        known["incarnation"] = parts["incarnation"].whole(MAX_INCARNATION)
    if "lease_s" in parts:
        known["lease_s"] = parts["lease_s"].real(MAX_LEASE_S)
    if "samples" in parts:
        known["samples"] = parts["samples"].whole(MAX_SAMPLES)
    return SavedWorker(**known)


def _files(given: Field, num_shards: int, workers: Mapping[int, SavedWorker]) -> tuple[FileRecord, ...]:
    """Each is of one of the shards, all of which have one, or of a worker, or the last state of all."""
    shards = {shard_file(shard, num_shards) for shard in range(num_shards)}
    others = {FINAL_FILE, *map(worker_file, workers)}
    records: dict[str, FileRecord] = {}
    for entry in given.entries(len(shards) + len(others)):
        parts = entry.form(("name", "bytes", "sha256"))
        name, digest = parts["name"].text(64), parts["sha256"].text(64)
        if name in records or name not in shards | others:
            raise parts["name"].refuse(
                f"a file of one of {num_shards} shards or {len(workers)} workers, once"
            )
        if not _SHA256.match(digest):
            raise parts["sha256"].refuse("a SHA-256 in hex")
        records[name] = FileRecord(name=name, bytes=parts["bytes"].whole(MAX_FILE_BYTES), sha256=digest)
    if not shards <= records.keys():
        raise given.refuse(f"a file of each of num_shards={num_shards}")
    return tuple(records.values())


def _counters(given: Field, num_tables: int) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for table, its in given.numbered(num_tables - 1, num_tables).items():
        if len(its.mapping()) > MAX_COUNTERS:
            raise its.refuse(f"an object of at most {MAX_COUNTERS}")
        found[table] = {
            its.within("name", name).text(64): its.within(name, count).whole(MAX_SAMPLES)
            for name, count in its.mapping().items()
        }
    return found


def _digest(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
