"""`ps-lab launch` and `ps-lab status` as a person uses them: real processes, none of them left at the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ps_lab.cluster.process_handle import ProcessHandle
from tests.until import LIMIT_S

from .processes import Process, Start, Zygote, living, pids_in, start
from .servers import until

pytestmark = pytest.mark.integration

BLOCKS = "import os, signal\nprint('up', os.environ['PS_WORKER'])\nwhile True: signal.pause()\n"


class Launched:
    """A running `ps-lab launch`, by default one server and two workers; all its processes are in a folder.

    Attributes:
        process: of `ps-lab` itself.
    """

    def __init__(self, begin: Start, script: Path, *options: str) -> None:
        self._folder = script.parent
        with contextlib.chdir(self._folder):
            self.process = begin(
                *("ps-lab", "launch", "--num-servers", "1", "--num-workers", "2"), *options, str(script)
            )

    def wait_line(self, pattern: str) -> re.Match[str]:
        """The next line of output that the pattern is found in."""
        return self.process.wait_line(pattern)

    def wait_end(self) -> int:
        """Its exit code, after its last line."""
        return self.process.wait_end()

    @property
    def lines(self) -> list[str]:
        """Of its output so far."""
        return self.process.lines

    @property
    def text(self) -> str:
        """Of them all."""
        return self.process.text

    def living(self) -> list[ProcessHandle]:
        """All its processes that live, itself included."""
        return living(self._folder)

    def pids(self) -> set[int]:
        """Of those."""
        return pids_in(self._folder)


Launch: TypeAlias = Callable[..., Launched]


@pytest.fixture(name="launch")
def _launch(zygote: Zygote, tmp_path: Path) -> Iterator[Launch]:
    """Launches a script of that code; `begin` starts the command."""
    assert zygote.start("ps-lab", "--help").wait_end() == 0  # the zygote itself is not in the folder
    started: list[Launched] = []

    def launch(code: str, *options: str, begin: Start = zygote.start) -> Launched:
        script = tmp_path / "train.py"
        script.write_text(code)
        started.append(Launched(begin, script, *options))
        return started[-1]

    yield launch
    for launched in started:
        for handle in launched.living():
            handle.send(signal.SIGKILL)
            handle.close()
        launched.wait_end()
        for folder in re.findall(r"what the servers log is in (\S+)", launched.text):
            shutil.rmtree(folder, ignore_errors=True)


def status(spawn: Start, servers: str) -> dict[str, Any]:
    asked: list[Process] = []

    def is_answered() -> bool:
        asked.append(spawn("ps-lab", "status", "--json", "--servers", servers))
        return asked[-1].wait_end() != 69  # where a server takes longer than 3 s, it is asked again

    until(is_answered, f"{servers} answer")
    assert asked[-1].wait_end() == 0, asked[-1].text
    answer: dict[str, Any] = json.loads(asked[-1].text)
    return answer


def test_a_job_runs_to_its_end_and_shows_itself_on_the_way(
    launch: Launch, spawn: Start, tmp_path: Path
) -> None:
    gates = [tmp_path / "gate0", tmp_path / "gate1"]
    for gate in gates:
        os.mkfifo(gate)
    run = launch(
        "import torch, ps_worker as ps\n"
        "with ps.connect() as worker:\n"
        "    table = worker.table({'w': torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))\n"
        "    table.push({'w': torch.ones(5000)}).result()\n"
        "    table.pull().result()\n"
        "    worker.log(loss=0.5)\n"
        "    print('pushed')\n"
        f"    open({str(tmp_path / 'gate')!r} + str(worker.rank)).read()\n"
        "    worker.finish()\n",
        *("--num-servers", "2", "--consistency", "ssp:3", "--job", "fifty"),
    )
    servers = run.wait_line(r"job fifty, ssp:3, 2 workers, servers (\S+)")[1]
    logs = Path(run.wait_line(r"what the servers log is in (\S+)")[1])
    first = run.wait_line(r"^worker (\d) +\| pushed")[1]
    second = run.wait_line(r"^worker (\d) +\| pushed")[1]
    assert {first, second} == {"0", "1"}

    def metrics() -> list[dict[str, float]]:
        return [worker["metrics"] for worker in status(spawn, servers)["jobs"][0]["workers"]]

    until(lambda: metrics() == [{"loss": 0.5}] * 2, "metrics have come with the next heartbeat")
    (job,) = status(spawn, servers)["jobs"]
    assert (job["name"], job["consistency"], job["state"]) == ("fifty", "ssp:3", "running")
    assert [worker["step"] for worker in job["workers"]] == [1, 1]
    assert {worker["pid"] for worker in job["workers"]} < run.pids()
    (table,) = job["tables"]
    assert (table["min_version"], table["max_version"]) == (2, 2)
    assert [(worker["min_clock"], worker["gap"], worker["member"]) for worker in table["workers"]] == [
        (1, 0, True),
        (1, 0, True),
    ]
    assert table["bytes_in"] >= 2 * 5000 * 4
    assert table["tau"]["pushes"] == 2 * table["partitions"]

    for gate in gates:
        gate.write_text("go on")
    assert run.wait_end() == 0, run.text
    assert "(ended with code" not in run.text
    assert not re.search(r"^server \d", run.text, re.MULTILINE)  # what is no trouble is in the files
    assert not logs.exists()  # and nobody needs them
    assert run.pids() == set()


def test_the_first_crash_ends_everything_with_its_exit_code_and_is_named(
    launch: Launch,
) -> None:
    run = launch("import os\nif os.environ['PS_WORKER'] == '1': raise SystemExit(3)\n" + BLOCKS)
    assert run.wait_end() == 3, run.text
    assert run.lines[-1] == "ps-lab: ProcessFailed: worker 1 exited with code 3"
    assert run.pids() == set()
    folder = Path(re.fullmatch(r".*what the servers logged is in (\S+)", run.lines[-2])[1])
    assert " INFO shard=0/1 " in (folder / "server-0.log").read_text()


# Worker 1 fails after a step, the first time or each time; worker 0 goes on when that one has come again.
FAILS = """
import torch, ps_worker as ps
from pathlib import Path
failed, back = Path({failed!r}), {back!r}
with ps.connect() as worker:
    table = worker.table({{"w": torch.zeros(8)}}, optimizer=ps.SGD(lr=1.0))
    again = failed.exists()
    table.push({{"w": torch.ones(8)}}).result()
    table.pull().result()
    if worker.rank == 1 and ({always} or not again):
        failed.write_text("")
        raise SystemExit({code})
    if back:
        open(back, "w" if worker.rank else "r").close()
    worker.finish()
    print("finished")
