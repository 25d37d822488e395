"""The server's log: one line an event, whatever peers have said."""

from __future__ import annotations

import logging
import sys

import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from ps_server import log
from ps_server.log import Lines
from ps_wire.errors import from_wire
from ps_wire.text import MAX_LINE

FORGED = "w\n2026-01-01T00:00:00.000Z INFO shard=0/1 forged \x1b[2J\r\u2028"


def line_of(text: str, *facts: object, raised: BaseException | None = None) -> str:
    exc_info = (type(raised), raised, raised.__traceback__) if raised is not None else None
    record = logging.LogRecord("ps_server", logging.WARNING, __file__, 1, text, facts, exc_info)
    return Lines(0, 2).format(record)


def test_what_a_peer_says_forges_no_line_and_says_nothing_to_a_terminal():
    line = line_of("job j worker 0 refused: two parameters are named %s", FORGED)
    assert line.isprintable()
    assert r"named w\n2026-01-01T00:00:00.000Z INFO shard=0/1 forged \x1b[2J\r\u2028" in line


def test_a_line_has_a_bounded_length():
    assert len(line_of("%s", "x" * 10_000_000)) == MAX_LINE
    assert len(line_of("%s", "\n" * 10_000_000)) == MAX_LINE


def test_no_line_of_a_traceback_looks_like_a_line_of_the_log():
    """An exception's own words may be a peer's."""
    lines = line_of("bug", raised=ValueError(FORGED)).split("\n")
    assert lines[0].endswith("WARNING shard=0/2 bug")
    assert all(line.startswith("  | ") and line.isprintable() for line in lines[1:])
    assert any("forged" in line for line in lines)


def test_what_grpc_and_asyncio_complain_of_is_written_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    for name in ("ps_server", *log.OTHERS):
        named = logging.getLogger(name)
        monkeypatch.setattr(named, "handlers", [])
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    log.set_up(1, 2)
    logging.getLogger("grpc._cython.cygrpc").error("Unexpected %s", FORGED)
    logging.getLogger("asyncio").error("Task exception was never retrieved: %s", FORGED)
    gone = ExecuteBatchError("Failed")  # an answer to a caller who has hung up: nobody's bug
    logging.getLogger("grpc._cython.cygrpc").error("raised in core", exc_info=gone)
    lines = capfd.readouterr().err.splitlines()
    assert [" ERROR shard=1/2 " in line for line in lines] == [True, True]


def test_an_error_of_a_peer_is_one_line_wherever_it_is_shown():
    """A script's traceback shows an error's message as it is."""
    error = from_wire("TableMismatch", f"the job has {FORGED}", "{}")
    assert error.message.isprintable()
    assert from_wire("NoSuchError", FORGED).message.startswith(r"NoSuchError: w\n2026")
