"""Snapshots that somebody brings and has a job go back to: what lies in them is refused by name, or harmless.

Whoever has a job's token may bring any bytes as a snapshot of that job. No other job may notice.
"""

from __future__ import annotations

import json
import logging
import shutil
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import ps_worker as ps
from ps_server.coordinator.allowance import Allowance
from ps_server.coordinator.recovery import REFUSED_S, RESTORES, RESTORES_WITHIN_S
from ps_server.coordinator.snapshots.durability import Durability
from ps_server.rpc.complaints import MAX_LINES
from ps_server.shard.state.snapshot_reader import SnapshotReader
from ps_server.shard.state.snapshot_writer import FACTS
from ps_server.shard.state.snapshots import MAX_ARRIVING
from ps_wire.access.access import OPEN
from ps_wire.access.channel import dial
from ps_wire.errors import PsError, SnapshotCorrupt, SnapshotFailed, SnapshotMismatch, SnapshotUnusable
from ps_wire.snapshot.manifest import MANIFEST, MAX_MANIFEST_BYTES, parse
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.snapshot.tensors import MAX_HEADER_BYTES, TensorFile
from ps_wire.spec.plan import Plan
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub
from tests.component.joining import joins
from tests.component.service import Cluster, LoopThread, together
from tests.security import manifest_mutations as mutations
from tests.security.brought import Brought, bring, restore, take
from tests.until import LIMIT_S, until

JOB, BESIDE = "evil", "beside"
PIECE = "shard-0-of-1.safetensors"
MANY = 10**9


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One shard with snapshots, in memory where that can be: a disk waits for itself at each fsync."""
    memory = Path("/dev/shm")
    made_in = tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path_factory.mktemp("manifests"))
    folder, loop = Path(made_in), LoopThread()
    options: dict[str, Any] = {
        "snapshot_dir": str(folder / "snapshots"),
        "state_dir": folder / "state",
        "durability": Durability.SNAPSHOT,
    }
    made = Cluster(loop, 1, options=options)
    yield made
    made.close()
    loop.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def honest(service: Cluster) -> Brought:
    """A snapshot that nobody has tampered with."""
    return take(service, JOB)


@pytest.fixture(autouse=True)
def _often(service: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs go back as often as tests want; one has its own limit."""
    monkeypatch.setattr(service.coordinator._recovery, "_restores", Allowance(MANY, 1.0))


@pytest.fixture
def channel(service: Cluster) -> Iterator[grpc.Channel]:
    with dial(service.servers, OPEN) as made:
        yield made


def said(honest: Brought, change: Callable[[Any], object]) -> bytes:
    """The manifest after a change of what it says."""
    body = mutations.body_of(honest.manifest)
    change(body)
    return mutations.signed(body)


def of_job(honest: Brought, job: str) -> Brought:
    """The same, as a snapshot of another job."""
    return replace(honest, job=job, manifest=said(honest, put("job.name", job)))


def put(field: str, value: object) -> Callable[[Any], None]:
    """Sets a field, `a.b.0.c`."""

    def change(body: Any) -> None:
        *path, last = [int(step) if step.isdigit() else step for step in field.split(".")]
        for step in path:
            body = body[str(step)] if isinstance(body, dict) else body[step]
        body[str(last) if isinstance(body, dict) else last] = value

    return change


