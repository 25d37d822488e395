"""The number of cores that a process can use: those that it may run on, or fewer by its cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_wire.process.cores import available_cores

MAY_USE = 8


def cores(tmp_path: Path, cgroup: str, **limits: str) -> int:
    """Of a process that is in these cgroups; of names of files `__` is a slash, `_max` is `.max`."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(cgroup)
    for name, text in limits.items():
        changed = name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
        path = tmp_path / changed
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return available_cores(MAY_USE, proc=tmp_path, cgroups=tmp_path)


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu_max": "max 100000"}, 8),
        ("0::/\n", {"cpu_max": "200000 100000"}, 2),
        ("0::/\n", {"cpu_max": "150000 100000"}, 2),
        ("0::/\n", {"cpu_max": "10000 100000"}, 1),
        ("0::/\n", {"cpu_max": "1600000 100000"}, 8),
        ("0::/a/b\n", {"a__b__cpu_max": "max 100000", "a__cpu_max": "300000 100000"}, 3),
        ("0::/../elsewhere\n", {"cpu_max": "200000 100000"}, 2),
        ("0::/\n", {"cpu_max": "rubbish"}, 8),
        ("0::/\n", {"cpu_max": "200000 0"}, 8),
        ("3:cpu,cpuacct:/d\n", {"cpu__d__cpu_cfs_quota_us": "99", "cpu__d__cpu_cfs_period_us": "20"}, 5),
        ("3:cpu,cpuacct:/d\n", {"cpu__cpu_cfs_quota_us": "-1", "cpu__cpu_cfs_period_us": "100000"}, 8),
        ("3:memory:/d\n", {"cpu__cpu_cfs_quota_us": "100000", "cpu__cpu_cfs_period_us": "100000"}, 8),
        ("", {}, 8),
    ],
)
def test_they_are_those_that_it_may_run_on_or_fewer_by_its_cgroup(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
):
    assert cores(tmp_path, cgroup, **limits) == expected


def test_without_linux_they_are_those_that_it_may_run_on(tmp_path: Path):
    assert available_cores(MAY_USE, proc=tmp_path, cgroups=tmp_path) == MAY_USE


def test_this_process_has_one():
    assert available_cores() >= 1
