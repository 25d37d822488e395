"""Certificates and tokens between real processes: who trains, who is refused, and what no log shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ps_lab.cluster.certificate_authority import make_certificates
from ps_lab.cluster.ports import free_ports
from ps_lab.status.observer import ask, is_serving
from ps_wire.access import token as tokens
from ps_wire.access.access import read
from ps_wire.errors import ServerUnreachable

from .processes import LIMIT_S, Process, Start, ended, start
from .servers import fresh_job

pytestmark = pytest.mark.integration

TOKEN = "service-token-7f3a9c51d2"
TRAIN = """
import torch
import ps_worker as ps

with ps.connect() as worker:
    table = worker.table({"w": torch.zeros(50, 20)}, optimizer=ps.SGD(lr=1.0))
    for step in range(1, 4):
        table.push({"w": torch.full((50, 20), -1.0)})
        assert table.pull().result(60).values["w"].unique().tolist() == [step]
    worker.finish()
print("trained", worker.rank)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("security")
    for name, days in (("ours", 5), ("theirs", 5), ("expired", -1)):
        make_certificates(path / name, days=days)
    (path / "token").write_text(f"{TOKEN}\n")
    (path / "train.py").write_text(TRAIN)
    return path


def serving(process: Process) -> str:
    """Its address."""
    port = process.wait_line(r"serving on .*:(\d+)$")[1]
    return f"127.0.0.1:{port}"


def server(spawn: Start, *options: str | Path, shard: str = "0/1") -> Process:
    return spawn("ps-server", "--port", "0", "--shard", shard, *map(str, options))


def worker(
    spawn: Start, servers: str, files: Path, tls_dir: Path | None, token: Path | None, *options: str
) -> Process:
    paths = {"PS_TLS_DIR": tls_dir, "PS_TOKEN_FILE": token}
    environment = {name: str(path) for name, path in paths.items() if path is not None}
    script = str(files / "train.py")
    return spawn("ps-worker", "--servers", servers, *options, script, PS_CONNECT_LIMIT="60", **environment)


def test_a_job_trains_over_tls_with_a_token_and_no_log_shows_it(spawn: Start, files: Path) -> None:
    """Two shards, of which one follows the other, and two workers with the token of their job."""
    job = fresh_job()
    (files / "job-token").write_text(job_token := tokens.of_job(TOKEN, job))
    options = ("--tls-dir", files / "ours" / "server", "--token-file", files / "token")
    first = server(spawn, *options, shard="0/2")
    second = server(spawn, *options, "--coordinator", address := serving(first), shard="1/2")
    names = ("--job", job, "--num-workers", "2", "--carrier", "tcp")
    servers = f"{address},{serving(second)}"
    workers = [
        worker(spawn, servers, files, files / "ours" / "worker", files / "job-token", *names) for _ in "ab"
    ]
    for process in workers:
        assert process.wait_end() == 0, process.text
        assert "data goes over tcp" in process.text
    access = read(token_file=files / "token", tls_dir=files / "ours" / "worker", job=None, complain=print)
    (seen,) = ask(tuple(servers.split(",")), access, timeout_s=LIMIT_S).jobs
    assert (seen.name, seen.updates) == (job, 3)
    for process in (first, second, *workers):
        assert TOKEN not in process.text
        assert job_token not in process.text


def test_who_does_not_fit_ends_with_78_and_says_what_is_missing(spawn: Start, files: Path) -> None:
    """At once, without waiting for the connect limit."""
    address = serving(server(spawn, "--tls-dir", files / "ours" / "server", "--token-file", files / "token"))
    (files / "wrong").write_text("another-token-of-somebody")
    ours, token = files / "ours" / "worker", files / "token"
    attempts: list[tuple[Path | None, Path | None, str]] = [
        (files / "theirs" / "worker", token, "its certificate is refused: unable to get local issuer"),
        (files / "expired" / "worker", token, "expired/worker/tls.crt: certificate has expired"),
        (ours, None, "TokenRefused: this service wants a token: set --token-file"),
        (ours, files / "wrong", "TokenRefused: the token (--token-file, PS_TOKEN_FILE) is neither"),
    ]
    processes = [worker(spawn, address, files, tls_dir, held) for tls_dir, held, _ in attempts]
    for process, (_, _, text) in zip(processes, attempts, strict=True):
        code, line = ended(process)
        assert (code, text in line) == (78, True), process.text
        assert TOKEN not in process.text
        assert "another-token" not in process.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "set --tls-dir (certificates on both ends) or --token-file (a shared token), or add --insecure"),
        (("--tls-dir", "expired/server"), "expired/server/tls.crt: certificate has expired"),
        (("--tls-dir", "ours/worker"), "meant for servers and clients"),
        (("--tls-dir", "ours"), "ours/tls.crt: No such file or directory; --tls-dir"),
        (("--token-file", "empty"), "empty holds no token: one line of 16 to 512"),
    ],
)
def test_a_server_that_would_let_anybody_in_ends_with_78(
    spawn: Start, files: Path, options: tuple[str, ...], text: str
) -> None:
    """And one whose files are not what they should be; before anything listens."""
    (files / "empty").write_text("\n")
    paths = [option if option.startswith("--") else str(files / option) for option in options]
    code, line = ended(server(spawn, "--host", "0.0.0.0", *paths))
    assert code == 78
    assert text in line


def test_a_server_listens_elsewhere_with_a_token(spawn: Start, files: Path) -> None:
    server(spawn, "--host", "0.0.0.0", "--token-file", files / "token").wait_line(r"serving on 0\.0\.0\.0")


def test_probes_need_neither_certificate_nor_token_and_find_nothing_else(spawn: Start, files: Path) -> None:
    """On the port of `--health-port`."""
    (port,) = free_ports(1)
    options = ("--tls-dir", files / "ours" / "server", "--token-file", files / "token")
    serving(server(spawn, *options, "--health-port", str(port)))
    assert is_serving(f"127.0.0.1:{port}", timeout_s=LIMIT_S)
    with pytest.raises(ServerUnreachable, match="no such server"):
        ask((f"127.0.0.1:{port}",), timeout_s=LIMIT_S)


def test_new_certificates_are_used_for_new_connections_without_a_restart(
    spawn: Start, files: Path, tmp_path: Path
) -> None:
    """Whoever has only the old ones is refused from then on; control and data."""
    make_certificates(tmp_path)
    old = Path(shutil.copytree(tmp_path / "worker", tmp_path / "old"))
    running = server(spawn, "--tls-dir", tmp_path / "server")
    address = serving(running)

    def outcome(tls_dir: Path) -> int:
        return worker(
            spawn, address, files, tls_dir, None, "--job", fresh_job(), "--carrier", "tcp"
        ).wait_end()

    assert outcome(old) == 0
    make_certificates(tmp_path, force=True)
    assert outcome(tmp_path / "worker") == 0
    assert outcome(old) == 78
    (tmp_path / "server" / "tls.key").write_text("half")
    assert outcome(tmp_path / "worker") == 0
    running.wait_line(r"changed certificates are not taken: .*tls.key is not PEM")


def test_ps_lab_runs_a_job_with_certificates_and_a_token(files: Path) -> None:
    """`launch` gives them to its servers and workers, and asks with them itself."""
    process = start(
        "ps-lab",
        "launch",
        *("--num-servers", "1", "--num-workers", "1", "--carrier", "tcp"),
        *("--tls-dir", str(files / "ours" / "server"), "--token-file", str(files / "token")),
        str(files / "train.py"),
    )
    assert process.wait_end() == 0, process.text
    assert "trained 0" in process.text
    assert TOKEN not in process.text
