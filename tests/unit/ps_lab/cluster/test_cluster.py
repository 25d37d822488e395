"""What a cluster decides before it starts anything."""

import os
from pathlib import Path

import pytest

from ps_lab.cluster.cluster import Cluster, Job, command_path, threads_per_process
from ps_lab.errors import CommandMissing


def test_processes_share_the_cores_and_each_gets_at_least_one_thread() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_per_process(1) == cores
    assert threads_per_process(10 * cores) == 1


def test_workers_of_jobs_that_run_beside_each_other_have_names_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("input()")
    with Cluster(num_servers=0, on_line=lambda _name, _line: None) as cluster:
        names = [
            worker.name
            for name in ("a", "b")
            for worker in cluster.start(
                Job(name=name, consistency="bsp", num_workers=2, script=script, servers=("none",)),
                with_stdin=True,
            )
        ]
    assert names == ["worker 0", "worker 1", "worker 0 of b", "worker 1 of b"]


def test_a_command_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(CommandMissing, match=r"ps-nothing is neither .* pip install"):
        command_path("ps-nothing")
