"""What `ps-lab` answers to what a person types; each is a process, as for the person."""

import subprocess
from pathlib import Path

import pytest

from ps_lab.cluster import command_path


def ps_lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command_path("ps-lab"), *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["flourish"], "No such command"),
        (["launch"], "script"),
        (["launch", "--num-workers", "0", "SCRIPT"], "--num-workers"),
        (["launch", "--on-failure", "shrug", "SCRIPT"], "stop"),
        (["launch", "--consistency", "often", "SCRIPT"], "valid are: bsp, ssp:S"),
        (["launch", "--consistency", "ssp:-1", "SCRIPT"], "staleness must be >= 0, got -1"),
        (["launch", "--carrier", "pigeon", "SCRIPT"], "valid are: auto, shm, uds, tcp, grpc"),
        (["launch", "--job", "a b", "SCRIPT"], "job name 'a b'"),
        (["launch", "no/such.py"], "no/such.py is not a file"),
        (["bench", "roundtrip", "--model", "alexnet"], "resnet50, gpt2, gpt2-xl, vgg16, dlrm-dense"),
        (["bench", "roundtrip", "--shapes", "no/such.json"], "no/such.json: No such file"),
        (["bench", "roundtrip", "--shapes", "SCRIPT"], "is not JSON"),
        (["bench", "roundtrip", "--shapes", "SCRIPT", "--model", "gpt2"], "exclude each other"),
        (["bench", "roundtrip", "--versus", "mpi"], "gloo, torch-rpc"),
        (["bench", "roundtrip", "--json", "no/such/folder/x.json"], "no/such/folder/x.json"),
        (["bench", "step", "--bucket-mb", "many"], "'many'"),
        (["status"], "--servers"),
        (["status", "--servers", "nowhere"], "'nowhere' is not HOST:PORT"),
    ],
)
def test_what_makes_no_sense_ends_with_64_and_says_why(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    done = ps_lab(*(str(script) if word == "SCRIPT" else word for word in arguments))
    assert done.returncode == 64
    assert said in done.stderr
    assert done.stdout == ""


def test_a_server_that_is_not_there_ends_with_69_and_is_named() -> None:
    done = ps_lab("status", "--servers", "127.0.0.1:1")
    assert done.returncode == 69
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_is_there_for_every_command() -> None:
    for command in ("launch", "status", "demo", "bench", "bench roundtrip", "bench step"):
        done = ps_lab(*command.split(), "--help")
        assert done.returncode == 0
        assert done.stdout.strip()