LIES = [
    (put("workers.-5", {}), "workers: expected keys"),
    (put("workers.1099511627776", {}), "workers: expected keys"),
    (put("workers.5000000000", {}), "workers: expected keys"),
    (
        put("workers", {str(worker): {} for worker in range(100_000)}),
        "workers: expected an object of at most",
    ),
    (put("workers.0.lease_s", float("nan")), "workers.0.lease_s: expected a number in .*got nan"),
    (put("workers.0.lease_s", 10**400), "workers.0.lease_s: expected a number in"),
    (put("workers.0.lease_s", -1), "workers.0.lease_s: expected a number in"),
    (put("workers.0.samples", 1 << 70), "workers.0.samples: expected a whole number"),
    (put("num_shards", MANY), "num_shards: expected a whole number in 1..4096"),
    (put("num_shards", 2), r"files\[.*expected a file of one of 2 shards"),
    (put("clocks.0.0", -1), "clocks.0.0: expected a whole number"),
    (put("clocks.0.0", 1 << 70), "clocks.0.0: expected a whole number"),
    (put("clocks.0.0", [1]), "clocks.0.0: expected a whole number.*got a list of 1"),
    (put("clocks.7", {}), "clocks: expected an object of at most 1"),
    (put("job.num_workers", 100_000), "job: expected a job .*--num-workers must be in"),
    (put("job.num_workers", "many"), "job: expected a Job"),
    (put("job.consistency", "sometimes"), "job: expected a job .*unknown consistency"),
    (put("tables.0.number", 9), "tables.0.: expected|tables.0..number: expected 0"),
    (put("tables.0.parameters.0.shape", [-1]), r"tables\[0\]: expected a table"),
    (put("tables.0.parameters.0.shape", ["x"]), r"tables\[0\]: expected a Table"),
    (put("tables", []), "tables: expected at least one table"),
    (put("files.0.bytes", -1), r"files\[0\].bytes: expected a whole number"),
    (put("files.0.sha256", "x"), r"files\[0\].sha256: expected a SHA-256"),
    (put("files.0.name", "../../etc/passwd"), r"files\[0\].name: expected a file of"),
    (put("shares.0.loader", MANY), r"shares\[0\].loader: expected a whole number in 0..999"),
    (put("shares.0.workers", [0, MANY]), r"shares\[0\].workers\[1\]: expected a whole number in 0..1"),
    (put("shares.0.left", [[7, 0]]), r"shares\[0\].left\[0\]\[0\]: expected the number of a worker"),
    (put("shares.0.ranks", [1, 0]), r"shares\[0\].ranks\[1\]: expected a whole number in 1..1024"),
    (put("shares.0.ranks", [1]), r"shares\[0\].ranks: expected a number of ranks for each worker"),
    (put("shares.0.trains", 1), r"shares\[0\].trains: expected true or false"),
    (put("counters.0.applied", 1 << 70), "counters.0.applied: expected a whole number"),
    (put("ended", "yes"), "ended: expected true or false"),
    (put("more", 1), "the whole: expected no field 'more'"),
]


@pytest.mark.parametrize(("lie", "name"), LIES, ids=[name[:40] for _, name in LIES])
def test_a_manifest_that_lies_is_refused_by_the_name_of_the_field(
    honest: Brought, channel: grpc.Channel, lie: Callable[[Any], None], name: str
):
    """When it is brought, before any of it is used."""
    text = said(honest, lie)
    with pytest.raises(SnapshotCorrupt, match=name):
        parse(text, MANIFEST, JOB)
    with pytest.raises(grpc.RpcError) as refused:
        bring(channel, replace(honest, manifest=text, files={}))
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    assert SnapshotCorrupt.__name__ in str(refused.value.trailing_metadata())


def test_a_manifest_without_a_shards_file_is_refused(honest: Brought):
    """So nobody claims a billion shards in a few bytes."""
    text = said(honest, lambda body: body["files"].pop(0))
    with pytest.raises(SnapshotCorrupt, match="files: expected a file of each of num_shards=1"):
        parse(text, MANIFEST, JOB)


def test_what_is_no_manifest_at_all_is_refused_at_once(honest: Brought):
    for text in (
        b"[" * MAX_MANIFEST_BYTES,
        b"",
        b"\xff",
        b"0" * 5000,
        honest.manifest + b" " * MAX_MANIFEST_BYTES,
    ):
        with pytest.raises(SnapshotUnusable):
            parse(text, MANIFEST, JOB)


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_mutated_manifests_are_refused_or_are_manifests(honest: Brought, seed: int):
    """Never anything else; what is taken says the same when it is written again."""
    taken = longest = 0
    for text in mutations.manifests(seed, honest.manifest, 700):
        try:
            manifest = parse(text, MANIFEST, JOB)
        except SnapshotUnusable as error:
            longest = max(longest, len(error.message))
            continue
        taken += 1
        written = manifest.text()
        assert parse(written.encode(), MANIFEST, JOB).text() == written  # a NaN is no other NaN
        assert max(manifest.workers, default=0) < manifest.job.num_workers
    assert longest < 1000
    assert 20 < taken < 350, "most are refused, and not all"


