"""Processes of a build: its servers, its workers, and what these say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from ps_lab.cluster.ports import free_ports
from tests.integration.processes import ENVIRONMENT, TETHER, Process
from tests.unchanged.tree import Tree
from tests.until import LIMIT_S

HOST = "127.0.0.1"


class Script:
    """A running script of `tests/unchanged/scripts`, or a server: lines out, and lines in."""

    def __init__(self, *command: str) -> None:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", TETHER, str(os.getpid()), *command],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._stdin: IO[bytes] = popen.stdin
        self.process = Process(" ".join(command[-3:]), popen.pid, popen.stdout, popen.wait)

    def answer(self) -> dict[str, Any]:
        """Its next line of JSON."""
        found: dict[str, Any] = json.loads(self.process.wait_line(r"^\{.*\}$").group())
        return found

    def tell(self) -> None:
        """A line for it to read."""
        self._stdin.write(b"\n")
        self._stdin.flush()

    def end(self) -> None:
        """Waits for its end, which is to be in order."""
        code = self.process.wait_end()
        assert code == 0, f"{self.process.end}:\n{self.process.text}"

    def kill(self) -> None:
        """Ends it, if it has not ended."""
        self.process.kill()
        self._stdin.close()


@contextmanager
def script(tree: Tree, name: str, *arguments: str) -> Iterator[Script]:
    """A script for a while; it is killed where it has not ended by then."""
    running = Script(*tree.script(name), *arguments)
    try:
        yield running
    finally:
        running.kill()


class Service:
    """Servers of a build.

    Attributes:
        addresses: of shards, in their order.
    """

    def __init__(self, stack: ExitStack, num_shards: int, *, host: str = HOST) -> None:
        """Starts nothing yet; what is started ends with the stack."""
        self.addresses = [f"{host}:{port}" for port in free_ports(num_shards)]
        self._host = host
        self._stack = stack
        self._running: list[Script] = []

    @property
    def servers(self) -> str:
        """As `--servers` takes it."""
        return ",".join(self.addresses)

    def start(self, tree: Tree, options: Sequence[Sequence[str]]) -> None:
        """Starts a process per shard, each with options of its own, and waits until all serve."""
        started = [
            Script(
                *tree.command("ps-server"),
                *("--shard", f"{shard}/{len(self.addresses)}", "--host", self._host),
                *("--port", address.rpartition(":")[2]),
                *(("--coordinator", self.addresses[0]) if shard else ()),
                *options[shard],
            )
            for shard, address in enumerate(self.addresses)
        ]
        for server in started:
            self._stack.callback(server.kill)
        self._running = started
        for server in started:
            server.process.wait_line("serving on")

    def stop(self) -> None:
        """Stops them in order."""
        for server in self._running:
            server.process.signal(signal.SIGTERM)
        for server in self._running:
            server.end()


@contextmanager
def service(tree: Tree, num_shards: int, *options: str) -> Iterator[Service]:
    """Servers for a while, which all have the same options."""
    with ExitStack() as stack:
        running = Service(stack, num_shards)
        running.start(tree, [options] * num_shards)
        yield running
        running.stop()


def output(*command: str) -> str:
    """What a command prints on stdout, in lines of 100 columns without colours."""
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(
        command, env=ENVIRONMENT | plain, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command} exited with code {done.returncode}:\n{done.stdout}{done.stderr}"
    return re.sub(r"[ \t]+$", "", done.stdout, flags=re.MULTILINE)