"""


def failing(tmp_path: Path, *, code: int = 3, always: bool = False, waits: bool = True) -> str:
    if waits:
        os.mkfifo(tmp_path / "back")
    back = str(tmp_path / "back") if waits else ""
    return FAILS.format(failed=str(tmp_path / "failed"), back=back, code=code, always=always)


def test_the_others_go_on_where_they_are_to_and_the_exit_code_is_that_of_who_failed(
    launch: Launch, tmp_path: Path
) -> None:
    run = launch(failing(tmp_path, waits=False), "--on-failure", "continue")
    assert run.wait_end() == 3, run.text
    assert "worker 1 exited with code 3: the others go on" in run.text
    assert re.search(r"worker 0 +\| finished", run.text)
    assert run.lines[-1] == "ps-lab: ProcessFailed: worker 1 exited with code 3"
    assert run.pids() == set()


def test_who_fails_once_starts_again_and_all_finish(launch: Launch, tmp_path: Path) -> None:
    run = launch(failing(tmp_path), "--on-failure", "restart", "--consistency", "asp")
    assert run.wait_end() == 0, run.text
    assert "worker 1 exited with code 3: it starts again (1 of 3 times)" in run.text
    assert all(re.search(rf"worker {number} +\| finished", run.text) for number in (0, 1))


@pytest.mark.parametrize(("code", "restarts"), [(3, 3), (78, 0)], ids=["fails each time", "is refused"])
def test_what_does_not_help_is_not_done_for_ever(
    launch: Launch, tmp_path: Path, code: int, restarts: int
) -> None:
    run = launch(failing(tmp_path, code=code, always=True), "--on-failure", "restart", "--consistency", "asp")
    assert run.wait_end() == code, run.text
    assert run.text.count("it starts again") == restarts
    assert run.pids() == set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_everything(launch: Launch, number: signal.Signals, code: int) -> None:
    run = launch(BLOCKS)
    run.wait_line(r"\| up \d")
    run.wait_line(r"\| up \d")
    run.process.signal(number)
    assert run.wait_end() == code, run.text
    assert run.lines[-1] == f"ps-lab: Interrupted: stopped by {number.name}"
    assert run.pids() == set()


def test_a_killed_launcher_takes_everything_with_it(launch: Launch) -> None:
    """Servers, workers, and what a worker has started itself. The memory that they share has no names.

    The installed command, with a fork server that it starts itself.
    """
    run = launch("import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + BLOCKS, begin=start)
    run.wait_line(r"\| up \d")
    run.wait_line(r"\| up \d")
    # ps-lab, what ends groups, the fork server, a watcher per child; a server, two workers, their own
    until(lambda: len(run.pids()) == 11, "all are there")
    living = run.living()
    run.process.kill()
    for handle in living:
        assert handle.wait(LIMIT_S), f"process {handle.pid} is still there"
        handle.close()