@pytest.fixture
def part(honest: Brought, tmp_path: Any) -> Callable[[bytes], None]:
    """What reads a shard's part, all of it, where its file is this."""
    store, name = SnapshotStore(f"memory://{tmp_path.name}"), "00000001-aaaaaaaa"
    body = mutations.body_of(honest.manifest)
    reader = SnapshotReader(store, shard=0, num_shards=1)

    def read(file: bytes) -> None:
        store.write(JOB, name, PIECE, [file])
        store.write(JOB, name, MANIFEST, [mutations.signed(mutations.described(body, PIECE, file))])
        tables = store.manifest(JOB, name).tables
        with reader.open(JOB, name, tables) as state_of:
            for spec in tables:
                state_of(Plan(spec, 1), spec)

    return read


@pytest.mark.parametrize("seed", range(3))
def test_mutated_pieces_are_refused_or_are_pieces(honest: Brought, part: Callable[[bytes], None], seed: int):
    """Headers, facts and sizes that lie: a named error, before memory is taken for what they claim."""
    refused = 0
    part(honest.files[PIECE])
    for file in mutations.pieces(seed, honest.files[PIECE], FACTS, 150):
        try:
            part(file)
        except (SnapshotUnusable, SnapshotMismatch):
            refused += 1
    assert 50 < refused < 150, "most are refused, and not all"


def changed_facts(file: bytes, change: Callable[[Any], None]) -> bytes:
    size = struct.unpack("<Q", file[:8])[0]
    header = json.loads(file[8 : 8 + size])
    facts = json.loads(header["__metadata__"][FACTS])
    change(facts)
    header["__metadata__"][FACTS] = json.dumps(facts)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + file[8 + size :]


@pytest.mark.parametrize(
    ("lie", "name"),
    [
        (
            put("tables.0.partitions.0.version", -1),
            r"tables\[0\].partitions\[0\].version: expected a whole number",
        ),
        (
            put("tables.0.partitions.0.ledgers.5000000000", {}),
            r"partitions\[0\].ledgers: expected an object|keys",
        ),
        (
            put("tables.0.partitions.0.ledgers.0.applied", 1 << 70),
            r"ledgers.0.applied: expected a whole number",
        ),
        (
            put("tables.0.partitions.0.tau", [[1 << 40, 1]]),
            r"tau\[0\]\[0\]: expected a whole number in 0..65535",
        ),
        (put("tables.0.partitions.0.pieces.0.2", MANY), r"pieces\[0\]\[2\]: expected a whole number in 1.."),
        (put("tables.0.partitions.0.pieces.0.1", 3), r"pieces\[0\]\[\d\]: expected a"),
        (
            put("tables.0.partitions.0.pieces.0.0", "other"),
            r"pieces\[0\]\[0\]: expected a parameter of table 0",
        ),
        (put("tables.0.partitions.0.pieces", []), "were not saved"),
        (
            put("tables.0.partitions.0.pieces.0.3", ["exp_avg", "wings"]),
            "wings of parameter .* was not saved",
        ),
        (put("tables.0.table", 5), "says nothing of table 0"),
    ],
)
def test_facts_of_a_piece_that_lie_are_named(
    honest: Brought, part: Callable[[bytes], None], lie: Callable[[Any], None], name: str
):
    with pytest.raises(PsError, match=name):
        part(changed_facts(honest.files[PIECE], lie))


def test_a_table_takes_no_memory_before_all_of_it_is_found(
    service: Cluster, honest: Brought, channel: grpc.Channel
):
    """A manifest that claims terabytes, for which a few bytes were brought; no limit of memory is set."""

    def huge(body: Any) -> None:
        for parameter in body["tables"][0]["parameters"]:
            parameter["shape"] = [str(1 << 40)]

    opened = service.shards[0].shard.open_table
    name = bring(channel, replace(honest, manifest=said(honest, huge)))
    called: list[Any] = []
    service.shards[0].shard.open_table = lambda *given: called.append(given)
    try:
        with pytest.raises(grpc.RpcError, match="could not go back"):
            restore(channel, JOB, name)
    finally:
        service.shards[0].shard.open_table = opened
    shapes = {parameter.shape for _, spec, *_ in called for parameter in spec.parameters}
    assert (1 << 40,) not in shapes, "the snapshot before may be used instead"


