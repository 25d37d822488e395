"""The README's quick start, as a new user would type it: its very commands, on other ports."""

import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from ps_lab.cluster.cluster import command_path, free_ports
from ps_lab.cluster.process_handle import ProcessHandle
from ps_lab.status.observer import ask
from ps_wire.errors import Unavailable
from tests.integration.processes import Process
from tests.until import LIMIT_S, until

from .pages import ROOT, commands

pytestmark = pytest.mark.integration


class Terminals:
    """Processes that Ctrl-C reaches, as in terminals of their own."""

    def __init__(self) -> None:
        self.open: list[tuple[subprocess.Popen[str], ProcessHandle]] = []

    def type(self, words: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [command_path(words[0]), *words[1:]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.open.append((process, ProcessHandle(process.pid)))
        return process

    def ctrl_c(self, *processes: subprocess.Popen[str]) -> list[int]:
        for process, group in self.open:
            if process in processes:
                group.send_group(signal.SIGINT)
        return [process.wait(LIMIT_S) for process in processes]

    def close(self) -> None:
        for process, group in self.open:
            group.send_group(signal.SIGKILL)
            group.close()
            process.communicate()


@pytest.fixture(name="terminals")
def _terminals() -> Iterator[Terminals]:
    terminals = Terminals()
    yield terminals
    terminals.close()


def quick_start(
    given: list[int], program: str, page_name: str = "README.md", heading: str = "## Five terminals"
) -> list[list[str]]:
    """The commands of that program in a section of a page, with the given ports."""
    ports = dict(zip(("50051", "50052"), map(str, given), strict=True))
    lines = [*(ROOT / page_name).read_text().splitlines(), "## "]
    first = lines.index(heading) + 1
    last = next(number for number, line in enumerate(lines, 1) if number > first and line.startswith("## "))
    found = []
    for where, words in commands():
        page, _, number = where.partition(":")
        if page == page_name and first < int(number) < last and words[0] == program:
            line = shlex.join(words)
            for said, free in ports.items():
                line = line.replace(said, free)
            found.append(shlex.split(line))
    return found


def test_five_terminals_status_and_ctrl_c_in_each(terminals):
    """Two servers, three workers, status while they train; Ctrl-C ends each with 130, in order."""
    pytest.importorskip("sklearn")
    ports = free_ports(2)
    servers = [terminals.type(words) for words in quick_start(ports, "ps-server")]
    (worker_words,) = quick_start(ports, "ps-worker")
    workers = [terminals.type(worker_words) for _ in range(3)]
    status_words = next(words for words in quick_start(ports, "ps-lab") if words[1] == "status")
    deadline_s = time.monotonic() + LIMIT_S
    while " running " not in (shown := terminals.type(status_words).communicate(timeout=LIMIT_S)[0]):
        assert time.monotonic() < deadline_s, shown
    assert "3 of 3" in shown
    assert terminals.ctrl_c(workers[0]) == [130]
    assert [process.poll() for process in workers[1:]] == [None, None]  # they go on without it
    assert terminals.ctrl_c(*workers[1:]) == [130, 130]
    assert terminals.ctrl_c(*servers) == [130, 130]
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.timeout(900)  # nine processes, one after the other
def test_a_snapshot_is_taken_looked_at_gone_on_from_exported_and_restored(spawn, tmp_path, monkeypatch):
    """The page on snapshots, with the folder and the file elsewhere."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(ROOT)
    ports = free_ports(2)
    section = ("docs/snapshots.md", "## A snapshot, by hand")
    folder, model = str(tmp_path / "snapshots"), str(tmp_path / "model.safetensors")
    elsewhere = {"snapshots": folder, "model.safetensors": model}

    def typed(program: str) -> list[list[str]]:
        return [
            [elsewhere.get(word, word) for word in words] for words in quick_start(ports, program, *section)
        ]

    def said(words: list[str]) -> str:
        process = spawn(*words)
        assert process.wait_end() == 0, process.text
        return " ".join(process.text.split())

    def ctrl_c(*processes: Process) -> list[int]:
        for process in processes:
            process.signal(signal.SIGINT)
        return [process.wait_end() for process in processes]

    (server_words,), (worker_words,) = typed("ps-server"), typed("ps-worker")
    take, list_all, verify, export, restore = typed("ps-lab")

    def running() -> bool:
        try:
            job = ask((f"127.0.0.1:{ports[0]}",)).job("kept")
        except Unavailable:
            return False
        return job is not None and job.state == "running"

    server, worker = spawn(*server_words), spawn(*worker_words)
    until(running, "the job trains")
    assert folder in said(take)
    assert " kept " in said(list_all)
    assert "is whole" in said(verify)
    assert ctrl_c(worker, server) == [130, 130]
    server, worker = spawn(*server_words), spawn(*worker_words)
    worker.wait_line("goes on from its weights and steps")
    until(running, "the job trains again")
    assert f"{model}: " in said(export)
    assert "job kept goes on from step" in said(restore)
    assert ctrl_c(worker, server) == [130, 130]
