"""The compose file has no known fault, and each such fault is seen; `scenarios.py` runs its services."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.until import LIMIT_S

from . import compose
from .manifests import Object

Break = Callable[[Object], object]


def test_it_has_no_fault_and_all_are_there():
    assert list(compose.faults(compose.load())) == []
    services = compose.read().values()
    shards = [it.environment["PS_SHARD"] for it in services if "PS_SHARD" in it.environment]
    numbers = [it.environment["PS_WORKER"] for it in services if "PS_WORKER" in it.environment]
    assert shards == ["0/2", "1/2"]
    assert numbers == ["0", "1", "2", "3"]
    assert {it.environment["PS_NUM_WORKERS"] for it in services if "PS_WORKER" in it.environment} == {"4"}
    volumes = [volume for it in services for volume in it.volumes.values()]
    assert sorted(volumes) == ["state-0", "state-1"], "a volume of two shards"


BREAKS: list[tuple[str, Break]] = [
    ("name: not a key, or not of this kind", lambda whole: whole.update(name="ps")),
    ("worker-1: comand: not a key", lambda whole: whole["services"]["worker-1"].update(comand=["ps-worker"])),
    ("worker-1: command: not a key", lambda whole: whole["services"]["worker-1"].update(command="ps-worker")),
    ("its root file system is writable", lambda whole: whole["services"]["server-0"].update(read_only=False)),
    ("it is to be stopped before", lambda whole: whole["services"]["worker-3"].pop("depends_on")),
    ("no volume state-1", lambda whole: whole["volumes"].pop("state-1")),
    ("volume state-9: nobody has it", lambda whole: whole["volumes"].update({"state-9": None})),
    ("is no place", lambda whole: whole["services"]["server-0"].update(volumes=["state-0:var/lib/ps"])),
    ("no secret token", lambda whole: whole["secrets"].clear()),
    ("is no secret of its", lambda whole: whole["services"]["server-0"].update(secrets=[])),
    ("PS_WORKER: 0 is no text", lambda whole: set_variable(whole, "worker-0", PS_WORKER=0)),
    ("ps-worker knows no PS_SHARD", lambda whole: set_variable(whole, "worker-0", PS_SHARD="0/2")),
    ("no service server-2", lambda whole: set_variable(whole, "worker-0", PS_SERVERS="server-{0..2}:50051")),
    ("no service server", lambda whole: set_variable(whole, "server-1", PS_COORDINATOR="server:50051")),
]


def set_variable(whole: Object, service: str, **values: object) -> None:
    """In the environment of one service."""
    whole["services"][service]["environment"].update(values)


@pytest.mark.parametrize(("said", "breaks"), BREAKS, ids=[said for said, _ in BREAKS])
def test_a_fault_is_seen(said: str, breaks: Break):
    whole = compose.load()
    breaks(whole)
    assert any(said in line for line in compose.faults(whole)), list(compose.faults(whole))


def test_composes_own_schema_takes_it(tmp_path: Path):
    """By `docker-compose`, which needs no daemon for that."""
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose here: Debian has a package of that name")
    shutil.copy(compose.FILE, tmp_path)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    words = [program, "-f", str(tmp_path / compose.FILE.name), "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