def test_a_header_that_is_too_long_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / PIECE
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 8))
        file.truncate(2 * MAX_HEADER_BYTES)
    with pytest.raises(SnapshotCorrupt, match="its header has 67108872 bytes"):
        TensorFile(path, "here")


def test_a_snapshot_of_a_job_that_trains_otherwise_is_refused(
    service: Cluster, honest: Brought, channel: grpc.Channel, caplog: Any
):
    """Else the coordinator would go on with one number of workers, and the shards with another."""
    first = of_job(honest, "otherwise")
    restore(channel, first.job, bring(channel, first))
    name = bring(channel, replace(first, manifest=said(first, put("job.num_workers", 3))))
    with pytest.raises(grpc.RpcError, match="could not go back"):
        restore(channel, first.job, name)
    assert "number of workers: the job has 2, the snapshot 3" in caplog.text


def test_a_job_goes_back_only_so_often(
    service: Cluster, honest: Brought, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
):
    """Each time takes a generation of the whole service; who is refused is told when to come again."""
    recovery, now_s = service.coordinator._recovery, [1e6]
    monkeypatch.setattr(recovery, "_clock", lambda: now_s[0])
    monkeypatch.setattr(recovery, "_restores", Allowance(RESTORES, RESTORES_WITHIN_S))
    often = of_job(honest, "often")
    name = bring(channel, often)
    generations = service.coordinator._fleet.registry.generations
    before = generations._last
    for _ in range(RESTORES):
        restore(channel, often.job, name)
        now_s[0] += 1.0
    generation = generations._last
    assert generation >= before + RESTORES  # one that is tried again takes another
    for _ in range(3):
        with pytest.raises(
            grpc.RpcError, match="has gone back 4 times in 600 s: try again in 596 s"
        ) as refused:
            restore(channel, often.job, name)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert generations._last == generation
    now_s[0] += RESTORES_WITHIN_S
    restore(channel, often.job, name)


