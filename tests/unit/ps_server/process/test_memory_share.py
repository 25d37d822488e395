"""The limit of memory where nobody says one: a share of what this process can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_server.cli import parse_memory_limit
from ps_server.process.memory_share import default_limit_bytes
from ps_wire.errors import UsageError

GIB = 1 << 30
MACHINE = 100 * GIB


def limit(tmp_path: Path, cgroup: str, **limits: str) -> int:
    """Of a process that is in these cgroups; `limits` are files, `__` for a slash."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(cgroup)
    for name, text in limits.items():
        path = tmp_path / name.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return default_limit_bytes(MACHINE, proc=tmp_path, cgroups=tmp_path)


@pytest.mark.parametrize(
    ("cgroup", "limits", "gib"),
    [
        ("0::/\n", {}, 80),
        ("0::/\n", {"memory_max": "max"}, 80),
        ("0::/\n", {"memory_max": str(10 * GIB)}, 8),
        ("0::/a/b\n", {"a__b__memory_max": str(20 * GIB), "a__memory_max": str(10 * GIB)}, 8),
        ("0::/a/b\n", {"a__b__memory_max": str(10 * GIB), "a__memory_max": "max"}, 8),
        ("0::/../elsewhere\n", {"memory_max": str(10 * GIB)}, 8),
        ("0::/\n", {"memory_max": str(200 * GIB)}, 80),
        ("0::/\n", {"memory_max": "rubbish"}, 80),
        ("4:cpu,memory:/d/e\n0::/\n", {"memory__d__e__memory_limit_in_bytes": str(10 * GIB)}, 8),
        ("4:memory:/unseen\n", {"memory__memory_limit_in_bytes": str(10 * GIB)}, 8),
        ("4:memory:/\n", {"memory__memory_limit_in_bytes": "9223372036854771712"}, 80),
        ("4:cpu:/d\n", {"memory__memory_limit_in_bytes": str(10 * GIB)}, 80),
        ("", {}, 80),
    ],
)
def test_it_is_a_share_of_the_least_of_machine_and_cgroups(
    tmp_path: Path, cgroup: str, limits: dict[str, str], gib: int
):
    assert limit(tmp_path, cgroup, **limits) == gib * GIB


def test_without_linux_it_is_a_share_of_the_machine(tmp_path: Path):
    assert default_limit_bytes(MACHINE, proc=tmp_path, cgroups=tmp_path) == 80 * GIB


def test_this_machine_has_one():
    limit_bytes = parse_memory_limit(None)
    assert limit_bytes is not None
    assert limit_bytes > 1 << 20


@pytest.mark.parametrize("text", ["0", "none", " none "])
def test_a_person_can_switch_it_off(text: str):
    assert parse_memory_limit(text) is None


def test_what_is_neither_bytes_nor_none_is_refused():
    with pytest.raises(UsageError, match="or none"):
        parse_memory_limit("all")
    assert parse_memory_limit("500M") == 500 << 20
