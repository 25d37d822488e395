"""What `ps-lab` answers to what a person types: in this process, but for one that is a process of its own."""

import importlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from cryptography import x509

from ps_lab import cli
from ps_lab.cluster.cluster import command_path
from ps_lab.errors import LibraryMissing
from ps_wire.access.token import of_job
from tests.until import LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


QUICK = Path(__file__).resolve().parents[3] / "examples" / "experiments" / "quick.toml"

PsLab: TypeAlias = Callable[..., Done]


@pytest.fixture(name="ps_lab")
def _ps_lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> PsLab:
    """Runs the command's own entry."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["ps-lab", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Done(returncode=code, stdout=said.out, stderr=said.err)

    return run


def test_a_process_ends_as_the_command_does_in_this_one() -> None:
    done = subprocess.run(
        [command_path("ps-lab"), "launch", "--carrier", "pigeon", __file__],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (64, "")
    assert "valid are: auto, shm, uds, tcp, grpc" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["flourish"], "No such command"),
        (["launch"], "script"),
        (["launch", "--num-workers", "0", "SCRIPT"], "--num-workers"),
        (["launch", "--on-failure", "shrug", "SCRIPT"], "stop"),
        (["launch", "--consistency", "often", "SCRIPT"], "valid are: bsp, bsp:backup=B"),
        (["launch", "--consistency", "ssp:-1", "SCRIPT"], "staleness must be >= 0, got -1"),
        (["launch", "--carrier", "pigeon", "SCRIPT"], "valid are: auto, shm, uds, tcp, grpc"),
        (["launch", "--wire-dtype", "fp8", "SCRIPT"], "valid are: fp32, bf16, fp16"),
        (["launch", "--job", "a b", "SCRIPT"], "job name 'a b'"),
        (["launch", "no/such.py"], "no/such.py is not a file"),
        (
            ["launch", "--workers", "2", "SCRIPT"],
            "No such option: --workers (Possible options: ",
        ),
        (
            ["bench", "roundtrip", "--model", "alexnet"],
            "resnet50, gpt2, gpt2-xl, vgg16, dlrm-dense, small-tensors",
        ),
        (["bench", "roundtrip", "--shapes", "no/such.json"], "no/such.json: No such file"),
        (["bench", "roundtrip", "--shapes", "SCRIPT"], "is not JSON"),
        (["bench", "roundtrip", "--shapes", "SCRIPT", "--model", "gpt2"], "exclude each other"),
        (["bench", "roundtrip", "--versus", "mpi"], "gloo, torch-rpc"),
        (["bench", "roundtrip", "--wire-dtype", "fp8"], "valid are: fp32, bf16, fp16"),
        (["bench", "roundtrip", "--json", "no/such/folder/x.json"], "no/such/folder/x.json"),
        (["bench", "step", "--bucket-mb", "many"], "'many'"),
        (["status", "--servers", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["status", "--watch", "--json"], "take one of them"),
        (["status", "--watch"], "stdout is none"),
        (["job", "drop", "a b"], "job name 'a b'"),
        (["certs", "FOLDER"], "ca.crt is there already: --force replaces it"),
        (["certs", "FOLDER", "--force", "--host", "a b"], "--host 'a b' is neither a name nor an address"),
        (["certs", "SCRIPT/below"], "below cannot be written"),
        (["token", "--job", "a b", "--token-file", "TOKEN"], "job name 'a b'"),
        (["token", "--job", "a"], "--token-file"),
        (["compare", "EXPERIMENT", "--out", "SCRIPT/below"], "below cannot be made"),
        (["simulate", "EXPERIMENT", "--out", "SCRIPT/below"], "below cannot be made"),
        (["trace", "TRACES", "--out", "SCRIPT/below"], "--out"),
        (["pipeline", "plan", "SCRIPT:build", "--stages", "2", "--picture", "SCRIPT/below"], "--picture"),
    ],
)
def test_what_makes_no_sense_ends_with_64_and_says_why(
    arguments: list[str], said: str, tmp_path: Path, ps_lab: PsLab
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    (tmp_path / "ca.crt").touch()
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "1.json").write_text('{"traceEvents": []}')
    places = {"EXPERIMENT": QUICK, "TRACES": tmp_path / "traces"}
    places |= {"SCRIPT": script, "FOLDER": tmp_path, "TOKEN": tmp_path / "token"}
    done = ps_lab(*(re.sub("^[A-Z]+", lambda match: str(places[match[0]]), word) for word in arguments))
    assert done.returncode == 64
    assert said in done.stderr
    assert done.stdout == ""


def test_status_looks_where_a_worker_does_when_nothing_is_said(ps_lab: PsLab) -> None:
    done = ps_lab("status", "--help")
    assert done.returncode == 0
    assert "127.0.0.1:50051" in done.stdout


def test_a_server_that_is_not_there_ends_with_69_and_is_named(ps_lab: PsLab) -> None:
    done = ps_lab("status", "--servers", "127.0.0.1:1")
    assert done.returncode == 69
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_certificates_are_made_and_their_files_named(tmp_path: Path, ps_lab: PsLab) -> None:
    """With a key for the owner alone, and the name that was asked for."""
    done = ps_lab(
        "certs", str(tmp_path / "new"), "--host", "*.ps-server", "--host", "10.0.0.7", "--days", "3"
    )
    assert done.returncode == 0
    files = [Path(line) for line in done.stdout.splitlines()]
    assert [str(file.relative_to(tmp_path / "new")) for file in files] == [
        "ca.crt",
        "ca.key",
        *(f"{role}/{name}" for role in ("server", "worker") for name in ("ca.crt", "tls.crt", "tls.key")),
    ]
    server = x509.load_pem_x509_certificate(files[3].read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", socket.gethostname(), "*.ps-server"} <= set(names.get_values_for_type(x509.DNSName))
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "::1", "10.0.0.7"}
    left = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=2) < left <= timedelta(days=3)


def test_the_token_of_a_job_is_printed_and_the_services_is_not(tmp_path: Path, ps_lab: PsLab) -> None:
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    done = ps_lab("token", "--job", "digits", "--token-file", str(tmp_path / "token"))
    assert done.returncode == 0
    assert done.stdout == f"{of_job('a-token-of-some-length', 'digits')}\n"


def test_without_the_library_for_certificates_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed for this command alone."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "ps_lab.cluster.certificate_authority", raising=False)
    with pytest.raises(LibraryMissing, match=r"pip install 'torch-parameter-server\[certs\]'"):
        importlib.import_module("ps_lab.cluster.certificate_authority")


def test_help_is_there_for_every_command(ps_lab: PsLab) -> None:
    for command in ("launch", "status", "demo", "bench", "bench roundtrip", "bench step", "certs", "token"):
        done = ps_lab(*command.split(), "--help")
        assert done.returncode == 0
        assert done.stdout.strip()
