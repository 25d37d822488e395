"""`ps-lab launch` and `ps-lab status` as a person uses them: real processes, none of them left at the end."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ps_lab.cluster import command_path

from .servers import until

pytestmark = pytest.mark.integration

LIMIT_S = 60.0  # importing torch in three processes takes 5 s on two idle cores
BLOCKS = "import os, signal\nprint('up', os.environ['PS_WORKER'])\nwhile True: signal.pause()\n"


class Launched:
    """A running `ps-lab launch`, by default one server and two workers; all its processes carry a mark."""

    def __init__(self, script: Path, *options: str) -> None:
        self.mark = f"PS_TEST_MARK={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [
                *(command_path("ps-lab"), "launch", "--num-servers", "1", "--num-workers", "2"),
                *options,
                str(script),
            ],
            env=os.environ | {name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_line(self, pattern: str) -> re.Match[str]:
        """The next line of output that the pattern is found in."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            line = self._queue.get(timeout=max(0.0, deadline_s - time.monotonic()))
            assert line is not None, f"{pattern!r} never came:\n" + "\n".join(self.lines)
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match

    def wait_end(self) -> int:
        """Its exit code, after its last line."""
        code = self.process.wait(timeout=LIMIT_S)
        while (line := self._queue.get(timeout=LIMIT_S)) is not None:
            self.lines.append(line)
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def pids(self) -> set[int]:
        """All its processes that live, itself included."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue  # it has just ended, or is another user's
                if self.mark.encode() in variables:
                    found.add(int(entry.name))
        return found

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)


@pytest.fixture(name="launch")
def _launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def launch(code: str, *options: str) -> Launched:
        script = tmp_path / "train.py"
        script.write_text(code)
        started.append(Launched(script, *options))
        return started[-1]

    yield launch
    for launched in started:
        for pid in launched.pids():
            os.kill(pid, signal.SIGKILL)
        launched.process.wait()


def wait_gone(pids: set[int]) -> None:
    """Until all these processes have ended, whoever's children they are."""
    handles = []
    for pid in pids:
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    deadline_s = time.monotonic() + LIMIT_S
    for handle in handles:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        assert ended.poll(1000 * max(0.0, deadline_s - time.monotonic())), "a process is still there"
        os.close(handle)


def status(servers: str) -> dict[str, Any]:
    done = subprocess.run(
        [command_path("ps-lab"), "status", "--json", "--servers", servers],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_job_runs_to_its_end_and_shows_itself_on_the_way(
    launch: Callable[..., Launched], tmp_path: Path
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
    servers = run.wait_line(r"job fifty, ssp:3, servers (\S+)")[1]
    first = run.wait_line(r"^worker (\d) +\| pushed")[1]
    second = run.wait_line(r"^worker (\d) +\| pushed")[1]
    assert {first, second} == {"0", "1"}

    def metrics() -> list[dict[str, float]]:
        return [worker["metrics"] for worker in status(servers)["jobs"][0]["workers"]]

    until(lambda: metrics() == [{"loss": 0.5}] * 2, "metrics have come with the next heartbeat")
    (job,) = status(servers)["jobs"]
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
    assert run.pids() == set()


def test_the_first_crash_ends_everything_with_its_exit_code_and_is_named(
    launch: Callable[..., Launched],
) -> None:
    run = launch("import os\nif os.environ['PS_WORKER'] == '1': raise SystemExit(3)\n" + BLOCKS)
    assert run.wait_end() == 3, run.text
    assert run.lines[-1] == "ps-lab: ProcessFailed: worker 1 exited with code 3"
    assert run.pids() == set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_everything(launch: Callable[..., Launched], number: signal.Signals, code: int) -> None:
    run = launch(BLOCKS)
    run.wait_line(r"\| up \d")
    run.wait_line(r"\| up \d")
    run.process.send_signal(number)
    assert run.wait_end() == code, run.text
    assert run.lines[-1] == f"ps-lab: Interrupted: stopped by {number.name}"
    assert run.pids() == set()


def test_a_killed_launcher_takes_everything_with_it(launch: Callable[..., Launched]) -> None:
    """Servers, workers, and what a worker has started itself. The memory that they share has no names."""
    run = launch("import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + BLOCKS)
    run.wait_line(r"\| up \d")
    run.wait_line(r"\| up \d")
    until(lambda: len(run.pids()) == 7, "all are there, with the one that ends what is left")
    pids = run.pids()
    run.process.kill()
    wait_gone(pids - {run.process.pid})
