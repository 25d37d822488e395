"""The test's end of `injector.py`: which process waits at which point, and what becomes of it there.

    faults.arm("worker 2", "worker before ACK is taken", step=17)   # before or after that process has begun
    stop.wait(); process.signal(signal.SIGKILL)                      # it is there, and now it is dead
    stop.go()                                                        # or it goes on

A process that is named in `environment` begins when it has heard of all stops that were armed for it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.integration.processes import LIMIT_S

from .injector import LEDGER, NAME, SOCKET
from .points import POINTS


class Stop:
    """A point at which a process is to wait."""

    def __init__(self, faults: Faults, number: int, process: str, wanted: Mapping[str, Any]) -> None:
        self.process = process
        self.wanted = {"arm": number, **wanted}
        self.there = threading.Event()
        self.armed = threading.Event()
        self._faults = faults
        self._number = number

    def wait(self) -> Self:
        """Until the process is there."""
        assert self.there.wait(LIMIT_S), f"{self.process} never came to {self.wanted}"
        return self

    def go(self) -> None:
        """Lets it go on; nothing, where it was killed."""
        with contextlib.suppress(OSError):
            self._faults.tell(self.process, {"go": self._number})


class Faults:
    """See the module's docstring.

    Attributes:
        reached: the points that each process has been at.
        ledger: folder of what the servers have applied.
    """

    def __init__(self, folder: Path) -> None:
        self.reached: dict[str, set[str]] = defaultdict(set)
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self._path = str(folder / "faults")
        self._stops: dict[int, Stop] = {}
        self._came: queue.SimpleQueue[Stop] = queue.SimpleQueue()
        self._links: dict[str, socket.socket] = {}
        self._lock = threading.Lock()  # guards the stops and the links
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(64)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="faults", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def environment(self, process: str) -> dict[str, str]:
        """For a process of that name, "worker 2" or "server 0"; servers write the ledger, too."""
        made = {
            "TESTS_INSTALL": "tests.faults.links,tests.faults.limits,tests.faults.injector",
            SOCKET: self._path,
            NAME: process,
        }
        return made | ({LEDGER: str(self.ledger)} if process.startswith("server") else {})

    def arm(
        self,
        process: str,
        point: str,
        *,
        worker: int | None = None,
        step: int | None = None,
        since: int | None = None,
    ) -> Stop:
        """The next time that this process is at this point, for this worker and step, it waits.

        With `since` that is at this step or a later one.
        """
        assert point in POINTS, point
        with self._lock:
            number = len(self._stops)
            wanted = {"point": point, "worker": worker, "step": step, "since": since}
            stop = self._stops[number] = Stop(self, number, process, wanted)
            begun = process in self._links
        if begun:
            self.tell(process, stop.wanted)
            assert stop.armed.wait(LIMIT_S), f"{process} does not answer"
        return stop

    def next_stop(self) -> Stop:
        """Waits for a process to come to a stop: whichever is next."""
        return self._came.get(timeout=LIMIT_S)

    def poll_stop(self) -> Stop | None:
        """As `next_stop`, for a short while; None: there was none."""
        with contextlib.suppress(queue.Empty):
            return self._came.get(timeout=0.05)
        return None

    def tell(self, process: str, message: dict[str, Any]) -> None:
        """Sends a message to a process that has begun."""
        self._links[process].sendall(f"{json.dumps(message)}\n".encode())

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(link,), name="faults-link", daemon=True).start()

    def _listen(self, link: socket.socket) -> None:
        name = ""
        with link, link.makefile() as lines, contextlib.suppress(OSError):  # once it is dead
            for line in lines:
                match json.loads(line):
                    case {"hello": name}:
                        with self._lock:
                            self._links[name] = link
                            mine = [stop for stop in self._stops.values() if stop.process == name]
                        for stop in mine:
                            if not stop.there.is_set():
                                self.tell(name, stop.wanted)
                        self.tell(name, {"start": True})
                    case {"reached": point}:
                        self.reached[name].add(point)
                    case {"armed": number}:
                        self._stops[number].armed.set()
                    case {"at": number}:
                        self._stops[number].there.set()
                        self._came.put(self._stops[number])
