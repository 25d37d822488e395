"""Starts of a server that fail, or are broken off: what was handed off is there for the start that serves."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.faults.restarting import Restarting, Run
from tests.integration.processes import Process, Start, Zygote, ended

from .start_points import BOUND, FOUND, LISTING, NO_THREAD, USED, environment

pytestmark = [pytest.mark.integration, pytest.mark.fault]

AT_STEP = 5


@pytest.fixture(scope="module")
def restarting(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarting]:
    """Servers of which no test here takes a snapshot: what is not handed on is lost, and the job with it."""
    servers = Restarting(zygote.start, tmp_path_factory.mktemp("snapshots"))
    yield servers
    assert servers.close() == [0, 0], "\n".join(process.text for process in servers.processes)


class Starts:
    """Starts of one shard that come to nothing."""

    def __init__(self, servers: Restarting, spawn: Start, folder: Path, shard: int) -> None:
        self._servers, self._spawn, self._shard = servers, spawn, shard
        self._fifo = folder / "fifo"
        os.mkfifo(self._fifo)

    def begin(self, *options: str, **environment: str) -> Process:
        """One more process of the shard, at its address; later options win."""
        port = self._servers.addresses[self._shard].rpartition(":")[2]
        return self._spawn(
            "ps-server",
            *("--shard", f"{self._shard}/2", "--port", port),
            *(("--coordinator", self._servers.addresses[0]) if self._shard else ()),
            *self._servers._given,
            *options,
            **environment,
        )

    def port_in_use(self) -> None:
        """Of the control plane, of data, of probes."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            for option in ("--port", "--data-port", "--health-port"):
                code, line = ended(self.begin(option, port))
                assert code == 69, line
                assert "cannot listen" in line

    def no_thread(self) -> None:
        process = self.begin(**environment(NO_THREAD, self._fifo))
        assert process.wait_end() != 0
        assert "can't start new thread" in process.text

    def killed_at(self, point: str) -> None:
        process = self.begin(**environment(point, self._fifo))
        process.wait_line("stands")
        process.kill()

    def stopped_at(self, point: str, until: str = "got SIGTERM") -> None:
        process = self.begin(**environment(point, self._fifo))
        process.wait_line("stands")
        process.signal(signal.SIGTERM)
        process.wait_line(until)
        self._fifo.write_bytes(b"")
        assert process.wait_end() == 0
        assert "Traceback" not in process.text


@pytest.mark.parametrize("shard", [1, 0])
@pytest.mark.parametrize("how", ["port in use", "killed", "stopped"])
def test_a_start_that_fails_leaves_what_was_handed_off_to_the_next_one(
    restarting: Restarting, spawn: Start, tmp_path: Path, shard: int, how: str
) -> None:
    """Wherever it ends before it serves, and once more when it is stopped right after: nothing is lost."""
    starts = Starts(restarting, spawn, tmp_path, shard)

    def at_step(_job: str, step: int) -> None:
        if step != AT_STEP:
            return
        restarting.processes[shard].signal(signal.SIGTERM)
        assert restarting.processes[shard].wait_end() == 0
        if how == "port in use":
            starts.port_in_use()
            starts.no_thread()
        elif how == "killed":
            starts.killed_at(FOUND)
            starts.killed_at(BOUND)
        else:
            starts.stopped_at(FOUND)
            starts.stopped_at(BOUND)
            starts.stopped_at(USED)
            if shard == 0:
                starts.stopped_at(LISTING, until=r"stopped$")
        restarting.again(shard)

    undisturbed = Run(restarting, lambda _job, _step: None).train()
    run = Run(restarting, at_step)
    assert all(map(torch.equal, run.train(), undisturbed))
    assert run.undone == [[], []]
