"""Who is let in, and where: a service with TLS and a token, and callers who have some of both."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_lab.cluster.certificate_authority import make_certificates
from ps_lab.status.observer import is_serving
from ps_server.coordinator import readers
from ps_server.rpc import auth as gatekeeper
from ps_server.rpc import complaints
from ps_wire.access import tls_diagnosis
from ps_wire.access import token as tokens
from ps_wire.access.access import Access, read
from ps_wire.errors import (
    ConfigurationRefused,
    FrameMalformed,
    JobUnknown,
    PsError,
    ServerUnreachable,
    TlsRefused,
    TokenRefused,
    UsageError,
)
from ps_wire.frames.frame import PROTOCOL, Frame, Kind
from ps_wire.v1 import coordinator_pb2, shard_pb2
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub
from ps_worker.transport import grpc_service
from ps_worker.transport.connection import Connection
from tests.component.connections.guarded_calls import SERVICE, Calls
from tests.component.service import Cluster, LoopThread, fresh_name, run_workers, status_of
from tests.until import LIMIT_S


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access")
    for name in ("ours", "theirs"):
        make_certificates(path / name)
    (path / "token").write_text(SERVICE)
    (path / "wrong").write_text("the-token-of-another-service")
    return path


@pytest.fixture(scope="module")
def guarded(files: Path) -> Iterator[Cluster]:
    """Two shards that want a certificate and a token."""
    loop = LoopThread()
    access = read(token_file=files / "token", tls_dir=files / "ours" / "server", serves=True, complain=print)
    made = Cluster(loop, 2, access, tls_dir=files / "ours" / "worker", token_file=files / "token")
    yield made
    made.close()
    loop.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatekeeper, "ANSWER_AFTER_S", 0.0)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for what is wrong with TLS waits for each answer as long as it takes."""
    monkeypatch.setattr(tls_diagnosis.diagnose, "__defaults__", (LIMIT_S,))
    monkeypatch.setattr(grpc_service, "LIMIT_S", LIMIT_S)


def token_of(files: Path, job: str) -> Path:
    path = files / f"token-{job}"
    path.write_text(tokens.of_job(SERVICE, job) + "\n")
    return path


def push_and_pull(worker: ps.Worker) -> float:
    table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
    table.push({"w": torch.full((3000,), -1.0)})
    return float(table.pull().result(LIMIT_S).values["w"].sum())


def joined(cluster: Cluster, **settings: Any) -> float:
    with ps.connect(servers=cluster.servers, **{**cluster.settings, **settings}) as worker:
        return push_and_pull(worker)


@pytest.mark.parametrize("carrier", ["tcp", "grpc", "uds", "shm"])
def test_with_certificate_and_token_a_job_runs_on_every_carrier(guarded: Cluster, carrier: str):
    assert run_workers(guarded, push_and_pull, num_workers=2, carrier=carrier) == [3000.0] * 2


def test_the_token_of_a_job_runs_that_job_its_reader_included(guarded: Cluster, files: Path):
    job = fresh_name()
    token_file = token_of(files, job)
    settings = {**guarded.settings, "token_file": token_file}
    with ps.connect(servers=guarded.servers, job=job, **settings) as worker:
        model, seen = torch.nn.Linear(40, 2), torch.nn.Linear(40, 2)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
        model(torch.ones(1, 40)).sum().backward()
        optimizer.step()
        with ps.connect(role="reader", servers=guarded.servers, job=job, **settings) as reader:
            reader.read(seen)
        assert torch.equal(seen.weight, model.weight)
    with pytest.raises(TokenRefused, match="neither this service's nor that of job 'other'"):
        joined(guarded, job="other", token_file=token_file)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"token_file": None}, TokenRefused, r"this service wants a token: set --token-file"),
        ({"token_file": "wrong"}, TokenRefused, r"is neither this service's nor that of job 'default'"),
        ({"tls_dir": None}, TlsRefused, r"speaks TLS: set --tls-dir \(PS_TLS_DIR\)"),
        (
            {"tls_dir": "theirs/worker"},
            TlsRefused,
            r"its certificate is refused: .*theirs/worker/ca.crt must be",
        ),
        ({"tls_dir": "mixed"}, TlsRefused, r"ends the connection: it does not take .*mixed/tls.crt"),
    ],
)
def test_who_has_not_both_is_refused_at_once_and_told_what_is_missing(
    guarded: Cluster,
    files: Path,
    tmp_path: Path,
    changed: dict[str, str | None],
    error: type[PsError],
    text: str,
):
    """With the exit code of a configuration that does not fit; trainers and people who ask for status."""
    if changed.get("tls_dir") == "mixed":  # another CA's certificate; ours is trusted, too
        shutil.copytree(files / "theirs" / "worker", files / "mixed", dirs_exist_ok=True)
        both = [(files / name / "ca.crt").read_text() for name in ("ours", "theirs")]
        (files / "mixed" / "ca.crt").write_text("".join(both))
    settings = {name: files / value if value else None for name, value in changed.items()}
    with pytest.raises(error, match=text) as refused:
        joined(guarded, **settings)
    assert refused.value.exit_code == 78
    paths = {**guarded.settings, **settings}
    access = read(token_file=paths["token_file"], tls_dir=paths["tls_dir"], job="default", complain=print)
    with pytest.raises(error, match=text):
        status_of(guarded, access)