def test_who_joins_again_and_again_has_a_snapshot_that_cannot_be_used_tried_only_so_often(
    service: Cluster, honest: Brought, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    """A try takes a generation and lines of the log; until the next, who comes hears what the last said."""
    recovery, now_s = service.coordinator._recovery, [1e6]
    monkeypatch.setattr(recovery, "_clock", lambda: now_s[0])
    elsewhere = of_two_servers(of_job(honest, "elsewhere"))
    for _ in range(8):
        name = bring(channel, elsewhere)
    with pytest.raises(grpc.RpcError, match="is of 2 servers, here are 1"):
        restore(channel, elsewhere.job, name)
    generations = service.coordinator._fleet.registry.generations
    before = generations._last
    for _ in range(20):
        refused = joins(service, elsewhere.job, 0).refused
        assert (refused.error, "is of 2 servers" in refused.message) == ("SnapshotUnusable", True)
    assert generations._last == before
    now_s[0] += REFUSED_S
    told = [joins(service, elsewhere.job, 0).refused.error for _ in range(2)]
    assert told[0] == "ServerNotReady"
    until(lambda: recovery.idle, "it was tried again")
    assert joins(service, elsewhere.job, 0).refused.error == "SnapshotUnusable"
    assert generations._last == before + 1  # for all snapshots that are tried
    lines = [line for line in caplog.text.splitlines() if "job elsewhere: snapshot" in line]
    assert len(lines) == MAX_LINES  # of 16


def of_two_servers(honest: Brought) -> Brought:
    """The same, of two servers, whose parts are not here."""
    body = mutations.body_of(honest.manifest)
    (part,) = [file for file in body["files"] if file["name"].startswith("shard")]
    body["files"].remove(part)
    body["files"] += [{**part, "name": f"shard-{index}-of-2.safetensors"} for index in range(2)]
    body["num_shards"] = 2
    files = {name: blob for name, blob in honest.files.items() if not name.startswith("shard")}
    return replace(honest, manifest=mutations.signed(body), files=files)


def test_what_a_job_may_have_brought_at_once_is_bounded(service: Cluster):
    snapshots = service.shards[0].shard.snapshots
    with ExitStack() as held:
        for _ in range(MAX_ARRIVING):
            held.enter_context(snapshots.place(JOB))
        with pytest.raises(SnapshotFailed, match="16 files of snapshots of job 'evil' are being brought"):
            held.enter_context(snapshots.place(JOB))
        held.enter_context(snapshots.place("other"))
    with snapshots.place(JOB):
        """There is room again."""


class Beside:
    """A job of two workers under bsp that trains until it is told to end; both take the same steps."""

    def __init__(self, service: Cluster) -> None:
        self._service = service
        self._steps: int | None = None
        self.over = threading.Event()

    @staticmethod
    def gradient(rank: int, step: int) -> torch.Tensor:
        return torch.full((3000,), 0.125 * (1 + rank + step % 7))

    def train(self, rank: int) -> tuple[int, torch.Tensor]:
        """Returns its steps, and the weights of the end."""
        values = torch.zeros(3000)
        with ps.connect(servers=self._service.servers, job=BESIDE, num_workers=2, worker=rank) as worker:
            table = worker.table({"w": values}, optimizer=ps.SGD(lr=0.1, momentum=0.9))
            while self._steps is None or table.step < self._steps:
                if rank == 0 and self._steps is None and self.over.is_set():
                    self._steps = table.step + 2  # worker 1 has begun one more at most
                table.push({"w": self.gradient(rank, table.step)})
                values = table.pull().result(LIMIT_S).values["w"].clone()
            worker.finish()
            return table.step, values

    def undisturbed(self, steps: int) -> torch.Tensor:
        """The weights of a run in one process."""
        weights = torch.zeros(3000, requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9, fused=True)
        for step in range(steps):
            weights.grad = (self.gradient(0, step) + self.gradient(1, step)) / 2
            optimizer.step()
        return weights.detach()


def taken_lies(honest: Brought) -> list[Brought]:
    """Mutated snapshots whose manifests can be brought. How many that are differs with the honest one."""
    lies = []
    for body in mutations.bodies(11, mutations.body_of(honest.manifest), 600):
        with suppress(SnapshotUnusable):
            parse(mutations.signed(body), MANIFEST, JOB)
            lies.append(replace(honest, manifest=mutations.signed(body)))
    body = mutations.body_of(honest.manifest)
    for file in mutations.pieces(12, honest.files[PIECE], FACTS, 16):
        text = mutations.signed(mutations.described(body, PIECE, file))
        lies.append(replace(honest, manifest=text, files={**honest.files, PIECE: file}))
    return [of_job(lie, f"evil-{number}") for number, lie in enumerate(lies)]


def test_who_restores_mutated_snapshots_harms_no_other_job(
    service: Cluster, honest: Brought, channel: grpc.Channel, caplog: Any
):
    """Status answers, leases are looked at, and a bsp job beside it ends with the bytes of a run alone."""
    caplog.set_level(logging.ERROR, logger="ps_server")
    beside = Beside(service)

    def attack() -> Counter[str]:
        outcomes: Counter[str] = Counter()
        try:
            for lie in taken_lies(honest):
                outcomes[restored(channel, lie)] += 1
                known = CoordinatorStub(channel).Status(pb.StatusRequest(), timeout=LIMIT_S)
                assert BESIDE in {job.job.name for job in known.jobs}
                ShardStub(channel).Tables(shard_pb2.TablesRequest(), timeout=LIMIT_S)
        finally:
            beside.over.set()
        return outcomes

    bodies: list[Callable[[], Any]] = [lambda: beside.train(0), lambda: beside.train(1), attack]
    (steps, ours), (_, theirs), outcomes = together(bodies, 1.4 * LIMIT_S)
    assert outcomes["restored"] > 10, outcomes
    assert not outcomes.keys() & {"INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED"}, outcomes
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, beside.undisturbed(steps))
    looking = service.coordinator._leases._looking
    assert looking is None or not looking.done() or looking.exception() is None
    assert "bug" not in caplog.text


def restored(channel: grpc.Channel, lie: Brought) -> str:
    """What came of it: "restored", or the status that refused it."""
    try:
        restore(channel, lie.job, bring(channel, lie))
    except grpc.RpcError as error:
        return str(error.code().name)
    return "restored"
