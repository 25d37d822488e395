"""One of those that a benchmark compares: servers of its own, and a process with workers that take turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from ps_lab.cluster.cluster import Cluster


class Party:
    """Servers, and a script that trains on them: it reads a line for each turn, and answers it by lines.

    Attributes:
        servers: process ids of the servers.
    """

    def __init__(
        self,
        stack: ExitStack,
        script: str,
        *words: str,
        servers: int,
        environment: Mapping[str, str],
        **own: str,
    ) -> None:
        """Starts all of it; at the end of `stack` it is gone.

        Args:
            stack: of whoever compares.
            script: the text of it.
            words: its arguments.
            servers: how many.
            environment: of all processes, in place of this process's own.
            own: what the script finds in it beside that: its job, for one.
        """
        cluster = Cluster(num_servers=servers, on_line=lambda _name, _line: None, environment=environment)
        stack.enter_context(cluster)
        self.servers = [server.pid for server in cluster.servers]
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *words],
            env={**environment, "PS_SERVERS": ",".join(cluster.addresses), **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._process.kill)

    def turn(self, rounds: int, lines: int = 1) -> list[str]:
        """Has the script do so many rounds; returns the lines that it answers, which are so many.

        Raises:
            SystemExit: it has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        answered = [self._process.stdout.readline() for _ in range(lines)]
        if not answered[-1]:
            raise SystemExit("a process of workers ended")
        return answered