@pytest.mark.usefixtures("_patient")
def test_with_certificates_a_server_without_tls_is_named(one_shard: Cluster, files: Path):
    with pytest.raises(TlsRefused, match="does not speak TLS: start it with --tls-dir"):
        ps.connect(servers=one_shard.servers, tls_dir=str(files / "ours" / "worker"))


def test_a_server_that_is_not_there_is_unreachable_with_certificates_as_without(guarded: Cluster):
    with pytest.raises(ServerUnreachable, match=r"127.0.0.1:1 cannot be reached.*within 0.3 s"):
        ps.connect(servers="127.0.0.1:1", connect_limit=0.3, **guarded.settings)


@pytest.fixture
def strangers_calls(guarded: Cluster, files: Path) -> Calls:
    """With the token of job `theirs`."""
    tls = read(token_file=None, tls_dir=files / "ours" / "worker", complain=print).tls
    return Calls(guarded, Access(tls=tls, token=tokens.of_job(SERVICE, "theirs"), job="theirs"))


def state_key(job: str) -> pb.StateKey:
    return pb.StateKey(job=job, worker=0, incarnation=1, name="live")


def table_key(job: str) -> shard_pb2.TableKey:
    return shard_pb2.TableKey(job=job, table=0, worker=0, incarnation=1)


LET_IN = (JobUnknown, UsageError, ConfigurationRefused, FrameMalformed)
OF_A_JOB: dict[str, Callable[[Calls, str], Any]] = {
    "Open": lambda calls, job: calls(ShardStub, "Open", shard_pb2.OpenRequest(job=job, incarnation=1)),
    "Dump": lambda calls, job: calls(ShardStub, "Dump", shard_pb2.DumpRequest(key=table_key(job))),
    "LoadState": lambda calls, job: calls(
        ShardStub, "LoadState", iter([shard_pb2.PartitionState(key=table_key(job))])
    ),
    "PutState": lambda calls, job: calls(
        CoordinatorStub, "PutState", iter([pb.StateChunk(key=state_key(job), data=b"x")])
    ),
    "GetState": lambda calls, job: calls(CoordinatorStub, "GetState", pb.GetStateRequest(key=state_key(job))),
    "Share": lambda calls, job: calls(CoordinatorStub, "Share", pb.ShareRequest(job=job, incarnation=1)),
    "BeginEpoch": lambda calls, job: calls(
        CoordinatorStub, "BeginEpoch", pb.EpochRequest(job=job, incarnation=1)
    ),
    "StopJob": lambda calls, job: calls(CoordinatorStub, "StopJob", pb.StopRequest(job=job, incarnation=1)),
    "Collect": lambda calls, job: calls(
        CoordinatorStub, "Collect", pb.CollectRequest(job=job, incarnation=1)
    ),
    "Meet": lambda calls, job: calls(CoordinatorStub, "Meet", pb.MeetRequest(job=job, size=2)),
    "Use": lambda calls, job: calls(CoordinatorStub, "Use", pb.UseRequest(job=job, incarnation=1)),
    "Snapshot": lambda calls, job: calls(CoordinatorStub, "Snapshot", pb.SnapshotRequest(job=job)),
    "NameSnapshot": lambda calls, job: calls(CoordinatorStub, "NameSnapshot", pb.SnapshotRequest(job=job)),
    "Restore": lambda calls, job: calls(CoordinatorStub, "Restore", pb.RestoreRequest(job=job, snapshot="s")),
    "Drop": lambda calls, job: calls(CoordinatorStub, "Drop", pb.DropRequest(job=job, force=True)),
    "PutSnapshot": lambda calls, job: calls(
        ShardStub, "PutSnapshot", iter([shard_pb2.SnapshotChunk(file=shard_pb2.SnapshotFile(job=job))])
    ),
    "LookSnapshot": lambda calls, job: calls(ShardStub, "LookSnapshot", shard_pb2.SnapshotFile(job=job)),
}
OF_NO_JOB = {"Describe", "Follow", "Status", "Tables"}  # or they answer for the caller's job alone
STREAMS = {"Member", "Read"}  # they refuse in a reply


