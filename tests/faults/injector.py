"""Inside a process under test: it says which points it reaches, and waits at those that it was told to.

`install` is called in a process that `zygote.py` has forked, before the command begins. What happens to a
process that waits at a point (killed, stopped, let go on) is decided outside, by `controller.py`, which
answers on the same socket, so nothing here sleeps. Waiting holds the thread that is there, and its locks.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ps_wire.process import trace

from .ledger import Writer
from .points import SPANS, Facts

SOCKET, NAME, LEDGER = "FAULTS_SOCKET", "FAULTS_NAME", "FAULTS_LEDGER"  # of the environment


class Listener(Protocol):
    """Who is told of spans."""

    def enter(self, name: str, about: tuple[Any, ...], named: dict[str, Any]) -> None: ...

    def leave(self, name: str, about: tuple[Any, ...], named: dict[str, Any]) -> None: ...


class Tracer:
    """Tells listeners of spans; of their end only where no error ended them."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners

    def span(self, name: str, *about: Any, **named: Any) -> AbstractContextManager[None]:
        return _Span(self, name, about, named)


class _Span(AbstractContextManager[None]):
    def __init__(self, tracer: Tracer, *what: Any) -> None:
        self._tracer, self._what = tracer, what

    def __enter__(self) -> None:
        for listener in self._tracer.listeners:
            listener.enter(*self._what)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for listener in self._tracer.listeners:
                listener.leave(*self._what)


class _Thread(threading.local):
    last = Facts()


class Injector:
    """See the module's docstring. `_lock` guards what is armed, reached and held."""

    def __init__(self, link: socket.socket, name: str) -> None:
        self._link = link
        self._spans = SPANS[name.split(maxsplit=1)[0]]
        self._side = name.split(maxsplit=1)[0]
        self._lock = threading.Lock()
        self._armed: dict[int, dict[str, Any]] = {}
        self._held: dict[int, threading.Event] = {}
        self._reached: set[str] = set()
        self._thread = _Thread()
        self._lines = link.makefile()
        self._say({"hello": name, "pid": os.getpid()})
        while not self._take(json.loads(self._lines.readline())):
            pass
        threading.Thread(target=self._listen, name="faults", daemon=True).start()

    def enter(self, name: str, about: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._reach("before", name, about, named)

    def leave(self, name: str, about: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._reach("after", name, about, named)

    def _reach(self, when: str, name: str, about: tuple[Any, ...], named: dict[str, Any]) -> None:
        reading = self._spans.get(name)
        if reading is None:
            return
        for what, known in reading(*about, **named):
            facts = self._thread.last = known or self._thread.last
            self._at(f"{self._side} {when} {what}", facts)

    def _at(self, point: str, facts: Facts) -> None:
        with self._lock:
            if point not in self._reached:
                self._reached.add(point)
                self._say({"reached": point})
            number = next((key for key, stop in self._armed.items() if matches(stop, point, facts)), None)
            if number is None:
                return
            del self._armed[number]
            held = self._held[number] = threading.Event()
            self._say({"at": number})
        held.wait()

    def _listen(self) -> None:
        for line in self._lines:
            self._take(json.loads(line))
        with self._lock:  # nobody is there any more
            self._armed.clear()
            for held in self._held.values():
                held.set()

    def _take(self, message: dict[str, Any]) -> bool:
        match message:
            case {"arm": number}:
                with self._lock:
                    self._armed[number] = message
                    self._say({"armed": number})
            case {"go": number}:
                self._held.pop(number, threading.Event()).set()  # it may be meant for the process before
        return "start" in message

    def _say(self, message: dict[str, Any]) -> None:
        self._link.sendall(f"{json.dumps(message)}\n".encode())


def matches(stop: dict[str, Any], point: str, facts: Facts) -> bool:
    """Whether a stop that was armed is for this point."""
    late = stop["since"] is None or (facts.step is not None and facts.step >= stop["since"])
    named = stop["worker"] in (None, facts.worker) and stop["step"] in (None, facts.step)
    return stop["point"] == point and named and late


def install() -> None:
    """Installs what the environment asks for."""
    listeners: list[Listener] = []
    if folder := os.environ.get(LEDGER):
        listeners.append(Writer(folder))
    if path := os.environ.get(SOCKET):
        link = socket.socket(socket.AF_UNIX)
        link.connect(path)
        listeners.append(Injector(link, os.environ[NAME]))
    if listeners:
        trace.install(Tracer(listeners))
