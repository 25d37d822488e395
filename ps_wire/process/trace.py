"""A trace of a process's time: named spans of its threads, written as Chrome trace events.

Off unless the environment names a folder; `span` then costs a comparison. On, the newest `MAX_SPANS` are
kept, and each process writes a file of its own at its end, `PID.json`, which Perfetto and chrome://tracing
open. Times are the monotonic clock's, which all processes of a machine share, so files can be put together.

Spans are also the named points at which a test of faults acts: it installs a tracer of its own, which is told
what each span works on, and may hold the thread there. It must not know what is traced.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from ps_wire.errors import UsageError

VARIABLE = "PS_TRACE"  # names the folder
MAX_SPANS = 1 << 17  # of a process, 20 MB; older ones are forgotten
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_NOTHING: AbstractContextManager[None] = nullcontext()


class Tracer(Protocol):
    """A listener to spans, called on the thread that runs them."""

    def span(self, name: str, *about: Any, **named: Any) -> AbstractContextManager[None]:
        """Entered and left with the block of that name, which works on `about`: of a call, its arguments."""
        ...


class SpanRecorder:
    """Spans of this process. Any thread may record; nothing is locked."""

    def __init__(self, process: str, *, max_spans: int = MAX_SPANS) -> None:
        """Begins to record.

        Args:
            process: its name, for people.
            max_spans: that are kept; the oldest go first.
        """
        self.process = process
        self._spans: deque[tuple[str, int, str, int, int]] = deque(maxlen=max_spans)

    def span(self, name: str, *_about: Any, **_named: Any) -> AbstractContextManager[None]:
        """Records what its block takes, on the thread that runs it."""
        return _Span(self, name)

    def add(self, name: str, begin_ns: int, end_ns: int) -> None:
        """Records what this thread did in between, by the monotonic clock."""
        thread = threading.current_thread().name
        self._spans.append((name, threading.get_native_id(), thread, begin_ns, end_ns))

    def events(self) -> list[dict[str, Any]]:
        """Chrome trace events: names of the process and its threads, and the spans; times in microseconds."""
        spans = list(self._spans.copy())  # others record
        pid = os.getpid()
        threads = {number: name for _, number, name, _, _ in spans}
        named = [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": self.process}}]
        return [
            *named,
            *(
                {"name": "thread_name", "ph": "M", "pid": pid, "tid": number, "args": {"name": name}}
                for number, name in threads.items()
            ),
            *(
                {
                    "name": name,
                    "ph": "X",
                    "pid": pid,
                    "tid": number,
                    "ts": begin_ns / 1e3,
                    "dur": (end_ns - begin_ns) / 1e3,
                }
                for name, number, _, begin_ns, end_ns in spans
            ),
        ]

    def write(self, folder: Path) -> None:
        """Writes the events into a file of this process."""
        text = json.dumps({"traceEvents": self.events()})
        (folder / f"{os.getpid()}.json").write_text(text, encoding="utf-8")


class _Span(AbstractContextManager[None]):
    __slots__ = ("_begin_ns", "_name", "_recorder")

    def __init__(self, recorder: SpanRecorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def __enter__(self) -> None:
        self._begin_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self._recorder.add(self._name, self._begin_ns, time.monotonic_ns())


_tracer: Tracer | None = None


def span(name: str, *about: Any) -> AbstractContextManager[None]:
    """A block to be traced: `with trace.span("mean"):`. Nothing happens where tracing is off."""
    return _NOTHING if _tracer is None else _tracer.span(name, *about)


def traced(name: str) -> Callable[[Callable[_Args, _Result]], Callable[_Args, _Result]]:
    """A function whose calls are spans: `@trace.traced("mean")`."""

    def decorate(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        @functools.wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            if _tracer is None:
                return function(*args, **kwargs)
            with _tracer.span(name, *args, **kwargs):
                return function(*args, **kwargs)

        return call

    return decorate


def install(tracer: Tracer | None) -> None:
    """From now on this one is told of the spans of this process; None: nobody."""
    global _tracer  # noqa: PLW0603 - spans are everywhere, and a process has one trace
    _tracer = tracer


def start(process: str) -> None:
    """Turns tracing on for this process, if the environment asks for it; the file comes when it ends.

    Args:
        process: its name, for people: "server 0".

    Raises:
        UsageError: what the environment names is no folder that can be written.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    path = Path(folder).absolute()
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise UsageError(f"{VARIABLE}={folder} is no folder that can be written: make it, or unset it")
    recorder = SpanRecorder(process)
    install(recorder)
    process_id = os.getpid()

    def write() -> None:
        if os.getpid() == process_id:  # a forked child's spans are not its own
            recorder.write(path)

    atexit.register(write)