def test_every_call_of_the_services_is_tried_with_the_token_of_another_job():
    files = (coordinator_pb2.DESCRIPTOR, shard_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    methods = {method.name for service in services for method in service.methods}
    assert methods == OF_A_JOB.keys() | OF_NO_JOB | STREAMS


@pytest.mark.parametrize("method", OF_A_JOB)
def test_the_token_of_one_job_opens_nothing_of_another(guarded: Cluster, strangers_calls: Calls, method: str):
    """Not though all numbers are right: the job is live, and the worker and its incarnation are known."""
    job = fresh_name()
    with ps.connect(servers=guarded.servers, job=job, **guarded.settings) as worker:
        push_and_pull(worker)
        with pytest.raises(
            TokenRefused, match=f"the token is that of job theirs, and does not open job '{job}'"
        ):
            OF_A_JOB[method](strangers_calls, job)
        with pytest.raises(LET_IN):  # its own is not there, nor a place for snapshots
            OF_A_JOB[method](strangers_calls, "theirs")


def test_with_the_token_of_one_job_nobody_joins_or_reads_another(guarded: Cluster, strangers_calls: Calls):
    job = fresh_name()
    with ps.connect(servers=guarded.servers, job=job, **guarded.settings) as worker:
        push_and_pull(worker)
        for reply in (strangers_calls.member(job), strangers_calls.read(job), strangers_calls.member("new")):
            assert reply.refused.error == "TokenRefused", reply
        assert {entry.name for entry in ask_all(guarded).jobs} >= {job}
        assert "new" not in {entry.name for entry in ask_all(guarded).jobs}


def test_who_has_the_token_of_one_job_takes_no_readers_place_of_another(
    guarded: Cluster, strangers_calls: Calls, files: Path, monkeypatch: pytest.MonkeyPatch
):
    """However many it sends."""
    monkeypatch.setattr(readers, "MAX_READERS", 1)
    job = fresh_name()
    joined(guarded, job=job)
    settings = {**guarded.settings, "token_file": token_of(files, job), "job": job}
    with ps.connect(role="reader", servers=guarded.servers, **settings):
        with pytest.raises(ConfigurationRefused, match=f"job {job} has 1 readers already"):
            ps.connect(role="reader", servers=guarded.servers, **settings)
        assert strangers_calls.read("theirs").refused.error == "JobUnknown"


def ask_all(cluster: Cluster, **changed: Any) -> Any:
    settings = {**cluster.settings, **changed}
    job = settings.pop("job", None)
    return status_of(cluster, read(job=job, complain=print, **settings))


def test_with_the_token_of_one_job_status_shows_that_job_alone(guarded: Cluster, files: Path):
    one, other = fresh_name(), fresh_name()
    for job in (one, other):
        joined(guarded, job=job)
    seen = ask_all(guarded, token_file=token_of(files, one), job=one)
    assert [(entry.name, len(entry.tables)) for entry in seen.jobs] == [(one, 1)]
    assert {one, other} <= {entry.name for entry in ask_all(guarded).jobs}


def test_the_token_of_a_job_makes_no_shard(strangers_calls: Calls):
    register = pb.FollowRequest(register=pb.Register(protocol=PROTOCOL, shard=1, num_shards=2))
    with pytest.raises(TokenRefused, match="does not allow to be a shard"):
        strangers_calls(CoordinatorStub, "Follow", iter([register]))


def test_the_token_of_a_job_does_not_stop_another_one(guarded: Cluster, strangers_calls: Calls):
    """As a person would, who is no member; the service's token does."""
    job = fresh_name()
    joined(guarded, job=job)
    with pytest.raises(TokenRefused):
        strangers_calls(CoordinatorStub, "StopJob", pb.StopRequest(job=job, reason="x"))


def test_health_needs_no_token(guarded: Cluster, files: Path):
    tls = read(token_file=None, tls_dir=files / "ours" / "worker", complain=print)
    assert all(is_serving(address, tls, timeout_s=LIMIT_S) for address in guarded.servers.split(","))


def test_wrong_tokens_are_counted_and_share_a_line_of_the_log(
    guarded: Cluster, files: Path, caplog: pytest.LogCaptureFixture
):
    """However many there are, and without what was given or wanted."""
    shard = guarded.shards[0].shard
    before = shard.refused_frames
    with caplog.at_level(logging.DEBUG):
        for _ in range(5):
            with pytest.raises(TokenRefused):
                joined(guarded, token_file=files / "wrong")
    assert shard.refused_frames == before + 5
    lines = [line for line in caplog.messages if "without a token of ours" in line]
    assert len(lines) <= 1
    assert SERVICE not in caplog.text
    assert (files / "wrong").read_text() not in caplog.text


def test_what_a_worker_says_of_itself_stays_on_its_line(
    one_shard: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A host name with a line break forges no line of the log."""
    monkeypatch.setattr("socket.gethostname", lambda: "a\nforged \x1b[31m")
    with caplog.at_level(logging.INFO, logger="ps_server"):
        joined(one_shard, job=fresh_name())
    assert any(r"host=a\nforged \x1b[31m" in line for line in caplog.messages)
    assert not any("\n" in line or "\x1b" in line for line in caplog.messages)


@pytest.mark.parametrize("carrier", ["grpc", "tcp", "uds"])
def test_what_opens_the_data_of_one_job_opens_that_of_no_other(
    guarded: Cluster,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    carrier: str,
):
    """A worker of one job says in its HELLO that it is of the other, with the token for one connection."""
    monkeypatch.setattr(complaints, "MAX_LINES", 1000)  # which all strangers share, those of other tests too
    victim, own = fresh_name(), fresh_name()
    with ps.connect(servers=guarded.servers, job=victim, **guarded.settings) as worker:
        push_and_pull(worker)

        def hello(connection: Connection, token: bytes) -> Frame:
            return Frame(kind=Kind.HELLO, worker=0, incarnation=1, meta=token + victim.encode())

        monkeypatch.setattr(Connection, "_hello", hello)
        refused = f"worker 0 of job {victim}: this token was not given to it"
        with pytest.raises(
            PsError, match=rf"{refused}|PS_RETRY_LIMIT"
        ):  # the last try may have ended otherwise
            joined(guarded, job=own, carrier=carrier, token_file=token_of(files, own), retry_limit=2)
        assert f"a stranger: HELLO frame refused: {refused}" in caplog.messages
        for server in guarded.shards:
            table = server.shard.table(victim, 0)
            assert table.ledger(0).received == len(table.cells())


def test_wrong_tokens_beyond_a_number_are_answered_at_once(
    guarded: Cluster, files: Path, monkeypatch: pytest.MonkeyPatch
):
    """So they hold no memory; a good one is never kept waiting."""
    monkeypatch.setattr(gatekeeper, "ANSWER_AFTER_S", 1000.0)
    monkeypatch.setattr(gatekeeper, "MAX_WAITING", 0)
    with pytest.raises(TokenRefused):
        joined(guarded, token_file=files / "wrong")
    monkeypatch.setattr(gatekeeper, "MAX_WAITING", 9)
    assert joined(guarded, job=fresh_name()) == 3000.0


def test_a_reader_needs_the_token_too(guarded: Cluster, files: Path):
    job = fresh_name()
    joined(guarded, job=job)
    with pytest.raises(TokenRefused):
        ps.connect(
            role="reader",
            servers=guarded.servers,
            job=job,
            **{**guarded.settings, "token_file": files / "wrong"},
        )
