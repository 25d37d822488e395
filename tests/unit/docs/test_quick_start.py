"""The README's quick start, as a new user would type it: its very commands, on other ports."""

import shlex
import signal
import socket

import pytest

from ps_lab.cluster.ports import free_ports
from ps_lab.status.observer import ask
from ps_wire.errors import Unavailable
from tests.integration.processes import Process
from tests.until import until

from .pages import ROOT, commands

pytestmark = pytest.mark.integration


def ctrl_c(*processes: Process) -> list[int]:
    """In the terminal of each; exit codes."""
    for process in processes:
        process.signal(signal.SIGINT)
    return [process.wait_end() for process in processes]


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


def test_five_terminals_status_and_ctrl_c_in_each(spawn, monkeypatch):
    """Two servers, three workers, status while they train; Ctrl-C ends each with 130, in order."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(ROOT)
    ports = free_ports(2)
    servers = [spawn(*words) for words in quick_start(ports, "ps-server")]
    (worker_words,) = quick_start(ports, "ps-worker")
    workers = [spawn(*worker_words) for _ in range(3)]
    status_words = next(words for words in quick_start(ports, "ps-lab") if words[1] == "status")

    def shown() -> str:
        status = spawn(*status_words)
        status.wait_end()
        return status.text

    until(lambda: " running " in (text := shown()) and "3 of 3" in text, "the job trains, with all three")
    assert ctrl_c(workers[0]) == [130]
    assert not any(process.is_over for process in workers[1:])  # they go on without it
    assert ctrl_c(*workers[1:]) == [130, 130]
    assert ctrl_c(*servers) == [130, 130]
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


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
